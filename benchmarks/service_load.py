"""The service under load: 64 clients at once beside one-by-one calls. Twice the load that it can take: soak.py.

    python -m benchmarks.service_load --index DIR --questions FILE [--requests 400] [--mode hybrid]

A service process is started on the index. Rounds of one client and of 64 take turns, every query a new one, so that
neither memory nor the machine's mood favours a side; the ratio is of the rounds' medians.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.soak import search_service
from indexes.commands.evaluate import read_judged

CLIENTS, ROUNDS, TOP_K = 64, 3, 3


class Client:
    """One connection that is kept open. By hand, so that little of the machine is spent on asking."""

    def __init__(self, port: int) -> None:
        self._port = port
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
        return int(lines[0].split()[1]), await reader.readexactly(length)

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


def percentile(seconds: Sequence[float], share: float) -> float:
    """In milliseconds."""
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


async def measure(port: int, queries: Iterator[str], requests: int) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--index", required=True)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--requests", type=int, default=400, help="a round of 64 clients; one client sends a quarter")
    parser.add_argument("--mode", default="auto")
    given = parser.parse_args()
    questions = [judged.question for judged in read_judged(given.questions)]
    queries = (f"{question} {number}" for number in itertools.count() for question in questions)
    with search_service(given.index, "", "--retriever.mode", given.mode, "--limits.queries", "64") as load:
        asyncio.run(measure(int(load.url.rsplit(":", 1)[1]), queries, given.requests))


if __name__ == "__main__":
    main()
