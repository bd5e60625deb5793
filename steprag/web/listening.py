"""The socket that a service listens on, the token that it wants, and uvicorn behind both."""

from __future__ import annotations

import os
import socket

from starlette.types import ASGIApp

from steprag.engines.server import is_loopback
from steprag.errors import ConfigError

KEEP_ALIVE = 65
"""Seconds that an idle connection stays open: longer than clients leave theirs, so none is closed under a request."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is told before anything is loaded. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it on, small replies wait 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listening


def url_of(listening: socket.socket) -> str:
    """The address of a listening socket as a URL."""
    address, port = listening.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def token_in(token_env: str, host: str) -> str | None:
    """The token that clients must send: what the variable holds. Raises ConfigError where it is needed and missing."""
    token = os.environ.get(token_env, "").strip() or None
    if token is None and not is_loopback(host):
        raise ConfigError(f"serving on {host} needs a token: put one in the environment variable {token_env}")
    return token


async def serve_app(app: ASGIApp, listening: socket.socket, *, grace: int) -> None:
    """Serves until a signal comes; requests that are under way then have `grace` seconds to end."""
    import uvicorn

    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )
    await uvicorn.Server(settings).serve(sockets=[listening])
