"""The application: its routes, its guard, and what its errors say over HTTP."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from inference.chat.conversation_routes import conversation_routes
from inference.chat.openai_api import openai_routes
from inference.chat.service import ChatService
from inference.chat.turn_routes import asking_routes, reading_routes
from inference.chat.wire import ApiError, SessionBody, as_json
from steprag.errors import StepragError
from steprag.web.assets import page_routes
from steprag.web.guard import Guard

PAGE = Path(__file__).parent / "page"
FREE = ("/", "/page/", "/vendor/", "/healthz", "/api/session")
"""What needs no token: the page's own files hold nothing of anyone."""


def create_chat_app(service: ChatService) -> FastAPI:
    """The application. The desk is the caller's to close."""
    app = FastAPI(title="StepRAG", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, door=service.door)
    app.include_router(page_routes(PAGE))
    app.include_router(_session(service))
    app.include_router(asking_routes(service))
    app.include_router(reading_routes(service))
    app.include_router(conversation_routes(service))
    app.include_router(openai_routes(service))

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.reply()

    @app.exception_handler(StarletteHTTPException)
    async def plain(request: Request, error: StarletteHTTPException) -> Response:
        return ApiError(error.status_code, "http", str(error.detail)).reply()

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]  # the rest, and what was sent, would only repeat the request
        where = ".".join(str(part) for part in first["loc"][1:])
        status = 400 if request.url.path.startswith("/v1/") else 422
        return ApiError(status, "malformed", f"{where}: {first['msg'].lower()}", param=where or None).reply()

    @app.exception_handler(StepragError)
    async def failed(request: Request, error: StepragError) -> Response:
        return ApiError(500, "failed", str(error)).reply()

    @app.exception_handler(OSError)
    async def no_room(request: Request, error: OSError) -> Response:
        return ApiError(503, "not_kept", f"the turn cannot be kept: {error.strerror}").reply()

    @app.get("/healthz")
    async def health() -> Response:
        return as_json({"status": "ok"})

    return app


def _session(service: ChatService) -> APIRouter:
    """Signing a browser in, and what answers here."""
    router, desk = APIRouter(prefix="/api"), service.desk

    @router.post("/session", status_code=204)
    async def session(body: SessionBody) -> Response:
        if not service.door.knows(body.token):
            raise ApiError(401, "no_token", "this is not the service's token")
        return Response(status_code=204, headers={"Set-Cookie": service.door.set_cookie()})

    @router.get("/info")
    async def info() -> Response:
        rewriter = desk.chat.rewriter is not None
        return as_json({"model": service.model, "index": service.index, "modes": service.modes, "mode": service.mode,
                        "rewriter": rewriter, "version": service.version, "waiting": desk.waiting,
                        "playing": desk.playing})  # fmt: skip

    return router
