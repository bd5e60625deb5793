"""Rate limits: what an endpoint sees in any span of time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

import pytest

from steprag.config.sections import PolicyConfig
from steprag.policy.gate import BURST_SECONDS, CHARS_A_TOKEN, Gate
from steprag.types import Usage


class SkippingSelector(selectors.DefaultSelector):
    """Does not wait: it moves the loop's clock on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 1e-6  # a clock never stands still
        return super().select(0)


def in_no_time(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` on a loop whose clock jumps to the next timer, so that a minute takes no time."""
    selector = SkippingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def ask(gate: Gate, log: list[tuple[float, int]], prompt: int, usage: Usage, seconds: float = 0.2) -> None:
    async with gate.turn(prompt * CHARS_A_TOKEN):
        log.append((asyncio.get_running_loop().time(), usage.prompt_tokens + usage.completion_tokens))
        await asyncio.sleep(seconds)
        gate.settle(prompt * CHARS_A_TOKEN, usage)


def most_in(log: list[tuple[float, int]], span: float, what: str) -> int:
    """The most requests or tokens in any span of so many seconds."""
    sums = [[1 if what == "requests" else used for at, used in log if start <= at < start + span] for start, _ in log]
    return max(sum(each) for each in sums)


@pytest.mark.parametrize(("limit", "concurrency"), [(60, 64), (600, 8), (30, 1)])
def test_requests_a_minute(limit: int, concurrency: int) -> None:
    log: list[tuple[float, int]] = []

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=concurrency, rate={"requests": limit}))  # type: ignore[arg-type]
        await asyncio.gather(*(ask(gate, log, 10, Usage(1, 10, 5)) for _ in range(3 * limit)))

    in_no_time(run())
    burst = max(1, limit * BURST_SECONDS / 60)
    assert len(log) == 3 * limit
    assert most_in(log, 60, "requests") <= limit + burst
    assert log[-1][0] == pytest.approx(180, rel=0.05)  # and no slower than allowed


@pytest.mark.parametrize("completion", [0, 30, 400])
def test_tokens_a_minute_count_what_was_really_used(completion: int) -> None:
    """Completions are not known beforehand and single requests are larger than a second's share."""
    log: list[tuple[float, int]] = []
    limit = 6_000

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=4, rate={"tokens": limit}))  # type: ignore[arg-type]
        await asyncio.gather(*(ask(gate, log, 300, Usage(1, 330, completion)) for _ in range(100)))

    in_no_time(run())
    in_flight = 4 * (330 + completion)
    assert most_in(log, 60, "tokens") <= limit + in_flight
    assert log[-1][0] == pytest.approx(100 * (330 + completion) / limit * 60, rel=0.1)


def test_a_guess_that_was_too_high_is_given_back() -> None:
    log: list[tuple[float, int]] = []

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=1, rate={"tokens": 6_000}))  # type: ignore[arg-type]
        for _ in range(100):
            await ask(gate, log, 1_000, Usage(1, 100, 0), seconds=0)

    in_no_time(run())
    assert log[-1][0] < 130  # 100 tokens each are 100 s; the guesses would be 1,000 s


def test_slots_bound_the_requests_in_flight() -> None:
    inside = most = 0

    async def one(gate: Gate) -> None:
        nonlocal inside, most
        async with gate.turn(0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=3))
        await asyncio.gather(*(one(gate) for _ in range(20)))

    in_no_time(run())
    assert most == 3
