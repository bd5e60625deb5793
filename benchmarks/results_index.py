"""How long a start takes to learn what a run has: with the index of its results, and without.

    python benchmarks/results_index.py [--trees 100000] [--nodes 30]

Writes a trees.jsonl of so many trees into a temporary folder (about 14 kB a tree of 30 nodes), then opens it in a fresh
process each time: twice with its index, once after the index was removed, which is what a run of an earlier version
has. Prints seconds, the processes' largest memory and the size of the index.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from steprag.batch.results import Results, index_of
from steprag.batch.tree_results import TREES
from steprag.files import LineJournal
from steprag.tree import Node, Tree
from steprag.types import Question, Usage

TEXT = "The passage says where the station stands. So the next query is <query> thing {} </query>"


def tree(number: int, nodes: int) -> Tree:
    grown = [Node(0, None, 0)]
    for i in range(1, nodes):
        above = grown[(i - 1) // 3]
        grown.append(Node(i, above.id, above.depth + 1, "query", TEXT.format(i), f"thing {i}", 3, 0.25))
    return Tree(
        1, Question(f"q{number}", f"What is thing {number}?", ("3",)), "rollouts", Usage(9, 400, 40), tuple(grown)
    )


def write(path: Path, count: int, nodes: int) -> None:
    """The file and its index; only the last lines go through `Results`, which waits for the disk at every line."""
    with LineJournal(path, synced=False) as lines:
        for number in range(count - 1):
            lines.append(tree(number, nodes))
    with Results(path, TREES).appending() as keep:
        keep(tree(count - 1, nodes))


def start(path: Path) -> str:
    """One start in a process of its own."""
    return subprocess.run(
        [sys.executable, __file__, "--open", str(path)], check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        began = time.perf_counter()
        found = sum(counts["nodes"] for counts in Results(given.open, TREES).counts())
        took, memory = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(f"{took:8.2f} s, {memory:6.0f} MiB, {found:,} nodes\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.jsonl"
        write(path, given.trees, given.nodes)
        size, index = path.stat().st_size, index_of(path).stat().st_size
        sys.stdout.write(f"{given.trees:,} trees: {size / 2**20:,.0f} MiB, their index {index / 2**20:.1f} MiB\n")
        sys.stdout.write(f"with the index     {start(path)}\n")
        sys.stdout.write(f"with the index     {start(path)}\n")
        index_of(path).unlink()
        sys.stdout.write(f"without it, once   {start(path)}\n")


if __name__ == "__main__":
    main()
