"""`python data_generation.py …` is `steprag generate …`. An import finds the package beside this file."""

import sys

from data_generation.generate import main
from steprag.console.progress import say
from steprag.console.terminal import guarded

if __name__ == "__main__":
    if not any(word in ("-h", "--help") or word.startswith("--config") or "preset" in word for word in sys.argv):
        say(
            "search: StepRAG's own; ReasonRAG's, of 64 rollouts, 2 children and a judge that sees the golden answers, "
            "is --config reasonrag"
        )
    sys.exit(guarded(main, sys.argv[1:]))
