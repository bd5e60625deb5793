"""What a call of `steprag generate` costs this processor: an endpoint of its own process answers after 0.2 seconds.

    python -m benchmarks.call_cost [--questions 120 360] [--concurrency 64] [--latency 0.2]
    python -m benchmarks.call_cost --whole 10000 --latency 0.02

Two runs of different length, so that the start-up, which both have, is not counted: milliseconds of processor a call.
`--whole`: one run of so many questions, 64 calls each, killed when 97 of 100 calls are made and started again: calls
and memory over time, seconds from that start to the next call, bytes on the disk.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks.loads import as_options, resident
from benchmarks.slots_speed import asked, command, endpoint, told

CALLS = 64
LIMITS = {key: str(CALLS) for key in ("tree.calls", "search.rollouts", "search.contrast", "search.hopeless")}


def whole(address: str, folder: Path, given: argparse.Namespace) -> Iterator[str]:
    """The lines of the long run."""
    line = command(address, asked(folder, given.whole), folder / "run", given.concurrency, *as_options(LIMITS))
    began, run = time.perf_counter(), subprocess.Popen(line)
    while run.poll() is None and (made := told(address).calls) < 0.97 * CALLS * given.whole:
        yield f"{time.perf_counter() - began:7.0f} s {made:>9,} calls {resident(run.pid):6.0f} MiB"
        time.sleep(min(20, given.whole / 50))
    run.kill()
    run.wait()
    seen, again = told(address), time.perf_counter()
    yield f"{seen.calls / seen.seconds:.0f} calls a second; killed after {seen.calls:,} calls"
    run = subprocess.Popen(line)
    while run.poll() is None and told(address).calls == seen.calls:
        time.sleep(0.1)
    yield f"{time.perf_counter() - again:.1f} s from the new start to the next call, {resident(run.pid):.0f} MiB"
    run.wait()
    yield f"ended {time.perf_counter() - again:.0f} s after the new start; {told(address).again} calls were sent twice"
    for file in sorted((folder / "run").iterdir()):
        yield f"{file.stat().st_size / 2**20:9.1f} MiB {file.name}"


def short(address: str, folder: Path, given: argparse.Namespace) -> Iterator[str]:
    """The line of the two short runs."""
    seen: list[tuple[int, float]] = []
    for count in given.questions:
        file, before = asked(folder, count), sum(getrusage(RUSAGE_CHILDREN)[:2])
        subprocess.run(command(address, file, folder / f"run-{count}", given.concurrency), check=True)
        seen.append((told(address, clear=True).calls, sum(getrusage(RUSAGE_CHILDREN)[:2]) - before))
    (calls, seconds), (more_calls, more_seconds) = seen
    cost = 1000 * (more_seconds - seconds) / (more_calls - calls)
    yield f"{more_calls} calls in {more_seconds:.1f} s of processor; {cost:.2f} ms a call"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--questions", type=int, nargs=2, default=[120, 360])
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds a call takes")
    parser.add_argument("--whole", type=int, help="questions of a long run, which is killed near its end")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, endpoint(given.latency) as address:
        for line in (whole if given.whole else short)(address, Path(folder), given):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
