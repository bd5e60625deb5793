#!/usr/bin/env bash
# Makes the documentation's site, with llms.txt, and ends with an error at a broken link: bash scripts/site.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/sphinx-build --quiet --fail-on-warning --keep-going -c docs -b dirhtml . "${1:-runs/site}"
