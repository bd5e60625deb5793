"""The viewer's routes: reading, and one that marks pairs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.viewer.answers import Address, Answers
from steprag.errors import ConfigError, DataError
from steprag.web.app import ApiError, as_json, page_app
from steprag.web.guard import Access

PAGE = Path(__file__).parent / "page"
Kind = Literal["trees", "pairs", "predictions", "episodes"]
Place = Annotated[int, Query(ge=0)]
Start = Annotated[int, Query(ge=0, alias="from")]
Asked = Annotated[str, Query(min_length=1, max_length=300, pattern=r"\S")]


class MarkBody(BaseModel):
    """`POST /api/marks`."""

    model_config = ConfigDict(extra="forbid")
    run: str
    file: Annotated[int, Field(ge=0)] = 0
    line: Annotated[int, Field(ge=1)]
    id: str
    wrong: bool


def _record_at(kind: Kind, run: str, line: Place = 0, id: str = "", file: Place = 0) -> Address:
    return Address(run, kind, line, id, file)


def _tree_at(run: str, line: Place = 0, id: str = "") -> Address:
    return Address(run, "trees", line, id)


AT_ONCE = 256
"""Requests that are worked on at once; one more is refused."""
RecordAt = Annotated[Address, Depends(_record_at)]
TreeAt = Annotated[Address, Depends(_tree_at)]


class Crowded:
    """The middleware that answers 429 while `at_once` requests are being worked on. Without it, waiting requests could
    take all connections, and new ones would be cut off.
    """

    def __init__(self, app: ASGIApp, at_once: int) -> None:
        self._app, self._at_once, self._working = app, at_once, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._working >= self._at_once:
            await ApiError(429, "busy", "too many requests at once; come again", after=1).reply()(scope, receive, send)
            return
        self._working += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._working -= 1


def create_view_app(answers: Answers, access: Access) -> FastAPI:
    """The application."""
    app = page_app("StepRAG viewer", PAGE, access)
    app.include_router(run_routes(answers))
    app.include_router(tree_routes(answers))
    app.add_middleware(Crowded, at_once=AT_ONCE)

    @app.exception_handler(DataError)
    @app.exception_handler(ConfigError)
    async def not_there(request: Request, error: DataError | ConfigError) -> Response:
        return ApiError(404, "not_there", str(error)).reply()

    @app.exception_handler(OSError)
    async def not_read(request: Request, error: OSError) -> Response:
        return ApiError(503, "not_read", f"{error.filename or 'the disk'}: {error.strerror}").reply()

    return app


def run_routes(answers: Answers) -> APIRouter:
    """Runs, their files and the marks. The functions read files, so they run in threads."""
    router = APIRouter(prefix="/api")

    for ask in (answers.runs, answers.kinds, answers.series, answers.quality, answers.marks, answers.failures):
        router.get(f"/{ask.__name__}", response_model=None)(_replied(ask))

    @router.get("/rows/{kind}")
    def rows(kind: Kind, run: str, file: Place = 0, start: Start = 0) -> Response:
        return as_json(answers.rows(run, kind, file, start))

    @router.get("/search/{kind}")
    def search(kind: Kind, run: str, asked: Asked, file: Place = 0, start: Start = 0) -> Response:
        return as_json(answers.search(run, kind, file, asked, start))

    @router.get("/record/{kind}")
    def record(at: RecordAt) -> Response:
        return as_json(answers.record(at))

    @router.get("/comparison")
    def comparison(run: Annotated[list[str], Query(min_length=1, max_length=8)]) -> Response:
        return as_json(answers.comparison(run))

    @router.post("/marks")
    def mark(body: MarkBody) -> Response:
        return as_json(answers.mark(Address(body.run, "pairs", body.line, body.id, body.file), body.wrong))

    return router


def tree_routes(answers: Answers) -> APIRouter:
    """Trees, their nodes and rewards, and the ways between a tree and its pairs."""
    router = APIRouter(prefix="/api")
    for ask in (answers.tree, answers.node, answers.every_reward, answers.pairs_of, answers.where):
        router.get(f"/{ask.__name__}", response_model=None)(_replied(ask))

    @router.get("/rewards")
    def rewards(
        at: TreeAt,
        rule: str | None = None,
        metric: str | None = None,
        alpha: float | None = None,
        grounded: bool | None = None,
        like: str | None = None,
    ) -> Response:
        asked: dict[str, Any] = {"name": rule, "metric": metric, "alpha": alpha, "grounded": grounded}
        reward = {key: value for key, value in asked.items() if value is not None}
        return as_json(answers.rewards(at, reward, like))

    return router


def _replied(ask: Callable[..., dict[str, Any]]) -> Callable[..., Response]:
    """`ask` as a route that has its parameters; a place `at` is a tree's."""

    def reply(**given: Any) -> Response:
        return as_json(ask(**given))

    parameters = signature(ask, eval_str=True).parameters.values()
    places = [one.replace(annotation=TreeAt) if one.name == "at" else one for one in parameters]
    setattr(reply, "__signature__", Signature(places))  # noqa: B010 - what FastAPI reads
    return reply
