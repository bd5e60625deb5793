"""`python inference.py …` is `steprag infer …`. An import of `inference` finds the package beside this file."""

import sys

from inference.inference import main
from steprag.console.terminal import guarded

if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
