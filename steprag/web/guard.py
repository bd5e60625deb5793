"""Access to our web services, and the policy of what their pages may load. Pure ASGI: it stands before every route.

A request needs a name of this machine (`Host`), a page of ours (`Origin`; both: `steprag.net.hosts`) and the token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any

from fastapi import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steprag.net.hosts import stranger

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""The Content-Security-Policy of our pages: their own files alone, and no text that becomes markup."""
PREFIXES = ("x-forwarded-prefix", "x-forwarded-context", "x-proxycontextpath", "x-script-name")
"""Headers in which proxies name the path under which they serve an application: Traefik, JupyterHub, others."""
PREFIX = re.compile(r"(?:/(?!\.)[\w.~%@:+-]{1,200}){1,20}", re.ASCII)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_HALF = re.compile(r"[\ud800-\udfff]|\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
"""Half a surrogate pair in JSON whose escaped backslashes are left out: itself, or its escape."""
NO_CHARACTER = "the body has half a surrogate pair, which is no character (half an emoji?); send whole characters"


@dataclass(frozen=True)
class Access:
    """Who may ask. `token`: what requests must carry. `loopback`: only names of this machine are answered.

    `names`: further names that it answers to, in lower case (`steprag.net.hosts.stranger`).
    `free`: paths that need no token, a page's own files; one that ends in "/" stands for all below it. `body_bytes`:
    the longest request body; a longer one is 413. `cookie`: the name of the page's cookie; browsers do not keep
    ports apart, so each service has a name of its own.
    """

    token: str
    loopback: bool
    free: tuple[str, ...]
    body_bytes: int
    cookie: str
    names: frozenset[str] = frozenset()
    uploads: tuple[str, int] | None = None
    """Where paths begin whose bodies may be longer than others, and how long they may be."""

    def longest(self, path: str) -> int:
        """Bytes that a request to the path may have."""
        return self.uploads[1] if self.uploads and path.startswith(self.uploads[0]) else self.body_bytes

    def session(self) -> str:
        """What the page's cookie holds: proof of the token, not the token."""
        return hmac.new(self.token.encode(), b"steprag session", hashlib.sha256).hexdigest()

    def knows(self, token: str) -> bool:
        """Whether this is the token; takes as long for every wrong one."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def set_cookie(self, root: str) -> str:
        """The header's value that signs a browser in until it is closed. `root`: the path under which a proxy serves
        the application; other people's services may lie beside it and must not get the cookie.
        """
        return f"{self.cookie}={self.session()}; HttpOnly; SameSite=Strict; Path={root or '/'}"


class Guard:
    """The middleware. Answers 403 to strangers' names and pages, 401 without the token; adds the pages' headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        if scope["type"] == "websocket" and _refusal(self._access, route_of(scope), headers):
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope = _below(_prefix(headers), scope)
        path = route_of(scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", ())
                kept = {name for name, _ in own}  # a document's own policy stands
                message["headers"] = [*own, *((name, value) for name, value in HEADERS if name not in kept)]
            await send(message)

        if refusal := _refusal(self._access, path, headers):
            await _reply(*refusal)(scope, receive, sending)
            return
        # as health checks ask; the server leaves the body out. Streams and what goes on to another server stay out
        if scope["method"] == "HEAD" and not re.search(r"/events/?\Z|\A/v1/(?!models)", path):
            scope = {**scope, "method": "GET"}
        receive = bounded(receive, self._access.longest(path))
        uploads = self._access.uploads
        if "json" in headers.get("content-type", "").lower() and not (uploads and path.startswith(uploads[0])):
            receive = whole_characters(receive)
        await self._app(scope, receive, sending)


def _prefix(headers: dict[str, str]) -> str:
    """The path under which a proxy serves the application, according to its headers; empty if they name none."""
    told = next((value for name in PREFIXES if (value := headers.get(name))), "")
    prefix = "".join(part.strip().rstrip("/") for part in told.split(","))  # several proxies, the outermost first
    return prefix if PREFIX.fullmatch(prefix) else ""


def route_of(scope: Scope) -> str:
    """The path of a request within the application: without the prefix that a proxy or a mount adds."""
    return scope["path"].removeprefix(scope.get("root_path", "")) or "/"


def _below(prefix: str, scope: Scope) -> Scope:
    """The request as ASGI has it for an application under a path, whether or not the proxy strips that path."""
    root, path = scope.get("root_path", ""), scope["path"]
    if not prefix or root.startswith(prefix):
        return scope
    path = path if f"{path}/".startswith(f"{prefix}/") else prefix + path
    return {**scope, "root_path": prefix + root, "path": path}


def _refusal(access: Access, path: str, headers: dict[str, str]) -> tuple[int, str, str] | None:
    """Status, code and message of a refusal; None if the request is allowed."""
    if refused := stranger(headers, loopback=access.loopback, names=access.names):
        return 403, *refused
    if _is_free(path, access.free) or _carries_token(access, headers):
        return None
    return 401, "no_token", "this service wants its token: Authorization: Bearer TOKEN, or the link that it printed"


def _is_free(path: str, free: tuple[str, ...]) -> bool:
    return any(path == one or (one.endswith("/") and one != "/" and path.startswith(one)) for one in free)


def _carries_token(access: Access, headers: dict[str, str]) -> bool:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and access.knows(token.strip()):
        return True
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(access.cookie)
    except CookieError:
        return False
    return cookie is not None and hmac.compare_digest(cookie.value.encode(), access.session().encode())


def bounded(receive: Receive, most: int) -> Receive:
    """`receive` that gives up with 413 once more than `most` bytes of the body have come, whatever the header says."""
    read = 0

    async def receiving() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
        return message

    return receiving


def whole_characters(receive: Receive) -> Receive:
    """`receive` that gives up with 422 where JSON has half a surrogate pair: neither files nor replies can hold it."""
    body = bytearray()

    async def receiving() -> Message:
        message = await receive()
        body.extend(message.get("body", b""))
        if not message.get("more_body") and body:
            try:
                text = body.decode(json.detect_encoding(body), "surrogatepass")  # as `json.loads` does
            except UnicodeDecodeError:
                return message  # the parser says so
            if _HALF.search(text.replace("\\\\", "  ")):
                raise HTTPException(422, NO_CHARACTER)
            body.clear()
        return message

    return receiving


def error_body(message: str, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    """An error in the shape of the OpenAI API, which all routes of the chat service and the viewer use."""
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def _reply(status: int, code: str, message: str) -> Response:
    kind, headers = (
        ("authentication_error", {"WWW-Authenticate": "Bearer"}) if status == 401 else ("permission_error", {})
    )
    return JSONResponse(error_body(message, kind, code), status, headers)
