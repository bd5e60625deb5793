"""What the two loads of real use share, and their page.

    python -m benchmarks.research_week --out runs/week     # an hour each; --minutes, or STEPRAG_LOAD_MINUTES
    python -m benchmarks.service_day --out runs/day
    python -m benchmarks.loads runs/week runs/day > docs/figures/loads.md

A load keeps its rows in `figures.json` of its folder, each as soon as it is known. A row may have a bound; a load ends
with 1 where one does not hold. Loads keep themselves to one thread a process, low priority, and the bounds below.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from inference.scoring.tables import markdown
from steprag import atlas
from steprag.engines.launch import free_port
from steprag.records.jsonl import read_json, write_json
from tests.fakes import descendants

MEMORY_MIB, DISK_MIB = 6 * 1024, 4 * 1024
"""Resident memory of all processes of a load, and what its folder may hold."""
OVERTIME = 2.0
"""A load that takes so many times its minutes is ended."""
TOKEN = "a-token-of-the-loads"


@dataclass
class Load:
    """A load that runs: its folder, its time, its rows so far. `busy`: the machine's load, now and then. `why`: what
    ended it before its time. `status`: its exit code.
    """

    title: str
    folder: Path
    minutes: float
    rows: list[dict[str, str]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    peak_mib: float = 0.0
    busy: list[float] = field(default_factory=list)
    why: str = ""
    status: int = 1

    def row(self, what: str, value: object, bound: str = "", good: bool = True) -> None:
        """Adds a row. `bound`: what the value had to be; `good`: whether it is."""
        held = ("yes" if good else "NO") if bound else ""
        self.rows.append({"what": what, "value": str(value), "bound": bound, "held": held})
        self.say(" | ".join(self.rows[-1].values()))
        facts = {"title": self.title, "minutes": self.minutes, "status": self.why or "runs",
                 "machine": f"{os.cpu_count()} cores", "date": datetime.date.today().isoformat()}  # fmt: skip
        write_json(self.folder / "figures.json", {**facts, "rows": self.rows})

    def say(self, words: str) -> None:
        sys.stderr.write(f"{self.seconds:7.0f} s  {words}\n")
        sys.stderr.flush()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.begun

    def left(self, share: float) -> float:
        """Seconds until this share of the minutes is over."""
        return share * 60 * self.minutes - self.seconds

    def watch(self, over: threading.Event) -> None:
        """Ends the load where it is beyond its bounds."""
        while not over.wait(2):
            mib = sum(map(resident, (os.getpid(), *descendants(os.getpid()))))
            self.peak_mib = max(self.peak_mib, mib)
            self.busy.append(os.getloadavg()[0])
            size = subprocess.run(["du", "-sm", self.folder], capture_output=True, check=False).stdout.split()
            bounds = ((mib, MEMORY_MIB, "MiB of memory"), (float(size[0]) if size else 0, DISK_MIB, "MiB of disk"),
                      (self.seconds / 60, max(self.minutes, 5) * OVERTIME, "minutes"))  # fmt: skip
            for found, most, what in bounds:
                if found > most:
                    self.why = f"ended: {found:.0f} {what}, at most {most:.0f}"
                    os.kill(os.getpid(), signal.SIGTERM)
                    return


@contextmanager
def loading(title: str, given: argparse.Namespace) -> Iterator[Load]:
    """A load in an empty folder, watched. All processes that it began end with it."""
    given.out.mkdir(parents=True, exist_ok=True)
    if any(given.out.iterdir()):
        raise SystemExit(f"{given.out} is not empty; give another --out")
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", STEPRAG_TOKEN=TOKEN)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so its children
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.nice(max(0, 10 - os.nice(0)))
    load, over = Load(title, given.out.resolve(), given.minutes), threading.Event()
    thread = threading.Thread(target=load.watch, args=(over,), daemon=True)
    thread.start()
    try:
        yield load
    except BaseException as error:
        load.why = load.why or f"broke: {type(error).__name__} {error}"
        raise
    finally:
        over.set()
        thread.join()
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        load.row("memory of its processes at most, MiB", round(load.peak_mib))
        load.row("load average of the machine", f"{sum(load.busy) / max(1, len(load.busy)):.1f}")
        load.why = load.why or "ended"
        load.row("minutes", f"{load.seconds / 60:.1f}", "not ended from outside", load.why == "ended")
        load.status = int(any(row["held"] == "NO" for row in load.rows))


def begin(log: Path, *argv: object) -> subprocess.Popen[bytes]:
    """A command of steprag in a process of its own, its output in `log`."""
    command = [sys.executable, "-m", "apps.commands", *map(str, argv)]
    with log.open("ab") as stream:
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


def built(load: Load, kinds: Sequence[str]) -> list[Path]:
    """Indexes of these types over Atlas' passages, of a short load the first ones; the first with BM25 too."""
    lines = atlas.path("corpus").read_text().splitlines(keepends=True)
    corpus, folders = load.folder / "corpus.jsonl", [load.folder / kind for kind in kinds]
    corpus.write_text("".join(lines[: max(200, min(len(lines), int(200 * load.minutes)))]))
    for folder in folders:
        more = ["--hybrid"] if folder == folders[0] else ["--vectors_from", folders[0]]
        argv = ["index", "build", "--corpus", corpus, "--out", folder, "--type", folder.name, *more]
        if not done(load.folder / "commands.log", *argv):
            raise SystemExit("index build failed: commands.log")
    load.begun = time.monotonic()
    return folders


