#!/usr/bin/env bash
# All checks: lint, format, types, tests.
#   bash scripts/test.sh           the quick tests
#   bash scripts/test.sh --all     also the slow ones on real models, engines and browsers (what CI runs): installs Ray in
#                                  .venv (240 MB) and Chromium where apt-get has it; LLaMA-Factory (2.1 GB) and vLLM
#                                  (2.5 GB), each in an environment of its own, where its files differ from those that its
#                                  tests last passed with (tests/long_passed.txt)
#   bash scripts/test.sh --long    also what CONTRIBUTING.md lists as long: LLaMA-Factory and vLLM in any case, and more
#                                  rounds of everything that is random
# What follows the first word goes to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
level=quick
case "${1:-}" in
    --all | --long) level=${1#--}; shift ;;
esac
export STEPRAG_TESTS=$level
passed=tests/long_passed.txt  # by environment, the hash of its files when `--long` last passed
declare -A files=(
    [llamafactory]="training/launch/llamafactory.py scripts/setup_llamafactory.sh scripts/llamafactory.txt tests/test_llamafactory.py"
    [vllm]="steprag/engines/launch.py scripts/setup_vllm.sh scripts/vllm.txt"
)
stamp() { echo "$1 $(cat ${files[$1]} | sha256sum | cut -c1-16)"; }

bash scripts/setup.sh
if [ "$level" != quick ]; then
    bash scripts/setup_browser.sh
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -c requirements-dev.txt 'ray>=2.60,<3'
    due=()
    for name in "${!files[@]}"; do
        if [ "$level" = long ] || ! grep -qxF "$(stamp "$name")" "$passed"; then
            due+=("$name")
            bash "scripts/setup_$name.sh"
        fi
    done
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
if [ "$level" = long ]; then
    tests -m long "$@"
    [ $# != 0 ] || for name in "${!files[@]}"; do stamp "$name"; done | sort > "$passed"
elif [ ${#due[@]} != 0 ]; then
    tests -m long -k "$(printf ' or %s' "${due[@]}" | cut -c5-)" "$@"
fi
