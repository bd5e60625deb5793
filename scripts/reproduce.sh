#!/usr/bin/env bash
# Does training on steps help? Installs (scripts/setup.sh), then searches, trains and scores every contender on the embedded
# world and writes a report with intervals, tests, plots and costs. --quick only shows that it runs. Run it again to go on
# where it was interrupted. Options are passed to steprag reproduce. Where neither --quick nor --engine is given, vLLM is
# installed (2.5 GB) and serves the policies, which is several times as fast where the processor computes in bfloat16.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
case " $* " in
    *" --quick "* | *" --engine "*) ;;
    *) if bash scripts/setup_vllm.sh; then set -- --engine vllm "$@"; else echo "without vLLM: llama.cpp serves" >&2; fi ;;
esac
exec .venv/bin/steprag reproduce "$@"
