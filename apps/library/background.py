"""Coroutines from plain calls: they run in one thread with an event loop of its own, whatever loop the caller has."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any, Generic, TypeVar

from steprag.errors import ConfigError

T = TypeVar("T")
THREAD = "steprag-library"


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=THREAD, daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises. Ctrl-C in the caller's thread cancels it.

    Raises ConfigError where it is called from that one thread, as by a tool that is a coroutine: it would never end.
    """
    if threading.current_thread().name == THREAD:
        work.close()
        raise ConfigError("a plain call waits, and a coroutine of a tool may not: await what `open_agent` gives")
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    finally:
        future.cancel()  # nothing, where it is done


class Held(Generic[T]):
    """An async context manager, entered at the first use and left by `close` or at the program's end, in one task. It
    may be used again then.
    """

    def __init__(self, context: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._context = context
        self._lock, self._closing = threading.Lock(), asyncio.Event()
        self._open: tuple[T, asyncio.Task[None]] | None = None

    def value(self) -> T:
        """What the context manager gives; waits until it is entered. Raises what entering raises."""
        with self._lock:
            if self._open is None:
                self._open = run(self._entered())
                atexit.register(self.close)
            return self._open[0]

    def close(self) -> None:
        """Leaves it, where it is open. Raises what leaving raises."""
        with self._lock:
            left, self._open = self._open, None
            if left is not None:
                atexit.unregister(self.close)
                run(self._left(left[1]))

    async def _entered(self) -> tuple[T, asyncio.Task[None]]:
        self._closing.clear()
        opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._hold(opened))
        try:
            await asyncio.wait((opened, task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not opened.done():
                task.cancel()  # the caller gave up; nothing, where entering raised
        if task.done():
            task.result()
        return opened.result(), task

    async def _hold(self, opened: asyncio.Future[T]) -> None:
        async with self._context() as value:
            opened.set_result(value)
            await self._closing.wait()

    async def _left(self, task: asyncio.Task[None]) -> None:
        self._closing.set()
        await task
