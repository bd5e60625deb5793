"""`python preference_data_generation.py` is `steprag pairs --preset reasonrag`, of the runs of ReasonRAG's lines."""

import sys
from pathlib import Path

from preference.build import main
from steprag.console.terminal import guarded

RUNS = [run for name in ("popqa", "hotpotqa", "2wikimultihopqa") if (run := Path(f"runs/generate-{name}")).is_dir()]

if __name__ == "__main__":
    typed = sys.argv[1:]
    named = any(word.startswith("--trees") for word in typed) or (typed and not typed[0].startswith("-"))
    trees = [] if named or not RUNS else ["--trees", *map(str, RUNS)]
    sys.exit(guarded(main, ["--preset", "reasonrag", *trees, *typed]))
