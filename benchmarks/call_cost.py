"""What a call of `steprag generate` costs this processor: an endpoint of its own process answers after 0.2 seconds.

    python -m benchmarks.call_cost [--questions 120 360] [--concurrency 64] [--latency 0.2]
    python -m benchmarks.call_cost --whole 10000 --latency 0.02

Two runs of different length, so that the start-up, which both have, is not counted: milliseconds of processor a call.
`--whole`: one run of so many questions, 64 calls each, killed when 97 of 100 calls are made and started again: calls
and memory over time, seconds from that start to the next call, bytes on the disk.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loads import as_options, resident
from benchmarks.slots_speed import command, endpoint, told
from steprag.records.jsonl import write_records
from steprag.types import Question

CALLS = 64


def spent() -> float:
    """CPU seconds of this process and its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def asked(folder: Path, count: int) -> Path:
    """A file of so many questions."""
    write_records(folder / "asked.jsonl", [Question(f"q{i}", f"Which thing is thing {i}?", ("lek",))
                                           for i in range(count)])  # fmt: skip
    return folder / "asked.jsonl"


def whole(address: str, folder: Path, given: argparse.Namespace) -> None:
    keys = ("tree.calls", "search.rollouts", "search.contrast", "search.hopeless")
    line = command(address, asked(folder, given.whole), folder / "run", given.concurrency,
                   *as_options(dict.fromkeys(keys, str(CALLS))))  # fmt: skip
    began, run, most = time.perf_counter(), subprocess.Popen(line), 0.97 * CALLS * given.whole
    while run.poll() is None and (made := told(address).calls) < most:
        show(f"{time.perf_counter() - began:7.0f} s {made:>9,} calls {resident(run.pid):6.0f} MiB")
        time.sleep(min(20, given.whole / 50))
    run.kill()
    run.wait()
    seen, again = told(address), time.perf_counter()
    show(f"{seen.calls / seen.seconds:.0f} calls a second; killed after {seen.calls:,} calls")
    run = subprocess.Popen(line)
    while run.poll() is None and told(address).calls == seen.calls:
        time.sleep(0.1)
    show(f"{time.perf_counter() - again:.1f} s from the new start to the next call, {resident(run.pid):.0f} MiB")
    run.wait()
    show(f"{told(address).again} calls were sent twice; ended {time.perf_counter() - again:.0f} s after the new start")
    for file in sorted((folder / "run").iterdir()):
        show(f"{file.stat().st_size / 2**20:9.1f} MiB {file.name}")


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--questions", type=int, nargs=2, default=[120, 360])
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds a call takes")
    parser.add_argument("--whole", type=int, help="questions of a long run, which is killed near its end")
    given = parser.parse_args(argv)
    seen: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder, endpoint(given.latency) as address:
        if given.whole:
            whole(address, Path(folder), given)
            return 0
        for count in given.questions:
            file, before = asked(Path(folder), count), spent()
            subprocess.run(command(address, file, Path(folder) / f"run-{count}", given.concurrency), check=True)
            seen.append((told(address, clear=True).calls, spent() - before))
    (calls, seconds), (more_calls, more_seconds) = seen
    cost = 1000 * (more_seconds - seconds) / (more_calls - calls)
    show(f"{more_calls} calls in {more_seconds:.1f} s of processor; {cost:.2f} ms a call")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
