"""How fast one endpoint is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import aiolimiter

from steprag.config.sections import PolicyConfig
from steprag.console.progress import say
from steprag.types import Message, Sample, Usage

CHARS_A_TOKEN = 4
"""Tokens are estimated by this until a reply reports them, and if it never does."""


def chars_of(messages: Iterable[Message]) -> int:
    """The characters of all messages together."""
    return sum(len(message["content"]) for message in messages)


def with_estimates(usage: Usage, prompt: int, written: int) -> Usage:
    """The usage of a call, estimated from its characters where the reply reports 0: no text takes 0 tokens."""
    tokens = {"prompt_tokens": usage.prompt_tokens or -(-prompt // CHARS_A_TOKEN),
              "completion_tokens": usage.completion_tokens or -(-written // CHARS_A_TOKEN)}  # fmt: skip
    if not usage.calls or tokens.items() <= vars(usage).items():
        return usage
    return replace(usage, **tokens, estimated=usage.calls)


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
        self._model, self._estimates = config.model, False

    def most(self, chars: int, completions: int) -> Usage:
        """What a request takes at most: a token for each character of its prompt, and the longest replies."""
        return Usage(1, chars, completions * self._longest)

    def turn(self, chars: int) -> AbstractAsyncContextManager[None]:
        """Waits for a slot and for both limits; `chars` is the length of the prompt."""
        return self._slots if self._requests is self._tokens is None else self._limited(chars)

    @asynccontextmanager
    async def _limited(self, chars: int) -> AsyncIterator[None]:
        async with self._slots:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                await self._pay(self._tokens, chars // CHARS_A_TOKEN)
            yield

    async def metered(self, chars: int, request: Callable[[], Awaitable[Sample]]) -> Sample:
        """Sends a request and settles what it used. Says so the first time that it has to estimate tokens."""
        sample = await request()
        used = with_estimates(sample.usage, chars, sum(len(one.text + one.reasoning) for one in sample.completions))
        if used.estimated and not self._estimates:
            self._estimates = True
            say(f"{self._model}: replies do not report all tokens they used; tokens, dollars and limits are estimated "
                f"from the text, {CHARS_A_TOKEN} characters a token")  # fmt: skip
        self.settle(chars, used)
        return Sample(sample.completions, used)

    def settle(self, chars: int, usage: Usage) -> None:
        """Notes what a request really used; later requests wait for the difference."""
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
