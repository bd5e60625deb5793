"""Pages of results: fetched where robots.txt allows it, and read (`extraction`)."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence

from aiohttp.abc import AbstractResolver

from indexes.web.addresses import places
from indexes.web.config import WebConfig
from indexes.web.extraction import Extractor, Page
from indexes.web.fetching import Fetcher, FetchError, Reply
from indexes.web.providers import WebResult
from indexes.web.robots import Robots
from indexes.web.snapshot import SeenPage
from steprag.errors import ConfigError
from steprag.extras import remedy

KINDS = ("text/html", "application/xhtml+xml", "text/plain", "")
"""Media types that are read; a page that names none is tried."""

LATE = "not there when the search had to end"


class Pages:
    """Fetches and reads pages. For one event loop at a time."""

    def __init__(self, config: WebConfig, user_agent: str, resolver: AbstractResolver | None = None) -> None:
        """Raises ConfigError for a bad `allow`, and where what reads pages is not installed."""
        if config.pages and not all(map(importlib.util.find_spec, ("trafilatura", "protego"))):
            raise ConfigError(f"pages are read by an extra: {remedy('web')} (or web.pages: 0, for snippets alone)")
        self._config = config
        self._fetcher = Fetcher(places(config.allow), most=config.page_bytes, user_agent=user_agent, resolver=resolver)
        self._robots = Robots(self._fetcher)
        self._extractor = Extractor(config.extract_seconds, config.extract_mb) if config.pages else None

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
