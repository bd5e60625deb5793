#!/usr/bin/env bash
# All checks: lint, format, types, tests. With --all also the slow tests on real models, engines and browsers (what CI
# runs), for which LLaMA-Factory is installed in an environment of its own (2.1 GB), Ray in .venv (240 MB), and Chromium
# where apt-get has it.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
selection=(-m "not slow")
if [ "${1:-}" = "--all" ]; then
    selection=()
    shift
    bash scripts/setup_llamafactory.sh
    bash scripts/setup_browser.sh
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -c requirements-dev.txt 'ray>=2.60,<3'
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright
.venv/bin/python -m pytest "${selection[@]}" "$@"
