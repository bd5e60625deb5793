#!/usr/bin/env bash
# All checks: lint, format, types, tests. With --all also the slow tests on real models, engines and browsers (what CI
# runs), for which LLaMA-Factory is installed in an environment of its own (2.1 GB), and Chromium where apt-get has it.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
selection=(-m "not slow")
[ "${1:-}" = "--all" ] && { selection=(); shift; bash scripts/setup_llamafactory.sh; bash scripts/setup_browser.sh; }
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright
.venv/bin/python -m pytest "${selection[@]}" "$@"
