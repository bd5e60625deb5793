"""The application: its routes, its guard, and what its errors say over HTTP."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response

from inference.chat.conversation_routes import conversation_routes
from inference.chat.openai_api import openai_routes
from inference.chat.service import ChatService
from inference.chat.turn_routes import asking_routes, reading_routes
from steprag.web.assets import page_routes
from steprag.web.guard import Guard
from steprag.web.replies import ApiError, as_json, session_route, tell_errors

PAGE = Path(__file__).parent / "page"
FREE = ("/", "/page/", "/vendor/", "/healthz", "/api/session")
"""What needs no token: the page's own files hold nothing of anyone."""


def create_chat_app(service: ChatService) -> FastAPI:
    """The application. The desk is the caller's to close."""
    app = FastAPI(title="StepRAG", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, door=service.door)
    app.include_router(page_routes(PAGE))
    app.include_router(session_route(service.door))
    app.include_router(_info(service))
    app.include_router(asking_routes(service))
    app.include_router(reading_routes(service))
    app.include_router(conversation_routes(service))
    app.include_router(openai_routes(service))

    tell_errors(app, {"/v1/": 400})

    @app.exception_handler(OSError)
    async def no_room(request: Request, error: OSError) -> Response:
        return ApiError(503, "not_kept", f"the turn cannot be kept: {error.strerror}").reply()

    @app.get("/healthz")
    async def health() -> Response:
        return as_json({"status": "ok"})

    return app


def _info(service: ChatService) -> APIRouter:
    """What answers here."""
    router, desk = APIRouter(prefix="/api"), service.desk

    @router.get("/info")
    async def info() -> Response:
        rewriter = desk.chat.rewriter is not None
        return as_json({"model": service.model, "index": service.index, "modes": service.modes, "mode": service.mode,
                        "rewriter": rewriter, "version": service.version, "waiting": desk.waiting,
                        "playing": desk.playing})  # fmt: skip

    return router
