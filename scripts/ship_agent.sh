#!/usr/bin/env bash
# Ships an adapter of the embedded model as `atlas-agent`, which `steprag ask` and `steprag serve` then use.
#   bash scripts/ship_agent.sh runs/reproduce/ADAPTER [TO]       a folder of `steprag train`
# With TO steprag/atlas/stack it is `atlas-stack`. Its manifest travels along: it names data, recipe and base.
# docs/figures/results.md and docs/figures/results-stack.md have the commands that trained them.
set -euo pipefail
from=${1:?give the adapter folder of steprag train}
root=$(cd "$(dirname "$0")/.." && pwd)
to=${2:-$root/steprag/atlas/agent}
files=(adapter_config.json adapter_model.safetensors manifest.json)
for file in "${files[@]}"; do
    [ -f "$from/$file" ] || { echo "$from has no $file; give an adapter folder of steprag train" >&2; exit 2; }
done
bytes=$(stat -c %s "$from/adapter_model.safetensors")
[ "$bytes" -le 10000000 ] || { echo "$from/adapter_model.safetensors has $bytes bytes; at most 10,000,000" >&2; exit 2; }
mkdir -p "$to"
cp "$from/adapter_model.safetensors" "$to/"
"$root/.venv/bin/python" - "$from" "$to" <<'PY'
# Paths of the machine that trained it become the names of their folders; the manifest lists what is shipped.
import json, re, sys
for name in ("adapter_config.json", "manifest.json"):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as file:
        value = json.loads(re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', file.read()))
    if name == "manifest.json":
        value["files"] = {kept: said for kept, said in value["files"].items() if kept.startswith("adapter_")}
    with open(f"{sys.argv[2]}/{name}", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
PY
"$root/.venv/bin/steprag" run check --accept "$to"
echo "shipped; now run: .venv/bin/python -m pytest tests/test_atlas.py tests/test_ask.py" >&2
