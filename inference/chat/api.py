"""The application: its routes, and what its errors say over HTTP."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response

from inference.chat.conversation_routes import conversation_routes
from inference.chat.figures import metrics_route
from inference.chat.openai_api import openai_routes
from inference.chat.service import ChatService
from inference.chat.source_pages import PREFIX, source_routes
from inference.chat.turn_routes import asking_routes, reading_routes
from steprag.web.app import page_app
from steprag.web.replies import ApiError, as_json

PAGE = Path(__file__).parent / "page"
FREE = (f"{PREFIX}/",)
"""What needs no token beside the page's own files: links to passages, which hold a proof of their own."""


def create_chat_app(service: ChatService) -> FastAPI:
    """The application. The desk is the caller's to close."""
    app = page_app("StepRAG", PAGE, service.door, {"/v1/": 400})
    app.include_router(_info(service))
    app.include_router(asking_routes(service))
    app.include_router(reading_routes(service))
    app.include_router(conversation_routes(service))
    app.include_router(openai_routes(service))
    app.include_router(source_routes(service))
    app.include_router(metrics_route(service.desk))

    @app.exception_handler(OSError)
    async def no_room(request: Request, error: OSError) -> Response:
        return ApiError(503, "not_kept", f"the turn cannot be kept: {error.strerror}").reply()

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
