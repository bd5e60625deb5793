#!/usr/bin/env bash
# StepRAG beside other people's tools: installs each into .venv-peers/, runs them in turn, writes docs/figures/peers.md.
#   bash scripts/peers.sh [NAME …] [--rounds 3] [--quick] [--sources DIR] [--out FILE]
# TORCH_INDEX as in scripts/setup.sh. `python -m benchmarks.peers --help` says the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m benchmarks.peers "$@"
