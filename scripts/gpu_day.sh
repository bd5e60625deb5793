#!/usr/bin/env bash
# Measures on one GPU of 80 GB what the claims about GPUs need, in order of worth, in three parts of at most nine
# minutes. Start it again, or the next part: it repeats nothing. No hub is asked; what lacks a package is `not run`.
# OUT (runs/gpu-day) is small: gpu_day.md and .png, gpu_check.md, rows.jsonl, logs. Models lie in OUT.work; delete it.
#   bash scripts/gpu_day.sh [--part N] [--into docs/gpu.md] [--out DIR] [--python FILE]
#   bash scripts/gpu_day.sh --dry-run        all of it on the processor, with tiny shapes
# --python FILE: that Python and the packages it has (.venv-gpu, which scripts/gpu_check.sh makes)
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv-gpu/bin/python own=()
while [ $# -gt 0 ]; do
    case $1 in
        --python) python=${2:?--python wants a file}; shift 2 ;;
        *) own+=("$1"); shift ;;
    esac
done
command -v -- "$python" >/dev/null || { echo "no Python at $python; give one: --python FILE" >&2; exit 2; }
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
exec "$python" -m benchmarks.gpu_day "${own[@]}"
