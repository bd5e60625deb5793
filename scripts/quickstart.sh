#!/usr/bin/env bash
# From a bare machine to a trained agent: installs (scripts/setup.sh), then runs the whole pipeline (steprag demo).
# Run it again to go on where it was interrupted. Options are passed to steprag demo.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
exec .venv/bin/steprag demo "$@"
