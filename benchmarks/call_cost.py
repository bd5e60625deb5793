"""What a call of `steprag generate` costs this processor: an endpoint of its own process answers after 0.2 seconds.

    python -m benchmarks.call_cost [--questions 120 360] [--concurrency 64]

Two runs of different length, so that the start-up, which both have, is not counted: milliseconds of processor a call.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.slots_speed import command, endpoint, told
from steprag.records.jsonl import write_records
from steprag.types import Question


def spent() -> float:
    """CPU seconds of this process and its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, nargs=2, default=[120, 360])
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args(argv)
    seen: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder, endpoint(0.2) as address:
        for count in given.questions:
            file, before = Path(folder) / f"{count}.jsonl", spent()
            write_records(file, [Question(f"q{i}", f"Which thing is thing {i}?", ("lek",)) for i in range(count)])
            subprocess.run(command(address, file, Path(folder) / f"run-{count}", given.concurrency), check=True)
            seen.append((told(address, clear=True).calls, spent() - before))
    (calls, seconds), (more_calls, more_seconds) = seen
    cost = 1000 * (more_seconds - seconds) / (more_calls - calls)
    sys.stdout.write(f"{more_calls} calls in {more_seconds:.1f} s of processor; {cost:.2f} ms a call\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
