"""Search service, chat service and viewer at twice the load that they can take, and with 10,000 connections.

    python -m benchmarks.soak --index DIR [--services search chat view] [--seconds 600] [--connections 10000]

Each service runs in a process of its own. Its capacity is measured first: requests a second of 32 clients that wait for
their answers. Then requests are sent at twice that rate, answered or not. What was accepted must be answered: a search
or a page by 200, a turn of the chat by its end; 429 is a refusal, anything else counts as lost. Then so many
connections are opened that each send half a header, and meanwhile whole requests are asked. Error bodies are looked
through for paths and tracebacks. Memory is the service's resident set, in MiB: warm, after the load, after the
connections. The chat's engine is the double of `serve_load.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from benchmarks.serve_load import TOKEN, apart, as_options, asking, engine, resident
from steprag import atlas

CLIENTS = 32
CAPACITY_SECONDS = 10.0
TELLING = re.compile(rb"Traceback|File \"|site-packages|/(?:home|root|tmp|work|usr)/")
"""What no error body may hold."""
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
READ_SECONDS = 120


@dataclass
class Load:
    """A running service under test. `became`: what its requests came to. `seconds`: of those answered well."""

    url: str
    pid: int
    became: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)

    @property
    def mib(self) -> int:
        """Its resident set."""
        return int(resident(self.pid))

    async def judge(self, reply: aiohttp.ClientResponse, good: int = 200) -> bytes:
        """Counts a reply by what it is; its body."""
        body = await reply.read()
        self.became["answered" if reply.status == good else f"{reply.status}"] += 1
        if reply.status >= 400 and TELLING.search(body):
            self.leaks.append(body[:200].decode("utf-8", "replace"))
        return body


Ask = Callable[[Load, aiohttp.ClientSession, int], Awaitable[None]]


async def ask_search(load: Load, session: aiohttp.ClientSession, number: int) -> None:
    """A search that no other was like."""
    body = {"queries": [f"What is the capital of country {number}?"], "topk": 3}
    async with session.post(f"{load.url}/retrieve", json=body) as reply:
        found = await load.judge(reply)
    if reply.status == 200 and len(json.loads(found)["result"][0]) != 3:
        load.became["lost: no passages"] += 1


async def ask_chat(load: Load, session: aiohttp.ClientSession, number: int) -> None:
    """A turn, until its last event."""
    async with session.post(f"{load.url}/api/turns", json={"question": f"Capital of country {number}?"}) as reply:
        accepted = await load.judge(reply, 201)
    if reply.status != 201:
        return
    turn, last = json.loads(accepted)["turn"], b""
    async with session.get(f"{load.url}/api/turns/{turn}/events") as events:
        async for line in events.content:
            last = line if line.startswith(b"data") else last
    load.became["ended" if b'"turn.finished"' in last else f"lost: {last.decode()[:40]}"] += 1


async def ask_view(load: Load, session: aiohttp.ClientSession, number: int) -> None:
    """A page of the list, or a tree."""
    (run,) = await runs_of(load, session)
    path = f"rows/trees?run={run}&from={number % 80}" if number % 3 else f"tree?run={run}&line={1 + number % 100}"
    async with session.get(f"{load.url}/api/{path}") as reply:
        await load.judge(reply)


_RUNS: dict[str, list[str]] = {}


async def runs_of(load: Load, session: aiohttp.ClientSession) -> list[str]:
    """The names of the viewer's runs, asked once."""
    if load.url not in _RUNS:
        async with session.get(f"{load.url}/api/runs") as reply:
            _RUNS[load.url] = [run["key"] for run in (await reply.json())["runs"]]
    return _RUNS[load.url]


def session() -> aiohttp.ClientSession:
    """A client without a bound on connections."""
    timeout = aiohttp.ClientTimeout(total=READ_SECONDS)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers)


async def one(ask: Ask, load: Load, client: aiohttp.ClientSession, number: int) -> None:
    try:
        await ask(load, client, number)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        load.became[f"lost: {type(error).__name__}"] += 1


async def capacity(ask: Ask, load: Load, numbers: Iterator[int]) -> float:
    """Requests a second of clients that each wait for their answer."""
    ends, done = time.perf_counter() + CAPACITY_SECONDS, 0

    async def client(own: aiohttp.ClientSession) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await one(ask, load, own, next(numbers))
            done += 1

    async with session() as own:
        begun = time.perf_counter()
        await asyncio.gather(*(client(own) for _ in range(CLIENTS)))
        return done / (time.perf_counter() - begun)


