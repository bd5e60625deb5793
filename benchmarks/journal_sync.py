"""What it costs to have the journal on the disk: calls a second without, with group commit, and with one write each.

    python benchmarks/journal_sync.py [--calls 3000] [--seconds 0.05 0.5] [--folder DIR]

Calls are written as a run writes them: one row when a request leaves, the reply into it when it comes, 64 at a time.
The arms take turns over --rounds; a figure is the median. `none` leaves the disk to the system, `group S` is
`journal.sync_seconds`, `each` is SQLite's `synchronous=FULL`, where every commit waits for the disk. --folder says on
which file system.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from steprag.batch.journal import Journal
from steprag.types import Completion, Question, Sample, Usage

AT_ONCE = 64
SAMPLE = Sample((Completion("So the next query is <query> the river of the town </query>", "stop"),) * 3,
                Usage(1, 900, 60, 400))  # fmt: skip


async def write(path: Path, calls: int, seconds: float, each: bool) -> float:
    """Calls a second."""
    journal = Journal(path, sync_seconds=seconds)
    if each:
        journal._db.write("PRAGMA synchronous=FULL")  # pyright: ignore[reportPrivateUsage]  # not offered, for its price
    async with journal:
        journal.question(Question("q", "Where?", ("here",)))
        began = time.perf_counter()
        for first in range(0, calls, AT_ONCE):
            keys = [("policy", f"state {place}", 0, 3) for place in range(first, min(calls, first + AT_ONCE))]
            for key in keys:
                journal.sent("q", key)
            await asyncio.sleep(0)
            for key in keys:
                journal.replied("q", key, SAMPLE)
        return calls / (time.perf_counter() - began)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.05, 0.5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args(argv)
    arms = {"none": (0.0, False), **{f"group {s}": (s, False) for s in given.seconds}, "each": (0.0, True)}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for number in range(given.rounds):
            for name, (seconds, each) in arms.items():
                calls = min(given.calls, 300) if each else given.calls
                rates[name].append(asyncio.run(write(Path(folder) / f"{name}-{number}.sqlite", calls, seconds, each)))
    best = statistics.median(rates["none"])
    for name, found in rates.items():
        sys.stdout.write(
            f"{name:<12}{statistics.median(found):>10,.0f} calls/s{statistics.median(found) / best:>8.0%}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
