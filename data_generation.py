"""`python data_generation.py …` is `steprag generate …`. An import finds the package beside this file."""

import sys

from data_generation.generate import main
from steprag.console.terminal import guarded

if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
