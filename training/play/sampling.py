"""Who makes the completions of a step's episodes: the weights in this process, in batches, or an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts' ids and a seed to the ids sampled after each, the token that ends the turn included where it came."""


@dataclass(frozen=True)
class SampledStep:
    """One completion: the prompt's ids as sent, the completion's ids as sampled.

    `logps`: the log-probability that an engine sampled each id with; None where the weights in training sampled.
    """

    prompt: list[int]
    completion: list[int]
    logps: list[float] | None = field(default=None, kw_only=True)


class Sampler(Protocol):
    """Makes the completions of episodes, which are known by their numbers."""

    async def sample(self, number: int, prompt: list[int], seed: int) -> SampledStep:
        """What is sampled after `prompt` for the episode `number`. Raises RequestError where nothing sound comes."""
        ...

    def leave(self, number: int) -> None:
        """That episode has ended or failed: nobody waits for it any longer."""
        ...


class Batcher:
    """Collects the requests of `live` episodes; when all of them wait, their completions are made in one batch.

    The batch stands in the order of the episodes' numbers and its first seed is the batch's, so that equal runs make
    equal batches, in whatever order searches come back.
    """

    def __init__(self, generate: Generate, live: Iterable[int]) -> None:
        self._generate, self._live = generate, set(live)
        self._waiting: dict[int, tuple[list[int], int, asyncio.Future[list[int]]]] = {}

    async def sample(self, number: int, prompt: list[int], seed: int) -> SampledStep:
        """As `Sampler.sample`."""
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = prompt, seed, future
        self._go()
        return SampledStep(prompt, await future)

    def leave(self, number: int) -> None:
        """As `Sampler.leave`."""
        self._live.discard(number)
        self._go()

    def _go(self) -> None:
        if not self._waiting or len(self._waiting) < len(self._live):
            return
        batch = [self._waiting[number] for number in sorted(self._waiting)]
        self._waiting = {}
        made = self._generate([prompt for prompt, _, _ in batch], batch[0][1])
        for (_, _, future), ids in zip(batch, made, strict=True):
            future.set_result(ids)
