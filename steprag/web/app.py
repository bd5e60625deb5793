"""The parts of a service with a page: the application, the page's files, sign-in, and errors of one shape."""

from __future__ import annotations

import json
import posixpath
import re
import secrets
import socket
import sys
from collections.abc import Iterable
from os import PathLike, stat_result
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Scope

from steprag.errors import StepragError
from steprag.net.hosts import is_loopback, own_names, url_of
from steprag.web.guard import Access, Guard, error_body, route_of
from steprag.web.listening import token_in

FREE = ("/", "/page/", "/vendor/", "/healthz", "/api/session")
"""What needs no token: the page's own files hold nothing of anyone."""
VENDOR = Path(__file__).parent / "vendor"
"""Front-end files of others; SOURCES.md there says which."""
SHARED = Path(__file__).parent / "page"
"""Our own front-end files that every page has among its own."""
NO_OBJECT = "the body is no JSON object in plain UTF-8; send one, with Content-Type: application/json"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Endings that are served, and their content types."""
IMPORT = re.compile(r"""(\b(?:from|import)\s*)"([^"]+\.js)\"""")
"""What a module imports, behind the word that says so."""


class PageFiles(StaticFiles):
    """Files of a page, looked for in several folders, the first that has it. Browsers ask each time whether one has
    changed. Files without an ending of KINDS are not found.
    """

    def __init__(self, *folders: Path) -> None:
        super().__init__(directory=folders[0])
        self.all_directories = list(folders)

    def lookup_path(self, path: str) -> tuple[str, stat_result | None]:
        """The file's path and status; no status where there is none."""
        return super().lookup_path(path) if Path(path).suffix in KINDS and "\0" not in path else ("", None)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The reply, or 304 where the browser has the file as it is."""
        reply = super().file_response(full_path, stat_result, scope, status_code)
        reply.headers["Cache-Control"] = "no-cache"
        if reply.status_code == 200:
            reply.headers["Content-Type"] = KINDS[Path(full_path).suffix]
        return reply


def page_file(folder: Path, name: str) -> Path:
    """The file that `/page/NAME` gives: the folder's own, else a shared one."""
    own = folder / name
    return own if own.exists() else SHARED / name


def modules(page: Path) -> list[str]:
    """Addresses of the modules of a page that `main.js` needs, itself first."""
    found = ["/page/main.js"]
    for address in found:
        for _, name in IMPORT.findall(asset(page, address)):
            needed = beside(address, name)
            found += [needed] if needed not in found else []
    return found


def naming_modules(page: Path) -> str:
    """The page's `index.html`, which names every module: a browser need not read one to ask for the next. Addresses are
    relative, so that a proxy may offer the service below any path.
    """
    links = "".join(f'<link rel="modulepreload" href="{each[1:]}">\n    ' for each in modules(page))
    before, at, behind = asset(page, "/page/index.html").partition('<script type="module"')
    return f"{before}{links}{at}{behind}"


def beside(address: str, name: str) -> str:
    """The address of what a module names relative to its own."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(address), name))


def asset(page: Path, address: str) -> str:
    """The text that the server gives at an address of `/page/` or `/vendor/`."""
    room, _, name = address.removeprefix("/").partition("/")
    file = page_file(page, name) if room == "page" else VENDOR / name
    return file.read_text(encoding="utf-8")


class SessionBody(BaseModel):
    """`POST /api/session`."""

    model_config = ConfigDict(extra="forbid")
    token: str


class ApiError(Exception):
    """A refusal in the shape of the OpenAI API. `code` is for programs, the message for people."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.after = status, code, param, after

    def reply(self) -> Response:
        """The response; with `Retry-After` where `after` says when to come again."""
        kind = (
            "invalid_request_error" if self.status < 429 else "rate_limit_error" if self.status == 429 else "api_error"
        )
        headers = {} if self.after is None else {"Retry-After": str(self.after)}
        return as_json(error_body(str(self), kind, self.code, self.param), self.status, headers)


def as_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response. Half a surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, headers, media_type="application/json")


def tell_errors(app: FastAPI, malformed_status: dict[str, int] | None = None) -> None:
    """Errors of every route in one shape. `malformed_status`: by the beginning of a path, the status of a request that
    is not as it should be; 422 elsewhere.
    """
    statuses = malformed_status or {}

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.reply()

    @app.exception_handler(StarletteHTTPException)
    async def plain(request: Request, error: StarletteHTTPException) -> Response:
        if error.status_code == 400:  # FastAPI's own: bytes that are no text
            return ApiError(400, "malformed", NO_OBJECT).reply()
        return ApiError(error.status_code, "http", str(error.detail)).reply()

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]  # the rest, and what was sent, would only repeat the request
        where = "" if first["type"] == "json_invalid" else ".".join(str(part) for part in first["loc"][1:])
        told = f"{where}: {first['msg'].lower()}" if where else NO_OBJECT
        path = route_of(request.scope)
        status = next((status for start, status in statuses.items() if path.startswith(start)), 422)
        return ApiError(status, "malformed", told, param=where or None).reply()

    @app.exception_handler(StepragError)
    async def failed(request: Request, error: StepragError) -> Response:
        return ApiError(500, "failed", str(error)).reply()

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        # the server raises it again, and so logs it
        return ApiError(500, "fault", "a fault of the service; its log says more").reply()


def page_app(title: str, page: Path, access: Access, malformed_status: dict[str, int] | None = None) -> FastAPI:
    """The application of the page in the folder `page`, behind its guard: files, sign-in, errors, `/healthz`.

    `malformed_status`: as in `tell_errors`.
    """
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, access=access)
    app.mount("/page", PageFiles(page, SHARED))
    app.mount("/vendor", PageFiles(VENDOR))
    tell_errors(app, malformed_status)
    whole = naming_modules(page)

    @app.get("/")
    async def shell() -> Response:
        return Response(whole, media_type=KINDS[".html"], headers={"Cache-Control": "no-cache"})

    @app.post("/api/session", status_code=204)
    async def session(body: SessionBody, request: Request) -> Response:
        if not access.knows(body.token):
            raise ApiError(401, "no_token", "this is not the service's token")
        return Response(status_code=204, headers={"Set-Cookie": access.set_cookie(request.scope["root_path"])})

    @app.get("/healthz")
    async def health() -> Response:
        return as_json({"status": "ok"})

    return app


def token_of(host: str, token_env: str, names: Iterable[str] = ()) -> str:
    """What the variable holds; on this machine one is made up where it is empty. Raises ConfigError beyond it.

    `names`: further names under which the service is reached, so that others may try tokens.
    """
    return token_in(token_env, host, shared=bool([*names])) or secrets.token_urlsafe(24)


def access_of(
    listening: socket.socket, host: str, token: str, body_bytes: int, *free: str, names: Iterable[str] = ()
) -> Access:
    """Who may ask the service on that socket. `free`: paths that need no token, beside a page's own. `names`: what it
    answers to beside this machine's own.
    """
    cookie, local = f"steprag{listening.getsockname()[1]}", is_loopback(host)
    known = frozenset(name.lower() for name in names) | (frozenset() if local else own_names())
    return Access(token, local, (*FREE, *free), body_bytes, cookie, known)


def show_link(listening: socket.socket, access: Access) -> None:
    """Writes the link that signs a browser in to standard output. The part behind # is never sent."""
    sys.stdout.write(f"{url_of(listening)}/#token={quote(access.token, safe='')}\n")
    sys.stdout.flush()
