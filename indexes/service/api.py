"""The service's routes: Search-R1's `POST /retrieve`, the ReSearch family's `POST /search` and `/batch_search`, health
and metrics. Many clients' queries become one batch in the retriever; the event loop never searches.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indexes.config import LimitsConfig
from indexes.retrieval.folder_retriever import FolderRetriever
from indexes.retrieval.remote import FINGERPRINT
from steprag.errors import StepragError, quoted
from steprag.net.hosts import ANY_NAME
from steprag.records.inputs import as_document
from steprag.types import Passage
from steprag.web.app import ApiError, as_json, tell_errors
from steprag.web.guard import Access, Guard, route_of

ROUTES = frozenset({"/retrieve", "/search", "/batch_search", "/health", "/metrics"})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Telemetry:
    """Counters of one service; `waiting` is how many queries are accepted and not yet answered."""

    def __init__(self, retriever: FolderRetriever) -> None:
        self.waiting = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "steprag_requests", "Requests answered, by route and status", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "steprag_request_seconds", "Time from request to reply", ["route"], buckets=SECONDS, registry=self._registry
        )
        self._queries = Counter("steprag_queries", "Queries accepted", registry=self._registry)
        Gauge("steprag_queries_waiting", "Queries accepted and not yet answered", registry=self._registry).set_function(
            lambda: self.waiting
        )
        self._registry.register(_IndexCounts(retriever))

    def text(self) -> bytes:
        """All counters in Prometheus's text format."""
        return generate_latest(self._registry)

    @contextmanager
    def accepted(self, queries: int) -> Iterator[None]:
        """Counts queries as waiting while the block runs."""
        self.waiting += queries
        self._queries.inc(queries)
        try:
            yield
        finally:
            self.waiting -= queries

    def timed(self, path: str) -> AbstractContextManager[Any]:
        """Adds the seconds that a block takes to the route's histogram, also where it raises."""
        return self._seconds.labels(_route(path)).time()

    def answered(self, path: str, status: int) -> None:
        """Counts a reply by route and HTTP status."""
        self._requests.labels(_route(path), str(status)).inc()


def _route(path: str) -> str:
    """One of our routes, or "other": what clients make up must not become labels."""
    return path if path in ROUTES else "other"


class _IndexCounts(Collector):
    """What the retriever counts by itself."""

    def __init__(self, retriever: FolderRetriever) -> None:
        self._retriever = retriever

    def collect(self) -> Iterator[Metric]:
        counts = self._retriever.counts
        yield CounterMetricFamily("steprag_index_searches", "Searches, remembered ones included", counts.searches)
        yield CounterMetricFamily("steprag_index_remembered", "Searches answered from memory", counts.remembered)
        yield CounterMetricFamily("steprag_index_batches", "Batches searched", counts.batches)
        yield CounterMetricFamily("steprag_index_batched", "Queries in those batches", counts.batched)


log = logging.getLogger(__name__)
BULKY = 64
"""Queries from which on a reply is written in a thread of its own."""


@dataclass(frozen=True)
class Served:
    """What the service tells of itself, and who may ask. `token` None: anyone who reaches it."""

    retriever: FolderRetriever
    mode: str
    limits: LimitsConfig
    top_k: int = 3
    token: str | None = None
    loopback: bool = True


class RetrieveBody(BaseModel):
    """Search-R1's. `topk` null or 0: the service's own."""

    queries: list[str]
    topk: Annotated[int, Field(ge=0)] | None = None
    return_scores: bool = False


class SearchBody(BaseModel):
    """ReSearch's."""

    query: str
    top_n: Annotated[int, Field(ge=1)] = 10
    return_score: bool = False


class BatchSearchBody(BaseModel):
    """ReSearch's."""

    query: list[str]
    top_n: Annotated[int, Field(ge=1)] = 10
    return_score: bool = False


