#!/usr/bin/env bash
# Makes .venv-llamafactory with LLaMA-Factory 0.9.5, which cannot share an environment with TRL 1.x. Quick when it is there.
#   bash scripts/setup_llamafactory.sh          CPU, where torch sees no CUDA: 2.1 GB; also what CI runs
#   GPU=1 bash scripts/setup_llamafactory.sh    adds DeepSpeed and bitsandbytes (NVIDIA driver and CUDA 12 or newer; not run in CI)
# TORCH_INDEX as in scripts/setup.sh; PYTHON chooses the interpreter (3.11 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-llamafactory
pins=scripts/llamafactory.txt
stamp=$venv/steprag.stamp
now=$(cat "$pins" "$0" | sha256sum)" GPU=${GPU:-}"
[ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && exit 0

[ -x $venv/bin/python ] || "${PYTHON:-python3}" -m venv $venv
pip=($venv/bin/python -m pip install --quiet --disable-pip-version-check)
echo "installing LLaMA-Factory into $venv …" >&2
"${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.txt)"
if [ -n "${GPU:-}" ]; then
    grep '^torch==' requirements.txt > "$venv/torch.txt"  # else pip takes a newer one, with another CUDA
    "${pip[@]}" -c "$pins" -c "$venv/torch.txt" llamafactory==0.9.5 'bitsandbytes>=0.50,<0.51'
    "${pip[@]}" --no-build-isolation -c "$pins" -c "$venv/torch.txt" 'deepspeed>=0.19,<0.20'
else
    # PyPI's torchvision and torchaudio are CUDA builds that cannot be imported beside a CPU torch. transformers takes a
    # missing torchvision as it is; LLaMA-Factory imports torchaudio without need, so an empty module stands in for it.
    "${pip[@]}" --no-deps -r "$pins"
    site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/torchaudio"
    echo '__version__ = "0.0.0"' > "$site/torchaudio/__init__.py"
fi
echo "$now" > "$stamp"
echo "ready: $venv/bin/llamafactory-cli" >&2
