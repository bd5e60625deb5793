"""A long list and a long run: how soon `steprag generate` is at work again, and what it holds in memory.

    python benchmarks/resume_scale.py [--questions 1000000] [--trees 100000] [--nodes 30] [--more 200]

Writes a file of synthetic questions and begins a run of it with a scripted endpoint (`slots_speed.py`), which is
stopped by its budget. Then so many trees are laid into its folder (`results_index.py`), and the run is started again
until --more further calls were made. Reported: seconds of wall and processor time from the start to the first call, and
the resident memory at the first call and at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from results_index import write
from slots_speed import command, endpoint, told

from steprag.batch.results import index_of
from steprag.errors import BudgetReached
from steprag.files import write_records
from steprag.types import Question


def question(number: int) -> Question:
    """One of them."""
    text = f"What is thing {number}? Which river flows past it, and whose is it?"
    return Question(f"q{number}", text, (f"river {number}",), {"type": "bridge"})


def begun(run: list[str], address: str) -> tuple[psutil.Popen, float, float, float]:
    """The process at its first call: wall seconds, processor seconds, MiB."""
    told(address, clear=True)
    start = time.monotonic()
    process = psutil.Popen(run)
    while not told(address).calls and process.poll() is None:
        time.sleep(0.1)
    took, times = time.monotonic() - start, process.cpu_times()
    return process, took, times.user + times.system, process.memory_info().rss / 2**20


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--questions", type=int, default=1_000_000)
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--more", type=int, default=2_000, help="calls after which the run is ended")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place, endpoint(0.01) as address:
        folder, questions = Path(place), Path(place) / "questions.jsonl"
        write_records(questions, map(question, range(given.questions)))
        run = [*command(address, questions, folder / "run", 32), "--budget.calls"]
        subprocess.run([*run, "20"], check=False)
        trees = folder / "run/trees.jsonl"
        for old in (trees, index_of(trees)):
            old.unlink(missing_ok=True)
        write(trees, given.trees, given.nodes)
        size = trees.stat().st_size / 2**20
        process, took, cores, first = begun([*run, str(given.more)], address)
        last = first
        while process.poll() is None:
            last = max(last, process.memory_info().rss / 2**20)
            time.sleep(0.05)
        calls = told(address).calls
        if process.returncode != BudgetReached.exit_code:
            raise SystemExit(f"the run ended with {process.returncode}")
    sys.stdout.write(
        f"{given.questions:,} questions, {given.trees:,} trees ({size:,.0f} MiB)\n"
        f"first call after {took:.1f} s ({cores:.1f} s of a processor), {first:,.0f} MiB then\n"
        f"{last:,.0f} MiB at most within {calls:,} further calls\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