async def soak(ask: Ask, load: Load, numbers: Iterator[int], rate: float, seconds: float) -> int:
    """Requests at a rate, whether earlier ones are answered or not; how many."""
    sent: set[asyncio.Task[None]] = set()
    begun = time.perf_counter()
    async with session() as own:
        for number in count():
            if number / rate > seconds:
                break
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            task = asyncio.create_task(one(ask, load, own, next(numbers)))
            sent.add(task)
            task.add_done_callback(sent.discard)
        await asyncio.gather(*sent)
    return number


async def crowd(ask: Ask, load: Load, numbers: Iterator[int], connections: int) -> tuple[int, int]:
    """Opens connections that send half a header each; how many stand at once, and how many were opened."""
    port, held, opened, most = int(load.url.rsplit(":", 1)[1]), [], 0, 0

    async def open_one() -> None:
        nonlocal opened
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 30)
        except (OSError, TimeoutError):
            return
        opened += 1
        writer.write(HALF)
        held.append((reader, writer))

    async with session() as own:
        for start in range(0, connections, 250):
            await asyncio.gather(*(open_one() for _ in range(min(250, connections - start))))
            await one(ask, load, own, next(numbers))
            most = max(most, sum(not reader.at_eof() for reader, _ in held))
    for _, writer in held:
        writer.transport.abort()
    return most, opened


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[Load]:
    """A service in a process of its own, ended with the block."""
    env = {**os.environ, "STEPRAG_TOKEN": TOKEN}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env) as service,
    ):
        assert service.stdout
        try:
            yield Load(service.stdout.readline().strip().partition("/#")[0], service.pid)
        finally:
            service.terminate()
            service.wait()
            sys.stderr.write(f"{command[2]}: {log.seek(0, os.SEEK_END)} bytes of log\n")


@contextlib.contextmanager
def search_service(index: str, folder: str, *more: str) -> Iterator[Load]:
    """`steprag index serve`."""
    with started([sys.executable, "-m", "indexes.service.serve", "--index", index, "--port", "0", *more]) as load:
        yield load


@contextlib.contextmanager
def chat_service(index: str, folder: str) -> Iterator[Load]:
    """`steprag serve` before the double of an engine."""
    command = [sys.executable, "-m", "apps.chat.serve", "--index", index, "--out", folder, "--serve.port", "0"]
    with apart(engine, 8, 2.0) as port, started([*command, *as_options(asking(f"http://127.0.0.1:{port}", 8))]) as load:
        yield load


@contextlib.contextmanager
def view_service(index: str, folder: str) -> Iterator[Load]:
    """`steprag view` of the shipped trees."""
    trees = str(atlas.DATA / "trees.jsonl.gz")
    with started([sys.executable, "-m", "apps.viewer.view", trees, "--port", "0"]) as load:
        yield load


SERVICES: dict[str, tuple[Any, Ask]] = {
    "search": (search_service, ask_search), "chat": (chat_service, ask_chat), "view": (view_service, ask_view),
}  # fmt: skip


async def measured(load: Load, ask: Ask, seconds: float, connections: int) -> dict[str, Any]:
    """The figures of one service."""
    numbers = count()
    await capacity(ask, load, numbers)  # the first ones warm it
    rate, warm = await capacity(ask, load, numbers), load.mib
    load.became.clear()
    sent = await soak(ask, load, numbers, 2 * rate, seconds)
    await asyncio.sleep(5)
    loaded, became = load.mib, dict(load.became)
    load.became.clear()
    most, opened = await crowd(ask, load, numbers, connections)
    await asyncio.sleep(5)
    lost = sum(number for what, number in became.items() if what not in ("answered", "ended", "429"))
    return {
        "capacity": round(rate, 1), "seconds": seconds, "sent": sent, "became": became, "lost": lost,
        "connections": opened, "at once": most, "asked meanwhile": dict(load.became),
        "MiB": [warm, loaded, load.mib], "leaks": load.leaks[:3],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--services", nargs="+", choices=SERVICES, default=[*SERVICES])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--connections", type=int, default=10_000)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in given.services:
        service, ask = SERVICES[name]
        with tempfile.TemporaryDirectory() as folder, service(given.index, folder) as load:
            found = asyncio.run(measured(load, ask, given.seconds, given.connections))
        sys.stdout.write(json.dumps({"service": name, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
