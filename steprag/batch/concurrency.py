"""Many pieces of work at once, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int) -> None:
    """Awaits `work(item)` for every item, `at_once` at a time, starting them in order.

    The first error cancels what is under way and is raised as itself.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:  # the workers share one iterator: each item is taken once
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
