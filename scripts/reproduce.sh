#!/usr/bin/env bash
# Does training on steps help? Installs (scripts/setup.sh), then searches, trains and scores every contender on the embedded
# world and writes a report with intervals, tests, plots and costs. --quick only shows that it runs. Run it again to go on
# where it was interrupted. Options are passed to steprag reproduce. Where neither --quick nor --engine is given, vLLM is
# installed (2.5 GB) and serves the policies: faster, the more so where the processor computes in bfloat16.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
case " $* " in
    *" --quick "* | *" --engine"[\ =]* | *" --help "* | *" -h "*) ;;
    *)
        bash scripts/setup_vllm.sh || { echo "vLLM is not installed; with --engine llamacpp it is not needed" >&2; exit 1; }
        set -- --engine vllm "$@"
        ;;
esac
exec .venv/bin/steprag reproduce "$@"
