"""What many processes cost and bear: calls a second, bytes and repeated calls beside those of one process.

    python -m benchmarks.slots_speed [--questions 240] [--latency 0.2] [--concurrency 32] [--arms plain ray shards kill]

A process of its own answers every call after `--latency` seconds, by a script, and finds passages. Each arm is
`steprag generate` over the same questions: `plain`, `ray` (two slots), `shards` (two processes side by side, merged)
and `kill` (two slots, one of them killed after `--kill_after` calls). "share": calls a second, between the endpoint's
first and last call, of the `--concurrency` / `--latency` that are possible. "again": calls that were answered more
than once. "same": whether trees.jsonl is plain's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.request import urlopen

import psutil
from aiohttp import web

from benchmarks.loads import as_options, asking
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.fakes import Script, chat_reply


@dataclass(frozen=True)
class Told:
    """What the endpoint saw of an arm."""

    calls: int
    again: int
    seconds: float


def step(prompt: str, draw: int) -> str:
    """A step that the prompt allows."""
    last, kind = prompt.rsplit("\n", 1)[-1], draw % 10
    if last == "Read the passages.":
        return f"Based on the query, the relevant evidence is <evidence> Fact {draw % 9}. </evidence>"
    if last != "Answer now." and kind < 7:
        return f"So the next query is <query> thing {draw // 10 % 50} </query>"
    return f"So the answer is <answer> {('lek', 'sol')[draw // 10 % 2]} </answer>"


def answer(port: Connection, latency: float, script: Script) -> None:
    """The endpoint and the retriever, until the process is ended."""
    reply = chat_reply(script)
    seen: Counter[int] = Counter()  # hashes of requests
    moments: list[float] = []  # the first and the last

    async def chat(request: web.Request) -> web.Response:
        body = await request.read()
        asked = json.loads(body)
        moments[:] = moments[:1] or [time.perf_counter()]
        await asyncio.sleep(latency)
        moments[1:] = [time.perf_counter()]
        seen[hash(body)] += 1
        return web.json_response(reply(asked)[1])

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "double", "object": "model"}]})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"fingerprint": "things", "mode": "dense"})

    async def retrieve(request: web.Request) -> web.Response:
        asked = await request.json()
        first = int(asked["queries"][0].split()[-1])
        found = [{"document": {"id": str(i), "title": f"Thing {i}", "text": f"Fact {i} stands here."}, "score": 1 / i}
                 for i in range(first + 1, first + 1 + asked["topk"])]  # fmt: skip
        return web.json_response({"result": [found]})

    async def told(request: web.Request) -> web.Response:
        """What was seen since the last time that this was asked with `clear`."""
        calls = sum(seen.values())
        facts = {
            "calls": calls,
            "again": calls - len(seen),
            "seconds": max(moments, default=0) - min(moments, default=0),
        }
        if "clear" in request.query:
            seen.clear()
            moments.clear()
        return web.json_response(facts)

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models),
                        web.get("/health", health), web.post("/retrieve", retrieve),
                        web.get("/told", told)])  # fmt: skip
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


@contextmanager
def endpoint(latency: float, script: Script = step) -> Iterator[str]:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=answer, args=(there, latency, script), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def told(address: str, *, clear: bool = False) -> Told:
    with urlopen(f"{address}/told{'?clear=1' if clear else ''}") as reply:
        return Told(**json.load(reply))


def asked(folder: Path, count: int) -> Path:
    """A file of so many questions."""
    rows = [Question(f"q{i}", f"Which thing is thing {i}?", ("lek",)) for i in range(count)]
    write_records(folder / "questions.jsonl", rows)
    return folder / "questions.jsonl"


def command(address: str, questions: Path, out: Path, concurrency: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "apps.commands", "generate", "--questions", str(questions), "--index", address,
            "--out", str(out), "--search.rollouts", "4", "--search.extra", "0",
            *as_options(asking(address, concurrency)), *more]  # fmt: skip


def slot_processes(driver: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(driver).children(recursive=True) if each.name().startswith("ray::Slot")]


def run_arm(arm: str, address: str, questions: Path, out: Path, given: argparse.Namespace) -> None:
    """Runs one arm into `out`."""
    if arm == "shards":
        parts = [out.with_name(f"shard-{place}") for place in range(2)]
        running = [
            subprocess.Popen(command(address, questions, part, given.concurrency, "--shard", f"{place}/2"))
            for place, part in enumerate(parts)
        ]
        if any(process.wait() for process in running):
            raise SystemExit("a shard failed")
        merge = [sys.executable, "-m", "apps.commands", "merge", str(out), *map(str, parts)]
        subprocess.run(merge, check=True)
        return
    more = [] if arm == "plain" else ["--ray", "2"]
    process = subprocess.Popen(command(address, questions, out, given.concurrency, *more))
    if arm == "kill":
        while told(address).calls < given.kill_after:
            time.sleep(0.2)
        slot_processes(process.pid)[0].kill()
    if process.wait():
        raise SystemExit(f"arm {arm} failed")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, default=240)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds a call takes")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--kill_after", type=int, default=1000, help="calls after which a slot is killed")
    parser.add_argument("--arms", nargs="+", default=["plain", "ray", "shards", "kill"])
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, endpoint(given.latency) as address:
        questions = asked(Path(folder), given.questions)
        trees: dict[str, bytes] = {}
        lines = [f"{'arm':<8} {'calls':>7} {'again':>6} {'calls/s':>8} {'share':>6} {'seconds':>8}  same"]
        for arm in given.arms:
            out, began = Path(folder) / arm, time.perf_counter()
            run_arm(arm, address, questions, out, given)
            took, seen = time.perf_counter() - began, told(address, clear=True)
            trees[arm] = (out / "trees.jsonl").read_bytes()
            pace = seen.calls / seen.seconds
            share = pace * given.latency / given.concurrency
            same = "yes" if trees[arm] == trees[given.arms[0]] else "NO"
            lines.append(f"{arm:<8} {seen.calls:>7} {seen.again:>6} {pace:>8.1f} {share:>6.0%} {took:>8.1f}  {same}")
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
