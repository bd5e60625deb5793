#!/usr/bin/env bash
# Writes requirements.txt and requirements-dev.txt anew from the ranges in pyproject.toml. Needs `uv`.
# torch's local version (+cpu) is dropped: which build to take is the installing machine's choice.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile pyproject.toml --quiet --extra all --no-header --no-annotate --python-version 3.11 ${FIND_LINKS:+--find-links "$FIND_LINKS"})
# The nvidia and triton packages of torch's CUDA build come with torch itself; they are not ours to pin.
clean() { sed -E 's/^(torch==[^+]+)\+.*/\1/' | grep -vE '^(nvidia-|triton|cuda-)' ; }
{ echo "# Made by scripts/compile_requirements.sh from pyproject.toml; do not edit."; "${compile[@]}" | clean; } > requirements.txt.new
{ echo "# Made by scripts/compile_requirements.sh from pyproject.toml; do not edit."; echo "-c requirements.txt"
  "${compile[@]}" --extra dev --constraint requirements.txt.new | clean | grep -vxFf <(grep -v '^#' requirements.txt.new); } > requirements-dev.txt.new
mv requirements.txt.new requirements.txt
mv requirements-dev.txt.new requirements-dev.txt
