"""Search engines: the request to each, and how its reply is read. By plain HTTP, without their packages."""

from __future__ import annotations

import asyncio
import html
import importlib.util
import os
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from yarl import URL

from indexes.web.addresses import places
from indexes.web.config import WebConfig
from indexes.web.fetching import Fetcher, Reply
from steprag.errors import ConfigError, RetrieverError, quoted
from steprag.extras import remedy
from steprag.net.bounded_http import LONGEST_TOLD, LONGEST_WAIT, asked_wait
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import as_utf8

QUERY_CHARS, QUERY_WORDS = 400, 50
"""The longest query that every provider takes (Brave's bounds); what is longer is cut at a word."""
REPLY_BYTES = 4_000_000
ADDRESS_CHARS = 2000
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
RATE_RETRIES = 6
"""How often a request over the rate limit is sent again."""
ENGINE = 0.5
"""Share of a search's time in which the engine has to answer a request; waiting for a turn does not count."""
REFUSED = frozenset({401, 402, 403, 432, 433})
"""Wrong key, or nothing left of the plan (432 and 433 are Tavily's)."""
SPENT = re.compile(rb"not enough credits|SUBSCRIPTION_TOKEN_INVALID", re.IGNORECASE)
"""The same in the words of a reply: Serper's, with 400, and Brave's, with 422."""
Given = TypeVar("Given")
_TAGS = re.compile(r"</?(?:strong|b|em|i|br)\s*/?>", re.IGNORECASE)


@dataclass(frozen=True)
class WebResult:
    """One hit of a search engine; `snippet` is what it shows of the page."""

    url: str
    title: str
    snippet: str


class TransientFailure(RetrieverError):
    """A failure that may pass soon."""


async def in_time(config: WebConfig, work: Awaitable[Given]) -> Given:
    """What a request to the search engine gives. Raises RetrieverError where it takes too long."""
    try:
        async with asyncio.timeout(ENGINE * config.seconds):
            return await work
    except TimeoutError:
        raise RetrieverError(f"{config.provider} did not answer in time (web.seconds)") from None


class Provider(Protocol):
    """A search engine."""

    async def search(self, query: str) -> tuple[WebResult, ...]:
        """Its results, best first. Raises RetrieverError where this search failed; ConfigError where none can succeed:
        no key, no JSON, a plan that is used up. Each request has its share of `web.seconds`.
        """
        ...

    async def aclose(self) -> None:
        """Releases connections."""
        ...


@dataclass(frozen=True)
class Dialect:
    """How a provider is spoken to.

    `key_header` with `key_before` carries the key. `body`: the query goes in JSON by POST, else in the address by GET.
    `found`: where the list of results lies in the reply; `url`, `title`, `snippet`: the keys of one.
    """

    base_url: str
    path: str
    key_env: str
    key_header: str
    query: str
    count: str
    most: int
    found: tuple[str, ...]
    url: str
    title: str
    snippet: str
    key_before: str = ""
    body: bool = False
    fixed: tuple[tuple[str, str | bool], ...] = ()


DIALECTS = {
    "searxng": Dialect("", "/search", "", "", "q", "", 50, ("results",), "url", "title", "content",
                       fixed=(("format", "json"),)),
    "brave": Dialect("https://api.search.brave.com", "/res/v1/web/search", "BRAVE_API_KEY", "X-Subscription-Token",
                     "q", "count", 20, ("web", "results"), "url", "title", "description",
                     fixed=(("text_decorations", "false"),)),
    "tavily": Dialect("https://api.tavily.com", "/search", "TAVILY_API_KEY", "Authorization", "query", "max_results",
                      20, ("results",), "url", "title", "content", key_before="Bearer ", body=True),
    "serper": Dialect("https://google.serper.dev", "/search", "SERPER_API_KEY", "X-API-KEY", "q", "num", 50,
                      ("organic",), "link", "title", "snippet", body=True),
}  # fmt: skip


