"""The service under load: 64 clients at once beside one-by-one calls, then twice the load that it can take.

    python benchmarks/service_load.py --index DIR --questions FILE [--requests 400] [--soak 300] [--mode hybrid]

A service process is started on the index. Rounds of one client and of 64 take turns, every query a new one, so that
neither memory nor the machine's mood favours a side; the ratio is of the rounds' medians. The soak then sends requests
at twice the rate of the 64 clients, whether earlier ones are answered or not: each must be answered, by 200 with
passages of this index or by 429.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2

from indexes.commands.evaluate import read_judged

CLIENTS, ROUNDS, TOP_K = 64, 3, 3
WAITING = 512
"""Queries that the service lets wait; more are refused with 429."""
IDLE = 5
"""Seconds after which an unused connection is not used again, as HTTP clients do: the service may be closing it."""


class Client:
    """One connection that is kept open. By hand, so that little of the machine is spent on asking."""

    def __init__(self, port: int) -> None:
        self._port, self.used = port, 0.0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, query: str) -> tuple[int, bytes]:
        """Status and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = json.dumps({"queries": [query], "topk": TOP_K, "return_scores": True}).encode()
        head = "POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
        answer = await reader.readexactly(length)
        self.used = time.perf_counter()
        return int(lines[0].split()[1]), answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def timed(port: int, queries: Sequence[str], clients: int) -> tuple[float, list[float]]:
    """Requests a second, and the seconds of each, for so many clients that each wait for their answer."""
    waiting, seconds = iter(queries), []

    async def work() -> None:
        client = Client(port)
        for query in waiting:
            start = time.perf_counter()
            status, body = await client.ask(query)
            seconds.append(time.perf_counter() - start)
            if status != 200 or len(json.loads(body)["result"][0]) != TOP_K:
                raise SystemExit(f"{status}: {body[:200]!r}")
        client.close()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    return len(queries) / (time.perf_counter() - start), seconds


async def soak(port: int, queries: Iterator[str], rate: float, seconds: float) -> tuple[Counter[str], list[float]]:
    """What became of requests that are sent at a rate, and the seconds of those answered by 200."""
    became: Counter[str] = Counter()
    took: list[float] = []
    idle: list[Client] = []

    async def send(query: str) -> None:
        while idle and time.perf_counter() - idle[-1].used > IDLE:
            idle.pop().close()
        client = idle.pop() if idle else Client(port)
        start = time.perf_counter()
        try:
            status, body = await asyncio.wait_for(client.ask(query), 120)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            became[f"lost: {type(error).__name__}"] += 1
            return
        idle.append(client)
        good = status != 200 or len(json.loads(body)["result"][0]) == TOP_K
        became[str(status) if good else "lost: no passages"] += 1
        if status == 200:
            took.append(time.perf_counter() - start)

    sent: set[asyncio.Task[None]] = set()
    begun = time.perf_counter()
    for number in itertools.count():
        due = begun + number / rate
        if due - begun > seconds:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(send(next(queries)))
        sent.add(task)
        task.add_done_callback(sent.discard)
    await asyncio.gather(*sent)
    for client in idle:
        client.close()
    return became, took


@contextlib.contextmanager
def service(index: Path, mode: str) -> Iterator[int]:
    command = [sys.executable, "-m", "indexes.service.serve", "--index", str(index), "--port", "0"]
    command += ["--retriever.mode", mode, "--limits.waiting", str(WAITING), "--limits.queries", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            url = child.stdout.readline().strip()
            while httpx2.get(f"{url}/health", timeout=60).status_code != 200:
                time.sleep(0.5)
            yield int(url.rsplit(":", 1)[1])
        finally:
            child.send_signal(signal.SIGTERM)


def percentile(seconds: Sequence[float], share: float) -> float:
    """In milliseconds."""
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


async def measure(port: int, queries: Iterator[str], requests: int, soak_seconds: float) -> None:
    await timed(port, list(itertools.islice(queries, CLIENTS)), CLIENTS)  # the first ones warm the machine
    rates: dict[int, list[float]] = {1: [], CLIENTS: []}
    took: dict[int, list[float]] = {1: [], CLIENTS: []}
    for _ in range(ROUNDS):
        for clients, count in ((1, requests // 4), (CLIENTS, requests)):
            rate, seconds = await timed(port, list(itertools.islice(queries, count)), clients)
            rates[clients].append(rate)
            took[clients] += seconds
    for clients, each in rates.items():
        p50, p99 = percentile(took[clients], 0.5), percentile(took[clients], 0.99)
        rate = statistics.median(each)
        rounds = ", ".join(f"{one:.0f}" for one in each)
        sys.stdout.write(f"{clients:>3} clients  {rate:7.1f} a second ({rounds})  p50 {p50:.0f} ms  p99 {p99:.0f} ms\n")
    ratio = statistics.median(rates[CLIENTS]) / statistics.median(rates[1])
    sys.stdout.write(f"ratio        {ratio:.2f}\n")
    if soak_seconds:
        rate = 2 * statistics.median(rates[CLIENTS])
        became, seconds = await soak(port, queries, rate, soak_seconds)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(became.items()))
        lost = sum(count for what, count in became.items() if what not in ("200", "429"))
        p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
        sys.stdout.write(f"soak         {soak_seconds:.0f} s at {rate:.0f} a second: {counts}; lost {lost}; ")
        sys.stdout.write(f"answered p50 {p50:.0f} ms, p99 {p99:.0f} ms\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--index", required=True, type=Path)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--requests", type=int, default=400, help="a round of 64 clients; one client sends a quarter")
    parser.add_argument("--soak", type=float, default=0, help="seconds")
    parser.add_argument("--mode", default="auto")
    given = parser.parse_args()
    questions = [judged.question for judged in read_judged(given.questions)]
    queries = (f"{question} {number}" for number in itertools.count() for question in questions)
    with service(given.index, given.mode) as port:
        asyncio.run(measure(port, queries, given.requests, given.soak))


if __name__ == "__main__":
    main()
