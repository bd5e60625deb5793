"""What every service with a page is made of: its application, its door, and the link that lets a browser in."""

from __future__ import annotations

import secrets
import socket
import sys
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Response

from steprag.hosts import is_loopback, url_of
from steprag.web.assets import page_routes
from steprag.web.guard import Door, Guard
from steprag.web.listening import token_in
from steprag.web.replies import as_json, session_route, tell_errors

FREE = ("/", "/page/", "/vendor/", "/healthz", "/api/session")
"""What needs no token: the page's own files hold nothing of anyone."""


def page_app(title: str, page: Path, door: Door, malformed_status: dict[str, int] | None = None) -> FastAPI:
    """The application of the page in the folder `page`, behind its door: files, sign-in, errors, `/healthz`.

    `malformed_status`: as in `tell_errors`.
    """
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, door=door)
    app.include_router(page_routes(page))
    app.include_router(session_route(door))
    tell_errors(app, malformed_status)

    @app.get("/healthz")
    async def health() -> Response:
        return as_json({"status": "ok"})

    return app


def token_of(host: str, token_env: str) -> str:
    """What the variable holds; on this machine one is made up where it is empty. Raises ConfigError beyond it."""
    return token_in(token_env, host) or secrets.token_urlsafe(24)


def door_of(listening: socket.socket, host: str, token: str, body_bytes: int, free: tuple[str, ...] = ()) -> Door:
    """The door of the service on that socket. `free`: paths that need no token, beside a page's own."""
    return Door(token, is_loopback(host), (*FREE, *free), body_bytes, f"steprag{listening.getsockname()[1]}")


def show_link(listening: socket.socket, door: Door) -> None:
    """Writes the link that signs a browser in to standard output. The part behind # is never sent."""
    sys.stdout.write(f"{url_of(listening)}/#token={quote(door.token, safe='')}\n")
    sys.stdout.flush()
