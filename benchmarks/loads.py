"""What the two loads of real use share, and their page.

    python -m benchmarks.research_week --out runs/week     # an hour each; --minutes, or STEPRAG_LOAD_MINUTES
    python -m benchmarks.service_day --out runs/day
    python -m benchmarks.loads runs/week runs/day > docs/figures/loads.md

A load keeps its rows in `figures.json` of its folder, each as soon as it is known. A row may have a bound; a load ends
with 1 where one does not hold. Loads keep themselves to one thread a process, low priority, and the bounds below.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.serve_load import resident
from steprag import atlas
from steprag.records.jsonl import read_json, write_json
from tests.fakes import descendants

MEMORY_MIB, DISK_MIB = 6 * 1024, 4 * 1024
"""Resident memory of all processes of a load, and what its folder may hold."""
OVERTIME = 2.0
"""A load that takes so many times its minutes is ended."""
TOKEN = "a-token-of-the-loads"


@dataclass
class Load:
    """A load that runs: its folder, its time, its rows so far."""

    title: str
    folder: Path
    minutes: float
    rows: list[dict[str, str]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    peak_mib: float = 0.0
    busy: list[float] = field(default_factory=list)
    """Processes of the machine that wanted a core, ours and others', every two seconds."""
    ended_by: str = ""
    status: int = 1
    """The exit code."""

    def row(self, what: str, value: object, bound: str = "", good: bool = True) -> None:
        """Adds a row. `bound`: what the value had to be; `good`: whether it is."""
        held = ("yes" if good else "NO") if bound else ""
        self.rows.append({"what": what, "value": str(value), "bound": bound, "held": held})
        self.say(f"{what}: {value}" + (f" (must be {bound}: {held})" if bound else ""))
        self._keep("runs")

    def say(self, words: str) -> None:
        sys.stderr.write(f"{self.seconds:7.0f} s  {words}\n")
        sys.stderr.flush()

    def start(self) -> None:
        """The minutes count from here: what the load needs is made."""
        self.say("begins")
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.begun

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the minutes is over."""
        return share * 60 * self.minutes - self.seconds

    def close(self) -> None:
        """Keeps the last rows."""
        self.row("memory of all its processes at most, MiB", round(self.peak_mib), f"at most {MEMORY_MIB:,}",
                 self.peak_mib <= MEMORY_MIB)  # fmt: skip
        self.row(
            "processes that wanted a core, ours and others', on average",
            f"{sum(self.busy) / max(1, len(self.busy)):.1f}",
        )
        self.row("minutes", f"{self.seconds / 60:.1f}", "not ended from outside", not self.ended_by)
        self._keep("ended" if not self.ended_by else self.ended_by)
        self.status = int(any(row["held"] == "NO" for row in self.rows))

    def _keep(self, status: str) -> None:
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, niceness {os.nice(0)}"
        facts = {"title": self.title, "minutes": self.minutes, "status": status, "machine": machine,
                 "date": datetime.date.today().isoformat()}  # fmt: skip
        write_json(self.folder / "figures.json", {**facts, "rows": self.rows})


@contextmanager
def loading(title: str, given: argparse.Namespace) -> Iterator[Load]:
    """A load in an empty folder, watched: beyond its bounds all processes that it started are killed."""
    given.out.mkdir(parents=True, exist_ok=True)
    if any(given.out.iterdir()):
        raise SystemExit(f"{given.out} is not empty; give another --out")
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", STEPRAG_TOKEN=TOKEN)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so its children
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.nice(max(0, 10 - os.nice(0)))
    load = Load(title, given.out.resolve(), given.minutes)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(2):
            mib = sum(mib_of(pid) for pid in (os.getpid(), *descendants(os.getpid())))
            load.peak_mib = max(load.peak_mib, mib)
            load.busy.append(os.getloadavg()[0])
            disk = mib_in(load.folder)
            for what, found, most in (("memory, MiB", mib, MEMORY_MIB), ("disk, MiB", disk, DISK_MIB),
                                      ("seconds", load.seconds, 60 * max(load.minutes, 5) * OVERTIME)):  # fmt: skip
                if found > most:
                    load.ended_by = f"ended: {what} {found:.0f}, at most {most:.0f}"
                    load.say(load.ended_by)
                    end_all()
                    os.kill(os.getpid(), signal.SIGINT)
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield load
    except BaseException as error:
        load.ended_by = load.ended_by or f"broke: {type(error).__name__} {error}"
        raise
    finally:
        over.set()
        thread.join()
        end_all()
        load.close()


def end_all() -> None:
    """Ends all processes that this one began."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def mib_of(pid: int) -> float:
    """Resident memory; 0 of a process that is gone."""
    try:
        return resident(pid)
    except (OSError, StopIteration):
        return 0.0


def mib_in(folder: Path) -> float:
    """What the files hold that are there at this moment."""
    size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(os.path.join(where, name)).st_size
    return size / 2**20


def begin(log: Path, *argv: object, module: str = "steprag.cli") -> subprocess.Popen[bytes]:
    """A command in a process of its own, its output in `log`."""
    with log.open("ab") as stream:
        command = [sys.executable, "-m", module, *map(str, argv)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)


def done(log: Path, *argv: object) -> bool:
    """Whether the command ended with 0."""
    return begin(log, *argv).wait() == 0


def options(text: str | None) -> argparse.Namespace:
    """`--minutes` and `--out`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("STEPRAG_LOAD_MINUTES", "60")))
    parser.add_argument("--out", type=Path, required=True, help="a folder that is empty, or not there yet")
    return parser.parse_args()


def atlas_corpus(folder: Path, minutes: float) -> Path:
    """Atlas' passages, of a short load the first ones."""
    lines = atlas.path("corpus").read_text().splitlines(keepends=True)
    file = folder / "corpus.jsonl"
    file.write_text("".join(lines[: max(200, min(len(lines), int(200 * minutes)))]))
    return file


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def slope(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Rise of y per x of all groups, each with a level of its own; its standard error."""
    points = []
    for group in groups:
        middle = [sum(axis) / len(group) for axis in zip(*group, strict=True)] if group else []
        points += [(x - middle[0], y - middle[1]) for x, y in group]
    spread = sum(x * x for x, _ in points)
    free = len(points) - len(groups) - 1
    if not spread or free < 1:
        return float("nan"), float("nan")
    rise = sum(x * y for x, y in points) / spread
    return rise, (sum((y - rise * x) ** 2 for x, y in points) / free / spread) ** 0.5


def page(folders: Sequence[Path]) -> str:
    """The rows of loads as Markdown."""
    parts = ["# Figures of two loads of real use", "A research week in small, and a day of the chat service.",
             "    " + "\n    ".join(line.strip() for line in (__doc__ or "").splitlines()[2:5])]  # fmt: skip
    for folder in folders:
        told = read_json(folder / "figures.json")
        state = "" if told["status"] == "ended" else f" **{told['status']}**"
        parts.append(f"## {told['title']}")
        parts.append(f"{told['minutes']:g} minutes, {told['date']}, {told['machine']}.{state}")
        rows = [f"| {row['what']} | {row['value']} | {row['bound']} | {row['held']} |" for row in told["rows"]]
        parts.append("\n".join(["| what | found | must be | holds |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page([Path(name) for name in sys.argv[1:]]))
