#!/usr/bin/env bash
# Measures on one GPU of 80 GB what the claims about GPUs need (benchmarks/gpu_day.yaml), in order of worth, in three
# parts of at most nine minutes. Start it or the next part again: it repeats nothing. No hub is asked; what lacks a
# package is `not run`. Bring OUT home: it is small, with the table gpu_day.md, gpu_day.png, rows.jsonl and logs. OUT.work
# holds the models and can be deleted.
#   bash scripts/gpu_day.sh [--part N] [--into docs/gpu.md] [--out DIR] [--python FILE]
#   bash scripts/gpu_day.sh --dry-run --python .venv/bin/python     all of it on the processor, with tiny shapes
# --python FILE: that Python and the packages it has, in place of .venv-gpu, which scripts/gpu_check.sh makes
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv-gpu/bin/python own=()
while [ $# -gt 0 ]; do
    case $1 in
        --python) python=${2:?--python wants a file}; shift 2 ;;
        *) own+=("$1"); shift ;;
    esac
done
command -v -- "$python" >/dev/null || { echo "no Python at $python; give one with --python" >&2; exit 2; }
[[ " ${own[*]-} " = *" --dry-run "* ]] || command -v nvidia-smi >/dev/null || {
    echo "no NVIDIA GPU: nvidia-smi is missing; --dry-run tries the measurements" >&2
    exit 2
}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
exec "$python" -m benchmarks.gpu_day ${own[@]+"${own[@]}"}
