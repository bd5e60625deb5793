"""robots.txt: fetched once an hour for each place, read by protego, obeyed (RFC 9309)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from yarl import URL

from indexes.web.fetching import Fetcher, FetchError

if TYPE_CHECKING:
    from protego import Protego

AGENT = "StepRAG"
"""The name that a robots.txt knows us by."""
SECONDS = 3.0
"""Until a robots.txt counts as lost."""
KEPT, ASKED_AGAIN = 3600.0, 60.0
"""Seconds until rules are fetched anew, and until a place that did not answer is asked again."""
BYTES = 512 * 1024
PLACES = 4096


class Robots:
    """What the places of the web allow."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._rules: dict[URL, tuple[float, asyncio.Task[Protego | None]]] = {}

    async def allow(self, url: URL) -> bool:
        """Whether the page may be fetched. A place without rules (4xx) allows everything; one whose rules cannot be
        had (5xx, no reply) allows nothing.
        """
        rules = await asyncio.shield(self._task(url.origin()))
        return rules is not None and rules.can_fetch(str(url), AGENT)

    def _task(self, origin: URL) -> asyncio.Task[Protego | None]:
        """The rules of a place, asked for once by all who wait for them."""
        loop = asyncio.get_running_loop()
        if not _fresh(self._rules.get(origin), loop):
            while len(self._rules) >= PLACES:
                self._rules.pop(next(iter(self._rules)))
            self._rules[origin] = time.monotonic(), loop.create_task(self._read(origin))
        return self._rules[origin][1]

    async def _read(self, origin: URL) -> Protego | None:
        from protego import Protego

        try:
            async with asyncio.timeout(SECONDS):
                reply = await self._fetcher.get(origin.with_path("/robots.txt"))
        except (FetchError, TimeoutError):
            return None
        if reply.status >= 500 or reply.status == 429:
            return None
        text = reply.body[:BYTES].decode("utf-8", "replace") if reply.status < 300 else ""
        return await asyncio.to_thread(Protego.parse, text)

    async def aclose(self) -> None:
        """Ends what is still being fetched."""
        for _, task in self._rules.values():
            if task.get_loop() is asyncio.get_running_loop():
                task.cancel()
        self._rules.clear()


def _fresh(known: tuple[float, asyncio.Task[Protego | None]] | None, loop: asyncio.AbstractEventLoop) -> bool:
    if known is None or known[1].get_loop() is not loop:
        return False
    asked, task = known
    if task.done() and (task.cancelled() or task.exception() is not None):
        return False
    age = time.monotonic() - asked
    return age < (ASKED_AGAIN if task.done() and task.result() is None else KEPT)
