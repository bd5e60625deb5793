"""A retriever behind HTTP: a service of `steprag index serve`, or any that speaks Search-R1's `POST /retrieve`."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp

from indexes.ranking.rankings import named, search_key
from steprag.config.sections import RetrieverConfig
from steprag.console.progress import say
from steprag.errors import ConfigError, DataError, RetrieverError, quoted
from steprag.net.bounded_http import BoundedClient, HttpReply, pause
from steprag.net.hosts import checked_url
from steprag.records.inputs import passage_from_row
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import dump_line, line_hash
from steprag.records.spellings import PASSAGE_IDS, plain
from steprag.types import Passage

FINGERPRINT = "X-StepRAG-Index"
"""Header in which the service names what it searches."""
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which a request is sent again."""
INCOMPLETE = ("timed_out", "terminated_early", "partial", "is_partial", "error", "errors")
"""Keys by which a reply of status 200 says that it is incomplete."""
ANSWERED = {"_shards": ("successful", "skipped"), "_clusters": ("successful",)}
"""Which of Elasticsearch's counts have answered, out of `total`. It skips a shard that cannot match the query, and a
cluster that it cannot reach.
"""
CONNECTIONS = 64


class PartialReply(Exception):
    """An incomplete reply. The search is repeated: taken as complete, its gap would stay in the journal."""


