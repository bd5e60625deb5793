"""The service's routes: Search-R1's `POST /retrieve`, the ReSearch family's `POST /search` and `/batch_search`, health
and metrics. Many clients' queries become one batch in the retriever; the event loop never searches.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indexes.retrieval.folder_retriever import FolderRetriever
from indexes.retrieval.remote import FINGERPRINT
from indexes.service.config import LimitsConfig
from indexes.service.telemetry import Telemetry
from steprag.errors import StepragError
from steprag.hosts import LOCAL_NAMES
from steprag.types import Passage
from steprag.web.guard import bounded

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
    app.add_middleware(_Gate, served=served, telemetry=telemetry)
    if served.loopback:  # a web page that makes its name point here must not get through
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=sorted(LOCAL_NAMES))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]  # the rest, and what was sent, would only repeat the request
        where = ".".join(str(part) for part in first["loc"][1:])
        return _json({"detail": f"{where}: {first['msg'].lower()}" if where else first["msg"]}, 422)

    @app.post("/retrieve")
    async def retrieve(body: RetrieveBody) -> Response:
        found = await desk.search(body.queries, body.topk or served.top_k)
        if body.return_scores:
            return await desk.reply(found, lambda rows: {"result": [[_scored(p) for p in row] for row in rows]})
        return await desk.reply(found, lambda rows: {"result": [[_document(p) for p in row] for row in rows]})

    @app.post("/search")
    async def search(body: SearchBody) -> Response:
        if not body.query.strip():
            raise HTTPException(400, "Query content cannot be empty")
        (found,) = await desk.search([body.query], body.top_n)
        return await desk.reply([found], lambda rows: _with_scores(rows, body.return_score, single=True))

    @app.post("/batch_search")
    async def batch_search(body: BatchSearchBody) -> Response:
        found = await desk.search(body.query, body.top_n)
        return await desk.reply(found, lambda rows: _with_scores(rows, body.return_score, single=False))

    @app.get("/health")
    async def health(request: Request) -> Response:
        return _json(_health(served, telemetry, request), 200 if served.retriever.state == "healthy" else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(telemetry.text(), media_type=telemetry.content_type)

    return app


def _found(outcome: tuple[Passage, ...] | BaseException) -> tuple[Passage, ...]:
    """A search's passages. Raises HTTPException 500 where it failed; the log has what a client need not know."""
    if not isinstance(outcome, BaseException):
        return outcome
    if isinstance(outcome, StepragError):
        log.error("a search failed: %s", outcome)
    else:
        log.error("a search failed", exc_info=outcome)
    raise HTTPException(500, "the search failed; the service's log says why")  # the log names files, a client sees none


class _Desk:
    """Takes queries in, bounded in number and time, and writes replies."""

    def __init__(self, served: Served, telemetry: Telemetry) -> None:
        self._served, self._telemetry = served, telemetry

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The passages of every query, in order; none for a query without text."""
        self._check(queries, top_k)
        asked = [query for query in queries if query.strip()]
        if self._full(len(asked)):
            raise HTTPException(429, "too many queries wait already; come again", {"Retry-After": "1"})
        with self._telemetry.accepted(len(asked)):
            await self._served.retriever.settled()  # a slow start is no one's time-out
            try:
                async with asyncio.timeout(self._served.limits.seconds):
                    searches = (self._served.retriever.search(query, top_k) for query in asked)
                    outcomes = await asyncio.gather(*searches, return_exceptions=True)
            except TimeoutError:
                raise HTTPException(504, f"not answered within {self._served.limits.seconds:g} s") from None
        found = iter([_found(outcome) for outcome in outcomes])
        return [next(found) if query.strip() else () for query in queries]

    def _full(self, queries: int) -> bool:
        """Whether so many more would be too many, or half the time would be over before their turn came.

        A request with less than a batch before it is taken whatever its size.
        """
        limits, ahead = self._served.limits, self._telemetry.waiting
        return ahead + queries > limits.waiting or self._served.retriever.delay(ahead) > limits.seconds / 2

    def _check(self, queries: Sequence[str], top_k: int) -> None:
        limits = self._served.limits
        if len(queries) > limits.queries:
            raise HTTPException(422, f"{len(queries)} queries; at most {limits.queries} in one request")
        if top_k > limits.top_k:
            raise HTTPException(422, f"{top_k} passages a query; at most {limits.top_k}")
        if (longest := max(map(len, queries), default=0)) > limits.query_chars:
            raise HTTPException(422, f"a query of {longest} characters; at most {limits.query_chars}")

    async def reply(self, found: Sequence[tuple[Passage, ...]], shape: Any) -> Response:
        if len(found) < BULKY:
            return _json(shape(found))
        return await asyncio.to_thread(lambda: _json(shape(found)))


def _json(content: Any, status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def _document(passage: Passage) -> dict[str, str]:
    """The corpus row in both spellings."""
    title = f'"{passage.title}"' if passage.title else ""
    return {"id": passage.id, "contents": f"{title}\n{passage.text}", "title": passage.title, "text": passage.text}


def _scored(passage: Passage) -> dict[str, Any]:
    return {"document": _document(passage), "score": passage.score}


def _with_scores(rows: Sequence[tuple[Passage, ...]], scores: bool, *, single: bool) -> Any:
    """ReSearch's shapes: documents, or [documents, scores]; for one query without the outer list."""
    documents = [[{key: _document(p)[key] for key in ("id", "contents")} for p in row] for row in rows]
    numbers = [[p.score for p in row] for row in rows]
    if single:
        return [documents[0], numbers[0]] if scores else documents[0]
    return [documents, numbers] if scores else documents


def _health(served: Served, telemetry: Telemetry, request: Request) -> dict[str, Any]:
    """ReSearch's `status` and `retrievers`, and what is served; the latter only for those who may search."""
    state = served.retriever.state
    status = {"status": state, "retrievers": {"total": 1, "available": int(state == "healthy")}}
    if not _allowed(served, request.headers.get("authorization")):
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


def _allowed(served: Served, authorization: str | None) -> bool:
    expected = f"Bearer {served.token}".encode()
    return served.token is None or hmac.compare_digest((authorization or "").encode(), expected)


class _Gate:
    """Before any route: the token, the size of the body; after it: the index's name and the request's metrics."""

    def __init__(self, app: ASGIApp, served: Served, telemetry: Telemetry) -> None:
        self._app, self._served, self._telemetry = app, served, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        allowed = _allowed(self._served, headers.get(b"authorization"))
        name = (FINGERPRINT.lower().encode(), self._served.retriever.fingerprint.encode())

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._telemetry.answered(scope["path"], message["status"])
                message["headers"] = [*message.get("headers", ()), *([name] if allowed else ())]
            await send(message)

        if scope["path"] != "/health" and not allowed:
            await _json({"detail": "this service wants a token"}, 401)(scope, receive, sending)
            return
        with self._telemetry.timed(scope["path"]):
            await self._app(scope, bounded(receive, self._served.limits.body_bytes), sending)
