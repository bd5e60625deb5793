#!/usr/bin/env bash
# From a bare machine to a trained policy and a chat: installs (scripts/setup.sh), runs steprag demo, and in a terminal
# serves its two pages until Ctrl-C. Run it again to go on where it was interrupted. Options are passed to steprag demo.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
[ ! -t 1 ] || set -- --pages "$@"
exec .venv/bin/steprag demo "$@"
