#!/usr/bin/env bash
# All checks: lint, format, types, tests.
#   bash scripts/test.sh             the quick tests
#   bash scripts/test.sh --landing   also the web pages in a browser, and trainings on two processes (what CI runs):
#                                    installs Chromium where apt-get has it
#   bash scripts/test.sh --all       also the slow ones on real models and engines: installs Ray in .venv (240 MB);
#                                    LLaMA-Factory (2.1 GB) and vLLM (2.5 GB), each in an environment of its own, where
#                                    its files differ from those that its tests last passed with (tests/long_passed.txt)
#   bash scripts/test.sh --long      also what CONTRIBUTING.md lists as long: LLaMA-Factory and vLLM in any case, and
#                                    more rounds of everything that is random
# But for the quick level, pip-audit looks for known holes of the pinned packages, where it is installed.
# What follows the first word goes to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
level=quick
case "${1:-}" in
    --landing | --all | --long) level=${1#--}; shift ;;
esac
export STEPRAG_TESTS=$level
unset PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, and each would compile the checkout
passed=tests/long_passed.txt  # by environment, the hash of its files when `--long` last passed
declare -A files=(
    [llamafactory]="training/launch/llamafactory.py scripts/setup_llamafactory.sh scripts/llamafactory.txt tests/test_llamafactory.py"
    [vllm]="steprag/engines/launch.py scripts/setup_vllm.sh scripts/vllm.txt"
)
stamp() { echo "$1 $(cat ${files[$1]} | sha256sum | cut -c1-16)"; }

bash scripts/setup.sh
[ "$level" = quick ] || bash scripts/setup_browser.sh
due=()
if [ "$level" = all ] || [ "$level" = long ]; then
    ray=.venv/ray.stamp  # `setup.sh` installed anew: its requirements differ
    cmp -s .venv/steprag.stamp "$ray" || {
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -c requirements-dev.txt 'ray>=2.60,<3'
        cp .venv/steprag.stamp "$ray"
    }
    for name in "${!files[@]}"; do
        if [ "$level" = long ] || ! grep -qxF "$(stamp "$name")" "$passed"; then
            due+=("$name")
            bash "scripts/setup_$name.sh"
        fi
    done
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
[ "$level" = quick ] || bash scripts/site.sh
# Types are checked beside the tests; both count, and what pyright said stands at the end.
types=$(mktemp)
.venv/bin/pyright > "$types" 2>&1 &
pyright=$!
trap 'kill "$pyright" 2>/dev/null || true; rm -f "$types"' EXIT

# pytest's exit code 5: the files that were named hold none of these tests.
tests() {
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads} .venv/bin/python -m pytest --durations=60 "$@" || [ $? = 5 ] || failed=1
}
failed=0
# Nearly all tests need one core only, and a third of their time they wait: a process more than there are cores, four at
# most. tests/conftest.py says which stay in one process.
workers=$(($(nproc) < 4 ? $(nproc) + 1 : 4))
side_by_side() { threads=1 tests -n $workers --dist loadgroup "$@"; }
# Engines want all cores: two processes on all cores stand in each other's way.
alone() { threads=2 tests "$@"; }
case $level in
    quick)
        side_by_side -m "not slow and not engine and not long and not gpu" "$@" ;;
    landing)
        side_by_side -m "(landing or not slow) and not engine and not long and not gpu" "$@"
        [ $# != 0 ] || set -- $(grep -l "mark.engine" tests/test_*.py)  # all the others need not be read again
        alone -m "landing and engine" "$@" ;;
    *)
        side_by_side -m "not engine and not long and not gpu" "$@"
        alone -m engine "$@" ;;
esac
if [ "$level" != quick ]; then  # known holes of what is pinned; where no database can be reached, that is said
    audit=$(timeout 120 .venv/bin/python -m pip_audit -r requirements.txt --no-deps --disable-pip 2>&1) && clean=1 || clean=0
    unknown=$(grep -c "could not be audited" <<< "$audit") || true
    if grep -q "^Name .*ID" <<< "$audit"; then
        echo "$audit"
        failed=1
    elif [ $clean = 1 ]; then
        echo "pip-audit: no known holes; $unknown of $(grep -c == requirements.txt) packages are not in its database"
    else
        echo "pip-audit: not done, its database is out of reach: $(tail -n 1 <<< "$audit")"
    fi
fi
if [ "$level" = long ]; then
    alone -m long "$@"
    [ $# != 0 ] || [ $failed = 1 ] || for name in "${!files[@]}"; do stamp "$name"; done | sort > "$passed"
elif [ ${#due[@]} != 0 ]; then
    alone -m long -k "$(printf ' or %s' "${due[@]}" | cut -c5-)" "$@"
fi
wait "$pyright" || failed=1
cat "$types"
exit $failed
