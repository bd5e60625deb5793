"""How fast one endpoint is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiolimiter

from steprag.config.sections import PolicyConfig
from steprag.types import Message, Usage

CHARS_A_TOKEN = 4
"""A prompt's tokens are guessed from this until the reply says them."""


def chars_of(messages: Iterable[Message]) -> int:
    """The characters of all messages together."""
    return sum(len(message["content"]) for message in messages)


BURST_SECONDS = 1.0
"""What a limit allows in so many seconds may be sent at once: endpoints check shorter spans than the minute."""


class Gate:
    """Lets `concurrency` requests through at a time, and `rate.requests` and `rate.tokens` a minute.

    One gate an endpoint and event loop.
    """

    def __init__(self, config: PolicyConfig) -> None:
        self._slots = asyncio.Semaphore(config.concurrency)
        self._requests, self._tokens = _limiter(config.rate.requests), _limiter(config.rate.tokens)
        self._owed, self._longest = 0, config.max_tokens

    def most(self, chars: int, completions: int) -> Usage:
        """What a request takes at most: a token for each character of its prompt, and the longest replies."""
        return Usage(1, chars, completions * self._longest)

    @asynccontextmanager
    async def turn(self, chars: int) -> AsyncIterator[None]:
        """Waits for a slot and for both limits; `chars` is the length of the prompt."""
        async with self._slots:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                await self._pay(self._tokens, chars // CHARS_A_TOKEN)
            yield

    def settle(self, chars: int, usage: Usage) -> None:
        """Tells what a request really used; later requests wait for the difference."""
        self._owed += usage.prompt_tokens + usage.completion_tokens - chars // CHARS_A_TOKEN

    async def _pay(self, limiter: aiolimiter.AsyncLimiter, amount: int) -> None:
        due = float(amount + self._owed)
        self._owed = min(0, amount + self._owed)
        while due > 0:  # in parts, since one request may be more than the limiter lets through at once
            part = min(due, limiter.max_rate)
            await limiter.acquire(part)
            due -= part


def _limiter(a_minute: int | None) -> aiolimiter.AsyncLimiter | None:
    if a_minute is None:
        return None
    seconds = max(BURST_SECONDS, 60 / a_minute)
    return aiolimiter.AsyncLimiter(a_minute * seconds / 60, seconds)