class HttpProvider:
    """A provider that is asked by HTTP."""

    def __init__(self, config: WebConfig, user_agent: str) -> None:
        """Raises ConfigError where the key's variable is empty."""
        self._config, self._dialect = config, DIALECTS[config.provider]
        try:
            base = URL((config.base_url or self._dialect.base_url).rstrip("/").removesuffix(self._dialect.path))
        except ValueError as error:
            raise ConfigError(f"web.base_url: {error}") from None
        if base.scheme not in ("http", "https") or not base.raw_host or base.query_string:
            raise ConfigError(f"web.base_url {quoted(config.base_url)} should be an http or https address that ends "
                              "before ?; web.params holds parameters")  # fmt: skip
        self._url = URL(f"{base}{self._dialect.path}")
        # what the user names may be on this machine; results and redirects do not get there by it
        own = places([f"{base.raw_host}:{base.port}"]) if config.base_url else frozenset[tuple[str, int]]()
        self._fetcher = Fetcher(own, most=REPLY_BYTES, user_agent=user_agent)
        self._headers = {"Accept": "application/json", **self._key()}
        self._next_at = self._interval = 0.0
        """When the next request may be sent (`time.monotonic`); seconds between two requests."""

    def _key(self) -> dict[str, str]:
        name = self._config.key_env or self._dialect.key_env
        key = os.environ.get(name, "").strip() if name else ""
        if self._dialect.key_header and not key:
            raise ConfigError(f"{self._config.provider} wants a key: put it in {name}, or name another variable in "
                              "web.key_env")  # fmt: skip
        return {self._dialect.key_header: self._dialect.key_before + key} if self._dialect.key_header else {}

    async def search(self, query: str) -> tuple[WebResult, ...]:
        """As the protocol says. An incomplete reply or a server error is retried once, a request over the rate limit
        `RATE_RETRIES` times, each when its turn comes.
        """
        limited = failed = 0
        while True:
            await self._turn()
            reply = await in_time(self._config, self._send(query))
            self._pace(reply, limited + failed)
            try:
                return self._read(reply)
            except TransientFailure:
                limited, failed = limited + (reply.status == 429), failed + (reply.status != 429)
                if limited > RATE_RETRIES or failed > 1:
                    raise

    async def _turn(self) -> None:
        """Waits until a request may be sent: after a refusal, and in step with the others if the rate is limited."""
        while True:
            wait = self._next_at - time.monotonic()
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        self._next_at = time.monotonic() + self._interval

    def _pace(self, reply: Reply, attempt: int) -> None:
        """Learns from a reply when the next request may be sent, and how far apart requests have to be."""
        wait = asked_wait(reply.headers)
        if reply.status in AGAIN:
            wait = min(2.0**attempt, LONGEST_WAIT) if wait is None or (attempt and not wait) else wait
            self._interval = max(self._interval, min(1.0, wait)) if reply.status == 429 else self._interval
        if wait and wait <= LONGEST_TOLD:
            self._next_at = max(self._next_at, time.monotonic() + wait)

    async def _send(self, query: str) -> Reply:
        dialect, config = self._dialect, self._config
        asked: dict[str, Any] = {dialect.query: query, **dict(dialect.fixed), **config.params}
        if dialect.count:
            asked[dialect.count] = min(config.results, dialect.most)
        if dialect.body:
            return await self._fetcher.request("POST", self._url, headers=self._headers, json=asked)
        return await self._fetcher.request("GET", self._url, headers=self._headers, params=_spelt(asked))

    def _read(self, reply: Reply) -> tuple[WebResult, ...]:
        name = self._config.provider
        if reply.status == 403 and name == "searxng":
            raise ConfigError(
                f"SearXNG at {self._url.origin()} answers 403: JSON is off by default there. Add json to "
                "search.formats in its settings.yml; if it is there already, its limiter refuses programs"
            )
        if reply.status in REFUSED or (400 <= reply.status < 500 and SPENT.search(reply.body)):
            raise ConfigError(f"{name} refuses the key, or its plan is used up ({reply.status}): {_said(reply)}")
        if reply.status == 429 and (wait := asked_wait(reply.headers) or 0) > LONGEST_TOLD:
            raise ConfigError(f"the plan of {name} is used up for {wait / 3600:,.1f} hours (429): {_said(reply)}")
        if reply.status != 200:
            kind = TransientFailure if reply.status in AGAIN else RetrieverError
            raise kind(f"{name} answers {reply.status}: {_said(reply)}")
        try:
            said = found = decoded(reply.body)
            for key in self._dialect.found:
                found = found.get(key) or {}  # where nothing is found, the key is absent
            rows = [row for row in found if isinstance(row, dict)]
        except (NotJson, AttributeError, TypeError):
            raise RetrieverError(f"{name} answers with what is no list of results: {_said(reply)}") from None
        if silent := said.get("unresponsive_engines"):  # SearXNG's: a part of the results would pass for all
            raise TransientFailure(
                f"engines of SearXNG do not answer: {silent}; leave them out by web.params.engines"[:400]
            )
        return results_of(rows, (self._dialect.url, self._dialect.title, self._dialect.snippet), self._config.results)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._fetcher.aclose()


