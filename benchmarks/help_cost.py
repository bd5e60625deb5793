"""Processor seconds of each command's `--help`, the least of three starts: of other checkouts, in turn, then of this.

python -m benchmarks.help_cost [CHECKOUT …]
"""

import resource
import subprocess
import sys

from apps.commands import COMMANDS


def seconds(words: str, checkout: str) -> float:
    """Of one start. The first of a checkout also compiles its files."""
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    line = [sys.executable, "-m", "apps.commands", *words.split(), "--help"]
    subprocess.run(line, cwd=checkout, check=True, capture_output=True)
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before


if __name__ == "__main__":
    for words in ["", *(command.words for command in COMMANDS)]:
        starts = [[seconds(words, checkout) for checkout in (*sys.argv[1:], ".")] for _ in range(3)]
        sys.stdout.write(f"steprag {words:<16}{' '.join(f'{min(each):6.2f}' for each in zip(*starts, strict=True))}\n")
