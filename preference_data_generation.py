"""`python preference_data_generation.py` is `steprag pairs --preset reasonrag`, of the runs of ReasonRAG's lines."""

import sys
from pathlib import Path

from preference.build import main
from steprag.console.terminal import guarded

RUNS = [run for name in ("popqa", "hotpotqa", "2wikimultihopqa") if (run := Path(f"runs/generate-{name}")).is_dir()]

if __name__ == "__main__":
    trees = ["--trees", *map(str, RUNS)] if RUNS and "--trees" not in sys.argv else []
    sys.exit(guarded(main, ["--preset", "reasonrag", *trees, *sys.argv[1:]]))
