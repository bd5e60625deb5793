#!/usr/bin/env bash
# Does training on steps help? Installs (scripts/setup.sh), then searches, trains and scores every contender on the embedded
# world and writes a report with intervals, tests, plots and costs. --quick only shows that it runs. Run it again to go on
# where it was interrupted. Options are passed to steprag reproduce.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
exec .venv/bin/steprag reproduce "$@"