class RemoteRetriever:
    """Searches by HTTP. For one event loop at a time; requests of many searches are in flight at once."""

    _route, _speaks, _options = "/retrieve", "Search-R1's", ""

    def __init__(self, url: str, config: RetrieverConfig) -> None:
        """Asks the service what it is. Raises ConfigError where none answers, refuses the token, or does not fit."""
        try:
            self._url, self._config = checked_url(url, "the retriever's address").rstrip("/"), config
            self._url = self._url.removesuffix(self._route)  # as configurations of others name it
        except ValueError as error:
            raise ConfigError(str(error)) from None
        token = os.environ.get(config.token_env, "").strip()
        self._token, self._headers = token, {"Authorization": self._authorization(token)} if token else {}
        self.fingerprint = self._checked(self._health())
        self._client: tuple[asyncio.AbstractEventLoop, BoundedClient] | None = None
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._closed = self._told = False

    def _authorization(self, token: str) -> str:
        return f"Bearer {token}"

    def _health(self) -> dict[str, Any]:
        """What the service says of itself; nothing, where it has no such route, as Search-R1's own server."""
        return self._asked_for("/health", absent={})

    def _asked_for(self, route: str, absent: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the service says at a route; `absent`: where it has none such."""

        async def asked() -> HttpReply:
            async with self._new_client() as client:
                return await client.get(self._url + route)

        try:
            with ThreadPoolExecutor(1) as thread:  # this one's event loop may be running
                reply = thread.submit(asyncio.run, asked()).result()
        except aiohttp.ClientError as error:
            raise ConfigError(f"no retriever answers at {self._url}: {_reason(error)}") from None
        if reply.status == 404 and absent is not None:
            return absent
        if reply.status in (401, 403):
            raise self._refused()
        facts = _decoded(reply)
        if not isinstance(facts, dict):
            raise ConfigError(f"{self._url}{route} answers {reply.status} and no JSON; is that a retriever?")
        if facts.get("token") == "required":
            raise self._refused()
        return facts

    def _checked(self, health: dict[str, Any]) -> str:
        """The fingerprint of what is served; of the URL where the service does not tell."""
        config = self._config
        check_alone(config, self._url, "the service")
        if config.mode not in ("auto", health.get("mode")):
            serves = health.get("mode", "what it does not tell")
            raise ConfigError(f"retriever.mode is {config.mode}, and {self._url} serves {serves}")
        if isinstance(fingerprint := health.get("fingerprint"), str):
            return fingerprint
        say(f"{self._url} does not say which index it serves; runs will know it by its URL alone")
        return named("url", self._url)

    async def ready(self) -> None:
        """Returns at once: the service has answered before, and a search waits while the service still loads."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """As the service's own retriever would answer. Raises RetrieverError after the last try; ConfigError where no
        other request can succeed: the token is refused, or the service has come to serve another index.
        """
        if self._closed:
            raise RetrieverError("the retriever is closed")
        text, top_k = search_key(query, top_k)
        body = self._asking(text, top_k)
        problem = ""
        for attempt in range(self._config.retries + 1):
            client = self._open()
            try:
                async with self._free:  # waiting for a free connection is no loss
                    reply = await client.post(self._url + self._route + self._options, body)
                if reply.status not in AGAIN:
                    return self._passages(reply, top_k)
                problem, headers = _complaint(reply), reply.headers
            except aiohttp.ClientError as error:
                problem, headers = _reason(error), {}
            except PartialReply as error:
                problem, headers = f"incomplete reply: {error}", {}
            if attempt < self._config.retries:
                await asyncio.sleep(pause(attempt, headers))
        raise RetrieverError(f"{self._url}: {problem} (tried {self._config.retries + 1} times)")

    async def aclose(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._client is not None and self._client[0] is asyncio.get_running_loop():
            await self._client[1].aclose()
        self._client = None

    def _asking(self, text: str, top_k: int) -> dict[str, Any]:
        return {"queries": [text], "topk": top_k, "return_scores": True}

    def _open(self) -> BoundedClient:
        """The client of the running loop; connections belong to the loop that made them."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            self._client, self._free = (loop, self._new_client()), asyncio.Semaphore(CONNECTIONS)
        return self._client[1]

    def _new_client(self) -> BoundedClient:
        return BoundedClient(
            self._url, seconds=self._config.timeout, secret=self._token, headers=self._headers, connections=CONNECTIONS
        )

    def _passages(self, reply: HttpReply, top_k: int) -> tuple[Passage, ...]:
        """The first `top_k` passages of a reply."""
        if reply.status in (401, 403):
            raise self._refused()
        if reply.status != 200:
            raise RetrieverError(f"{self._url}: {_complaint(reply)}")
        if reply.headers.get(FINGERPRINT, self.fingerprint) != self.fingerprint:
            raise ConfigError(f"{self._url} serves another index than when it was opened; start the run again")
        try:
            told = decoded(reply.content, finite=False)
            if lacks := lacking(told):
                raise PartialReply(lacks)
            rows = list(self._rows(told)[:top_k])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"{error}; it begins {quoted(reply.content[:200].decode(errors='replace'))}"
            raise RetrieverError(f"{self._url}: a reply that is not {self._speaks}: {why}") from None
        kept: list[Passage] = []
        problem = ""
        for item in rows:
            try:
                kept.append(passage_of(item, self._url))
            except DataError as error:
                problem = error.problem
        if problem and not kept:
            raise RetrieverError(f"{self._url}: a reply that is not {self._speaks}: {problem}")
        if problem and not self._told:
            self._told = True
            say(f"{self._url}: {len(rows) - len(kept)} of {len(rows)} rows of a reply are left out: {problem}")
        return tuple(kept)

    def _rows(self, told: Any) -> list[Any]:
        """What was found for the one query of a reply."""
        found = told["result"]
        if isinstance(found, list) and (len(found) != 1 or found[0] is None):
            raise PartialReply(f"{len(found)} lists of results, or null, for one query")
        return found[0]

    def _refused(self) -> ConfigError:
        return ConfigError(f"{self._url} refuses the token: put its token in {self._config.token_env}")


def lacking(told: Any) -> str:
    """Why a reply is incomplete, by what it says: failed shards or clusters, a timeout; empty if it is complete."""
    if not isinstance(told, dict):
        return ""
    says = [key for key in INCOMPLETE if told.get(key)]
    for key, answered in ANSWERED.items():
        counts = told.get(key) or {}
        done = sum(counts.get(name) or 0 for name in answered)
        if done < (counts.get("total") or 0) or any(counts.get(name) for name in ("failed", "partial", "running")):
            says.append(f"{key} {quoted(counts)}")
    return "; ".join(says)


def check_alone(config: RetrieverConfig, place: str, to: str) -> None:
    """Raises ConfigError where `config` says how to rank what is ranked elsewhere."""
    for key in ("reranker", "links", "fusion", "dense_weight"):
        if getattr(config, key) != RetrieverConfig.model_fields[key].default:
            raise ConfigError(f"{place} searches as it was started; leave retriever.{key} to {to}")


def passage_of(item: Any, source: str) -> Passage:
    """A row of a reply of `source`: a document, alone or beside a score. A text alone is FlashRAG's `contents`; a
    document without an id is named by its content. Raises DataError where it has no text.
    """
    row = item if isinstance(item, dict) and "document" in item else {"document": item}
    score: Any = row.get("score")
    document: Any = {"contents": row["document"]} if isinstance(row["document"], str) else row["document"]
    if isinstance(document, dict) and not any(plain(document.get(key)) for key in PASSAGE_IDS):
        document = {**document, "id": line_hash(dump_line(document))}
    passage = passage_from_row(document, source, 1)
    if all(isinstance(document.get(key), str) for key in ("id", "text", "title")):
        passage = Passage(document["id"], document["title"], document["text"])  # as a service of ours has them
    known = type(score) in (int, float) and abs(score) <= sys.float_info.max  # no yes or no, NaN or infinity
    return Passage(passage.id, passage.title, passage.text, float(score) if known else None)


def _decoded(reply: HttpReply) -> Any:
    try:
        return decoded(reply.content)
    except NotJson:
        return None


def _complaint(reply: HttpReply) -> str:
    """The status and the first words of what the service said: FastAPI's, ours, Elasticsearch's."""
    body = _decoded(reply)
    said = body.get("detail") or body.get("error") if isinstance(body, dict) else None
    detail = (said.get("message") or said.get("reason")) if isinstance(said, dict) else said
    return f"{reply.status} {str(detail or reply.content[:800].decode(errors='replace'))[:200]}".strip()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
