#!/usr/bin/env bash
# All checks: lint, format, types, tests. With --all also the slow tests on real models, engines and browsers (what CI
# runs), for which LLaMA-Factory is installed in an environment of its own (2.1 GB), Ray in .venv (240 MB), and Chromium
# where apt-get has it.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
if [ "${1:-}" = "--all" ]; then
    all=yes
    shift
    bash scripts/setup_llamafactory.sh
    bash scripts/setup_browser.sh
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -c requirements-dev.txt 'ray>=2.60,<3'
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright
# Quick tests run side by side, a file in one process, a core each; slow ones alone, for their engines want all cores.
# 5: the files that were named hold none of these.
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} .venv/bin/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist loadfile "$@" || [ $? = 5 ]
[ -z "${all:-}" ] || OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} .venv/bin/python -m pytest -m slow "$@" || [ $? = 5 ]
