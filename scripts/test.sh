#!/usr/bin/env bash
# All checks: lint, format, types, tests.
#   bash scripts/test.sh           the quick tests
#   bash scripts/test.sh --all     also the slow ones on real models, engines and browsers (what CI runs): installs Ray in
#                                  .venv (240 MB), Chromium where apt-get has it, and LLaMA-Factory in an environment of
#                                  its own (2.1 GB) where its files differ from those that its tests last passed with
#   bash scripts/test.sh --long    also what CONTRIBUTING.md lists as long: more rounds of everything that is random,
#                                  LLaMA-Factory in any case, and the GPU checks on the processor
# What follows the first word goes to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
level=quick
case "${1:-}" in
    --all | --long) level=${1#--}; shift ;;
esac
export STEPRAG_TESTS=$level
llamafactory=(training/llamafactory*.py scripts/setup_llamafactory.sh scripts/llamafactory.txt tests/test_llamafactory.py)
passed=tests/long_passed.txt  # the hash of those files when `--long` last passed
now=$(cat "${llamafactory[@]}" | sha256sum | cut -c1-16)

bash scripts/setup.sh
if [ "$level" != quick ]; then
    bash scripts/setup_browser.sh
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -c requirements-dev.txt 'ray>=2.60,<3'
    long=()
    [ "$now" = "$(cat "$passed" 2>/dev/null)" ] || long=(tests/test_llamafactory.py)
    [ "$level" != long ] || long=(tests)
    [ -z "${long[*]}" ] || bash scripts/setup_llamafactory.sh
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright

# pytest's exit code 5: the files that were named hold none of these tests.
tests() { OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads} .venv/bin/python -m pytest --durations=60 "$@" || [ $? = 5 ]; }
# A file in one process, a core each: nearly all tests need one core only.
threads=1 side_by_side=(-n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder)
if [ "$level" = quick ]; then
    tests -m "not slow and not engine and not long and not gpu" "${side_by_side[@]}" "$@"
    exit
fi
tests -m "not engine and not long and not gpu" "${side_by_side[@]}" "$@"
# Engines want all cores: two processes on all cores stand in each other's way.
threads=2
tests -m "engine" "$@"
[ -z "${long[*]}" ] || tests -m long "${@:-${long[@]}}"
[ "$level" != long ] || [ $# != 0 ] || echo "$now" > "$passed"
