#!/usr/bin/env bash
# Remakes the warm-start adapter of the embedded model from Atlas's worked episodes: index, replay, supervised training.
# About 35 minutes on two idle cores. The result goes to steprag/atlas/warmstart.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
work=${1:-runs/warmstart}
steprag=.venv/bin/steprag
$steprag index build --corpus steprag/atlas/corpus.jsonl --out "$work/index"
$steprag trees worked --episodes steprag/atlas/warmstart.jsonl --corpus steprag/atlas/corpus.jsonl \
    --index "$work/index" --out "$work/rows"
$steprag train --config configs/training/atlas-warmstart.yaml --pairs "$work/rows" --out "$work/adapter"
mkdir -p steprag/atlas/warmstart
cp "$work"/adapter/{adapter_config.json,adapter_model.safetensors,manifest.json} steprag/atlas/warmstart/
