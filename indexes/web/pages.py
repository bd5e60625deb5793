"""Pages of results: fetched where robots.txt allows it, and read (`extraction`)."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from yarl import URL

from indexes.web.addresses import places
from indexes.web.config import WebConfig
from indexes.web.extraction import Extractor, Page
from indexes.web.fetching import Fetcher, FetchError, Reply
from indexes.web.providers import WebResult
from indexes.web.snapshot import SeenPage
from steprag.errors import ConfigError
from steprag.extras import remedy

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
PAGE_BYTES = 2_000_000
"""Bytes of a page, unpacked; more is cut off."""
EXTRACT_SECONDS = 5.0
"""Seconds that reading a page may take."""


class Robots:
    """What the places of the web allow."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._rules: dict[URL, tuple[float, asyncio.Task[Protego | None]]] = {}

    async def allow(self, url: URL) -> bool:
        """Whether the page may be fetched. A host without robots.txt (4xx) allows everything; one whose robots.txt
        cannot be read (5xx, no reply) allows nothing.
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


KINDS = ("text/html", "application/xhtml+xml", "text/plain", "")
"""Media types that are read; a page that names none is tried."""

LATE = "not there when the search had to end"


class Pages:
    """Fetches and reads pages. For one event loop at a time."""

    def __init__(self, config: WebConfig, user_agent: str) -> None:
        """Raises ConfigError for a bad `allow`, and where what reads pages is not installed."""
        if config.pages and not all(map(importlib.util.find_spec, ("trafilatura", "protego", "chardet"))):
            raise ConfigError(f"pages are read by an extra: {remedy('web')} (or web.pages: 0, for snippets alone)")
        self._config = config
        self._fetcher = Fetcher(places(config.allow), most=PAGE_BYTES, user_agent=user_agent)
        self._robots = Robots(self._fetcher)
        self._extractor = Extractor(EXTRACT_SECONDS, config.extract_mb) if config.pages else None

    async def read(self, results: Sequence[WebResult], known: Sequence[Page | None], until: float) -> list[SeenPage]:
        """What became of each result's page, in order. Those in `known` are not fetched; what is not there at `until`
        (the loop's clock) is lost.
        """
        tasks = [
            asyncio.create_task(self._one(result)) if page is None else None
            for result, page in zip(results, known, strict=True)
        ]
        waiting = {task for task in tasks if task is not None}
        if waiting:
            try:
                await asyncio.wait(waiting, timeout=max(0.0, until - asyncio.get_running_loop().time()))
            finally:
                for task in waiting:
                    task.cancel()
            await asyncio.wait(waiting)
        return [
            SeenPage(result, page)
            if task is None
            else SeenPage(result, None, LATE)
            if task.cancelled()
            else task.result()
            for result, page, task in zip(results, known, tasks, strict=True)
        ]

    async def _one(self, result: WebResult) -> SeenPage:
        try:
            async with asyncio.timeout(self._config.page_seconds):
                reply = await self._fetcher.get(result.url, self._robots.allow)
        except TimeoutError:
            return SeenPage(result, None, f"took longer than {self._config.page_seconds:g} s")
        except FetchError as error:
            return SeenPage(result, None, str(error))
        if problem := _unread(reply):
            return SeenPage(result, None, problem)
        assert self._extractor is not None
        page = await self._extractor.extract(reply.body, _charset(reply), result.url)
        return SeenPage(result, page, "" if page is not None else "no text could be read within the limits")

    async def aclose(self) -> None:
        """Closes connections and the process that reads."""
        await self._robots.aclose()
        await self._fetcher.aclose()
        if self._extractor is not None:
            await self._extractor.aclose()


def _unread(reply: Reply) -> str:
    """Why a reply is no page to read; empty where it is one."""
    kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if reply.status != 200:
        return f"answers {reply.status}"
    return "" if kind in KINDS else f"is {kind[:60]}, which is not read"


def _charset(reply: Reply) -> str:
    """The charset that the sender names, at most 40 characters of it."""
    for part in reply.headers.get("Content-Type", "").split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            return value.strip()[:40]
    return ""