def create_app(served: Served) -> FastAPI:
    """The application. It does not close the retriever."""
    app = FastAPI(title="StepRAG retriever", docs_url=None, redoc_url=None, openapi_url=None)
    telemetry = Telemetry(served.retriever)
    desk = _Desk(served, telemetry)
    free = ("/health",) if served.token is not None else tuple(ROUTES)
    names = frozenset() if served.loopback else frozenset({ANY_NAME})  # programs ask, by a cluster's names for it
    access = Access(
        served.token or secrets.token_hex(), served.loopback, free, served.limits.body_bytes, "steprag_index", names
    )
    app.add_middleware(Guard, access)
    app.add_middleware(_Noting, served.retriever.fingerprint, telemetry)
    tell_errors(app)

    @app.post("/retrieve")
    async def retrieve(body: RetrieveBody) -> Response:
        found = await desk.search(body.queries, body.topk or served.top_k)
        if body.return_scores:
            return await desk.reply(found, lambda rows: {"result": [[_scored(p) for p in row] for row in rows]})
        return await desk.reply(found, lambda rows: {"result": [[as_document(p) for p in row] for row in rows]})

    @app.post("/search")
    async def search(body: SearchBody) -> Response:
        if not body.query.strip():
            raise ApiError(400, "empty", "Query content cannot be empty")
        (found,) = await desk.search([body.query], body.top_n)
        return await desk.reply([found], lambda rows: _with_scores(rows, body.return_score, single=True))

    @app.post("/batch_search")
    async def batch_search(body: BatchSearchBody) -> Response:
        found = await desk.search(body.query, body.top_n)
        return await desk.reply(found, lambda rows: _with_scores(rows, body.return_score, single=False))

    @app.get("/health")
    async def health(request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        known = served.token is None or access.knows(token)
        named = {FINGERPRINT: served.retriever.fingerprint} if known else None
        status = 200 if served.retriever.state == "healthy" else 503
        return as_json(_health(served, telemetry, known=known), status, named)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(telemetry.text(), media_type=CONTENT_TYPE_LATEST)

    return app


def _found(outcome: tuple[Passage, ...] | BaseException) -> tuple[Passage, ...]:
    """A search's passages. Raises ApiError 500 where it failed; the log has what a client need not know."""
    if not isinstance(outcome, BaseException):
        return outcome
    if isinstance(outcome, StepragError):
        log.error("a search failed: %s", outcome)
    else:
        log.error("a search failed", exc_info=outcome)
    raise ApiError(500, "failed", "the search failed; the service's log says why")  # the log may name files


class _Desk:
    """Takes queries in, bounded in number and time, and writes replies."""

    def __init__(self, served: Served, telemetry: Telemetry) -> None:
        self._served, self._telemetry = served, telemetry

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The passages of every query, in order; none for a query without text."""
        self._check(queries, top_k)
        asked = [query for query in queries if query.strip()]
        limits, ahead = self._served.limits, self._telemetry.waiting
        # a request behind less than one batch may be of any size
        if ahead + len(asked) > limits.waiting or self._served.retriever.delay(ahead) > limits.seconds / 2:
            raise ApiError(429, "busy", "too many queries wait already; come again", after=1)
        with self._telemetry.accepted(len(asked)):
            await self._served.retriever.load_finished()  # a slow start is no one's time-out
            try:
                async with asyncio.timeout(limits.seconds):
                    searches = (self._served.retriever.search(query, top_k) for query in asked)
                    outcomes = await asyncio.gather(*searches, return_exceptions=True)
            except TimeoutError:
                raise ApiError(504, "late", f"not answered within {limits.seconds:g} s") from None
        found = iter([_found(outcome) for outcome in outcomes])
        return [next(found) if query.strip() else () for query in queries]

    def _check(self, queries: Sequence[str], top_k: int) -> None:
        limits = self._served.limits
        if len(queries) > limits.queries:
            raise ApiError(422, "too_much", f"{len(queries)} queries; at most {limits.queries} in one request")
        if top_k > limits.top_k:
            raise ApiError(422, "too_much", f"{top_k} passages a query; at most {limits.top_k}")
        if (longest := max(map(len, queries), default=0)) > limits.query_chars:
            raise ApiError(422, "too_much", f"a query of {longest} characters; at most {limits.query_chars}")

    async def reply(self, found: Sequence[tuple[Passage, ...]], shape: Any) -> Response:
        if len(found) < BULKY:
            return as_json(shape(found))
        return await asyncio.to_thread(lambda: as_json(shape(found)))


def _scored(passage: Passage) -> dict[str, Any]:
    return {"document": as_document(passage), "score": passage.score}


def _with_scores(rows: Sequence[tuple[Passage, ...]], scores: bool, *, single: bool) -> Any:
    """ReSearch's shapes: documents, or [documents, scores]; for one query without the outer list."""
    documents = [[{key: as_document(p)[key] for key in ("id", "contents")} for p in row] for row in rows]
    numbers = [[p.score for p in row] for row in rows]
    if single:
        return [documents[0], numbers[0]] if scores else documents[0]
    return [documents, numbers] if scores else documents


def _health(served: Served, telemetry: Telemetry, *, known: bool) -> dict[str, Any]:
    """ReSearch's `status` and `retrievers`, and what is served; the latter only for those who may search."""
    state = served.retriever.state
    status = {"status": state, "retrievers": {"total": 1, "available": int(state == "healthy")}}
    if not known:
        return {**status, "token": "required"}
    return {
        **status,
        "fingerprint": served.retriever.fingerprint,
        "mode": served.mode,
        "passages": served.retriever.passages,
        "top_k": served.top_k,
        "waiting": telemetry.waiting,
        "limits": served.limits.model_dump(),
    }


class _Noting:
    """Around every request: its metrics, and the index's name on what the guard lets through."""

    def __init__(self, app: ASGIApp, fingerprint: str, telemetry: Telemetry) -> None:
        self._app, self._name, self._telemetry = app, (FINGERPRINT.lower().encode(), fingerprint.encode()), telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_of(scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._telemetry.answered(path, message["status"])
                if path in ROUTES and path != "/health" and message["status"] not in (401, 403):
                    message["headers"] = [*message.get("headers", ()), self._name]
            await send(message)

        told = f"{scope['method']} {quoted(path)} is not served; ask POST /retrieve, /search or /batch_search"
        answering = self._app if path in ROUTES else ApiError(404, "http", told).reply()
        with self._telemetry.timed(path):
            await answering(scope, receive, sending)
