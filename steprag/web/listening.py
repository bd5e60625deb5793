"""The socket that a service listens on, the token that it wants, and uvicorn behind both."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from starlette.types import ASGIApp

from steprag.errors import ConfigError
from steprag.net.hosts import is_loopback

KEEP_ALIVE = 65
"""Seconds that an idle connection stays open: longer than clients leave theirs, so none is closed under a request."""

QUEUE = 1024
"""Clients whose connections the kernel holds until they are accepted."""


def token_in(token_env: str, host: str) -> str | None:
    """The token that clients must send: what the variable holds. Raises ConfigError where it is needed and missing."""
    token = os.environ.get(token_env, "").strip() or None
    if token is None and not is_loopback(host):
        raise ConfigError(f"serving on {host} needs a token: put one in the environment variable {token_env}")
    return token


async def serve_app(app: ASGIApp, listening: socket.socket, *, grace: int) -> None:
    """Serves until a signal comes; requests that are under way then have `grace` seconds to end.

    Connections are bounded in number and time (`steprag.web.connections`).
    """
    import uvicorn

    from steprag.web import connections

    most, at_once = connections.room()
    settings = uvicorn.Config(
        app,
        http=connections.bounded_protocol(connections.ConnectionBounds(most)),
        backlog=at_once,  # asyncio accepts so many before it looks at the first
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )
    for name in ("uvicorn.error", connections.__name__):
        logging.getLogger(name).addFilter(connections.Seldom())
    logging.getLogger("uvicorn.error").addFilter(_no_news)
    asyncio.get_running_loop().set_exception_handler(connections.full_said_once)
    server = uvicorn.Server(settings)
    asyncio.get_running_loop().call_soon(_deepen, server, listening)
    await server.serve(sockets=[listening])


def _no_news(record: logging.LogRecord) -> bool:
    """Whether a log record says more than that a stopping service cancelled a request."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _deepen(server: Any, listening: socket.socket) -> None:
    """Lets the kernel hold more clients that wait than asyncio accepts in one go, once uvicorn has begun to listen."""
    if server.started:
        listening.listen(QUEUE)
    elif not server.should_exit:
        asyncio.get_running_loop().call_later(0.05, _deepen, server, listening)