def engine(port: int, slots: int, token_ms: float, say: Callable[[list[dict[str, str]]], str]) -> None:
    """Serves the double until it is killed; `say` makes its replies."""
    free = asyncio.Semaphore(slots)

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = say(body["messages"])
        words = [word if not place else f" {word}" for place, word in enumerate(text.split(" "))]
        usage = {"prompt_tokens": 100, "completion_tokens": len(words), "total_tokens": 100 + len(words)}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "double"}
        async with free:
            if not body.get("stream"):
                await asyncio.sleep(len(words) * token_ms / 1000)
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                return web.json_response({**head, "choices": [choice], "usage": usage})
            reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            with suppress(ConnectionResetError):  # the client left
                await reply.prepare(request)
                start = time.perf_counter()
                for place, word in enumerate(words, 1):
                    await asyncio.sleep(max(0.0, start + place * token_ms / 1000 - time.perf_counter()))
                    choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                    await reply.write(f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode())
                last = {"index": 0, "delta": {}, "finish_reason": "stop"}
                await reply.write(f"data: {json.dumps({**head, 'choices': [last], 'usage': usage})}\n\n".encode())
                await reply.write(b"data: [DONE]\n\n")
            return reply

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "double"}]})

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", complete), web.get("/v1/models", models)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


@contextmanager
def apart(target: Callable[..., None], *given: Any) -> Iterator[int]:
    """Has `target(port, *given)` serve a double in a process of its own; the port."""
    port = free_port("127.0.0.1")
    process = multiprocessing.get_context("spawn").Process(target=target, args=(port, *given), daemon=True)
    process.start()
    try:
        yield port
    finally:
        process.kill()
        process.join()


def asking(address: str, concurrency: int) -> dict[str, str]:
    """Keys that have a policy ask a double."""
    return {"policy.base_url": f"{address}/v1", "policy.model": "double", "policy.engine": "openai",
            "policy.concurrency": str(concurrency)}  # fmt: skip


def as_options(keys: dict[str, str]) -> list[str]:
    return [part for key, value in keys.items() for part in (f"--{key}", value)]


def p95(values: list[float]) -> float:
    return sorted(values)[max(0, int(0.95 * len(values)) - 1)]


def resident(pid: int) -> float:
    """MiB of memory that a process holds; 0 of one that is gone."""
    file, lines = Path(f"/proc/{pid}/status"), list[str]()
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = file.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def slope(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Rise of y per x of all groups, each with a level of its own; its standard error."""
    points = []
    for group in groups:
        x0, y0 = (sum(axis) / len(group) for axis in zip(*group, strict=True))
        points += [(x - x0, y - y0) for x, y in group]
    spread, free = sum(x * x for x, _ in points), len(points) - len(groups) - 1
    if not spread or free < 1:
        return float("nan"), float("nan")
    rise = sum(x * y for x, y in points) / spread
    return rise, (sum((y - rise * x) ** 2 for x, y in points) / free / spread) ** 0.5


def page(folders: Sequence[str]) -> str:
    """The rows of loads as Markdown."""
    commands = "\n".join((__doc__ or "").splitlines()[2:5])
    parts = ["# Figures of two loads of real use", "A research week in small, and a day of the chat service.", commands]
    for folder in folders:
        told = read_json(Path(folder) / "figures.json")
        state = "" if told["status"] == "ended" else f" **{told['status']}**"
        parts += [f"## {told['title']}", f"{told['minutes']:g} minutes, {told['date']}, {told['machine']}.{state}"]
        rows = ([str(row[key]) for key in ("what", "value", "bound", "held")] for row in told["rows"])
        parts.append(markdown(["what", "found", "must be", "holds"], rows).rstrip())
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1:]))