def query_of(text: str) -> str:
    """The query as a provider gets it: single spaces, at most 50 words and 400 characters."""
    words = text.split()[:QUERY_WORDS]
    while len(words) > 1 and len(" ".join(words)) > QUERY_CHARS:
        words.pop()
    return " ".join(words)[:QUERY_CHARS]


def results_of(rows: Sequence[Mapping[str, Any]], keys: tuple[str, str, str], most: int) -> tuple[WebResult, ...]:
    """The rows that have an http address, each address once, in order."""
    found: dict[str, WebResult] = {}
    for row in rows:
        url, title, snippet = (as_utf8(str(row.get(key) or "")) for key in keys)
        address = _address(url)
        if address is not None and address not in found:
            found[address] = WebResult(address, _plain(title), _plain(snippet))
    return tuple(found.values())[:most]


def _address(url: str) -> str | None:
    """The address as it is asked for, without a fragment; None where it is no http address."""
    try:
        found = URL(url.strip()).with_fragment(None)
    except ValueError:
        return None
    spelt = str(found)
    return spelt if found.scheme in ("http", "https") and found.raw_host and len(spelt) <= ADDRESS_CHARS else None


def _plain(text: str) -> str:
    """Words without the marks that engines put around what matches."""
    return " ".join(html.unescape(_TAGS.sub("", text)).split())


def _spelt(params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as an address holds them: true and false in small letters, lists with commas."""
    texts = {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in params.items()}
    return {key: text.lower() if isinstance(params[key], bool) else text for key, text in texts.items()}


def _said(reply: Reply) -> str:
    return " ".join(reply.body[:400].decode("utf-8", "replace").split())[:200]


class DdgsProvider:
    """Searches in a thread: the package waits. What is late is left to end by itself."""

    def __init__(self, config: WebConfig) -> None:
        """Raises ConfigError where the package, or an engine, is not there."""
        if importlib.util.find_spec("ddgs") is None:
            raise ConfigError(f"provider ddgs needs an extra: {remedy('web')}")
        from ddgs.engines import ENGINES

        known = ENGINES["text"]
        if unknown := [name for name in config.backends if name not in known]:
            raise ConfigError(f"web.backends: ddgs has no {quoted(unknown[0])}; it has {', '.join(sorted(known))}")
        if not config.backends:
            raise ConfigError(f"web.backends: name at least one of {', '.join(sorted(known))}")
        self._config = config

    async def search(self, query: str) -> tuple[WebResult, ...]:
        """As `Provider.search` says; a search that found nothing is none that failed."""
        rows = await in_time(self._config, asyncio.to_thread(self._ask, query))
        return results_of(rows, ("href", "title", "body"), self._config.results)

    def _ask(self, query: str) -> Sequence[dict[str, Any]]:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException

        try:
            with DDGS(timeout=max(1, int(self._config.seconds / 2))) as engine:
                return engine.text(
                    query,
                    backend=",".join(self._config.backends),
                    max_results=self._config.results,
                    **_spelt(self._config.params),
                )
        except DDGSException as error:
            if "No results found" in str(error):
                return ()
            raise RetrieverError(f"ddgs ({', '.join(self._config.backends)}): {error}"[:300]) from None

    async def aclose(self) -> None:
        """Nothing is held."""
