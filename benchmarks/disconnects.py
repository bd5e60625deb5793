"""What an engine does for a client that has left: how long the next request takes, streaming and not.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/disconnects.py --engines llamacpp transformers vllm

Long requests fill the engine: one, or eight where it works on many at once. A short one is timed alone, while they are
written, and right behind their clients' leaving. An engine that frees what a client leaves answers as if it were alone.
vLLM has room for more, so there its own metrics say how long it goes on with what was left.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

import httpx2

from steprag.engines.launch import ENGINES, EngineSpec
from steprag.engines.server import Endpoint, serving

LONG, SHORT = 400, 8
"""Tokens of a request."""
LEAVE = 1.5
"""Seconds after which clients leave."""
BESIDE = {"vllm": 8}
"""Long requests at once; one elsewhere, where one slot is served."""


def request(endpoint: Endpoint, tokens: int, *, stream: bool, number: int = 0) -> dict[str, Any]:
    """A request whose reply has so many tokens; no two have the same beginning."""
    more = {} if endpoint.engine == "transformers" else {"ignore_eos": True}
    said = f"{number}: write the numbers from one to five hundred as words, one after the other, and no other word."
    return {"model": endpoint.model, "messages": [{"role": "user", "content": said}], "max_tokens": tokens,
            "temperature": 0, "stream": stream, **more}  # fmt: skip


class Client:
    """Asks one engine."""

    def __init__(self, endpoint: Endpoint, client: httpx2.AsyncClient) -> None:
        self._endpoint, self._client, self._number = endpoint, client, 0

    async def ask(self, tokens: int, *, stream: bool) -> float:
        """Seconds of a request."""
        self._number += 1
        start = time.perf_counter()
        body = request(self._endpoint, tokens, stream=stream, number=self._number)
        async with self._client.stream("POST", "/chat/completions", json=body) as reply:
            reply.raise_for_status()
            async for _ in reply.aiter_bytes():
                pass
        return time.perf_counter() - start

    async def drained(self) -> float:
        """Seconds until vLLM says that it works on nothing."""
        start, url = time.perf_counter(), self._endpoint.base_url.removesuffix("/v1") + "/metrics"
        while True:
            lines = (await self._client.get(url)).text.splitlines()
            running = [line for line in lines if line.startswith("vllm:num_requests_running")]
            if sum(float(line.rpartition(" ")[2]) for line in running) == 0:
                return time.perf_counter() - start
            await asyncio.sleep(0.05)

    async def beside(self, count: int, *, stream: bool, leave: bool) -> float:
        """Seconds of a short request while long ones are written, or right after their clients left; of vLLM in place
        of it those until it has ended the long ones.
        """
        tasks = [asyncio.create_task(self.ask(LONG, stream=stream)) for _ in range(count)]
        await asyncio.sleep(LEAVE)
        if any(task.done() for task in tasks):
            raise RuntimeError(f"a reply of {LONG} tokens was over in {LEAVE} s; there is nothing to leave")
        if leave:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        took = await (self.drained() if self._endpoint.engine == "vllm" else self.ask(SHORT, stream=False))
        await asyncio.gather(*tasks, return_exceptions=True)
        return took


async def measure(endpoint: Endpoint, repeats: int) -> None:
    count = BESIDE.get(endpoint.engine, 1)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=endpoint.base_url, timeout=600, limits=limits) as opened:
        client = Client(endpoint, opened)
        await client.ask(SHORT, stream=False)  # what an engine does for its first request alone
        for stream in (True, False):
            rows = [
                (await client.ask(SHORT, stream=False), await client.ask(LONG, stream=stream),
                 await client.beside(count, stream=stream, leave=False),
                 await client.beside(count, stream=stream, leave=True))
                for _ in range(repeats)
            ]  # fmt: skip
            alone, whole, waiting, left = (statistics.median(column) for column in zip(*rows, strict=True))
            sys.stdout.write(
                f"{endpoint.engine:12} {'streaming' if stream else 'whole':9} short alone {alone:6.2f} s, "
                f"beside {count} long ({whole:.1f} s each) {waiting:6.2f} s, after they left {left:6.2f} s\n"
            )
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["llamacpp"])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for engine in given.engines:
        with serving(EngineSpec(engine=engine, parallel=BESIDE.get(engine, 1))) as endpoint:
            asyncio.run(measure(endpoint, given.repeats))


if __name__ == "__main__":
    main()
