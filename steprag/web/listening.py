"""The socket that a service listens on, the token that it wants, and uvicorn behind both.

uvicorn bounds neither half a header nor half a body: a client that sends a byte now and then would hold a connection
for ever, and as many as there are file descriptors stop the service before any token is looked at. So every part of a
request has its time, and where no more connections fit, the one that has waited longest without a request makes room.
Bodies are parsed by turns, a slice of each connection's, so that chunks of one byte cost their senders alone; once a
request is answered, nothing more of it is parsed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import signal
import socket
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from steprag.console.stop_guard import ended_within
from steprag.errors import ConfigError
from steprag.net.hosts import is_loopback

KEEP_ALIVE = 65
"""Seconds that an idle connection stays open: longer than clients leave theirs, so none is closed under a request."""

QUEUE = 1024
"""Clients whose connections the kernel holds until they are accepted."""
HEADER_SECONDS = 20.0
"""From the connection, or from a later request's first byte, to the end of the header."""
BODY_SECONDS = 60.0
"""From the header to the end of the body."""
READ_SECONDS = 60.0
"""Seconds without reading its reply after which a client counts as gone."""
LINGER_SECONDS = 2.0
"""How long what comes behind an early reply is thrown away: a connection closed at once would take the reply along."""
SLICE, CHUNKED_SLICE = 1 << 16, 1024
"""Bytes of a body that are parsed in one go; each of its chunks costs as much as a slice of a plain one."""
HEADER_SLICE = 512
"""Bytes that are parsed in one go where a header has no end yet."""
TURN_SECONDS = 0.005
"""Of parsing bodies, after which others have their turn."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
MOST = 2048
"""Connections at once, where the system allows so many."""
_OTHER_FILES = 48
"""File descriptors that a service needs beside its connections."""
_SELDOM = 10.0
"""Seconds between two log lines that say the same."""
TOKEN_CHARS = 16
"""Characters of a token that others may try."""
TOKEN_KINDS = 6
"""Different characters in it, common words left out."""
COMMON = re.compile("passwor[dt]|secret|token|steprag|admin|qwert|letmein|changeme|choose|welcome|hunter|test")
"""What many put into tokens."""
log = logging.getLogger(__name__)


def token_in(token_env: str, host: str, *, shared: bool = False) -> str | None:
    """The token that clients must send: what the variable holds. Raises ConfigError where it is needed and missing, or
    easy to guess. `shared`: others reach the service although it listens on this machine alone, as by a proxy.
    """
    token = os.environ.get(token_env, "").strip() or None
    if is_loopback(host) and not shared:
        return token
    if token is None and not is_loopback(host):
        raise ConfigError(f"serving on {host} needs a token: put one in the environment variable {token_env}")
    if token is not None and (why := _guessable(token)):
        raise ConfigError(f"the token in {token_env} is easy to guess ({why}); make one that others may try in vain: "
                          f"export {token_env}=$(openssl rand -hex 16)")  # fmt: skip
    return token


def _guessable(token: str) -> str | None:
    """Why a token can be found by trying; None where it cannot."""
    if len(token) < TOKEN_CHARS:
        return f"{len(token)} characters; at least {TOKEN_CHARS}"
    rest = COMMON.sub("", token.lower())
    steps = sum(abs(ord(one) - ord(other)) <= 1 for one, other in pairwise(rest))  # 1234…, aaaa…
    return "a word or row that many use" if len(set(rest)) < TOKEN_KINDS or steps > len(rest) / 2 else None


def until_stopped(serving: Coroutine[Any, Any, None], grace: float | None = 10) -> int:
    """Runs a service until it is ended, by Ctrl-C or likewise by `kill`; returns the exit code. It is killed where it
    takes more than `grace` seconds and a little, whatever it does (`steprag.console.stop_guard`); None: never.

    uvicorn answers what it accepted and raises the signal again behind it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with nullcontext() if grace is None else ended_within(grace):
            asyncio.run(serving)
    except* KeyboardInterrupt:  # in a group where a task group stands around the service
        pass
    return 0


async def serve_app(app: ASGIApp, listening: socket.socket, *, grace: int) -> None:
    """Serves until a signal comes; requests that are under way then have `grace` seconds to end.

    Connections are bounded in number and time (`BoundedProtocol`).
    """
    most, at_once = room()
    settings = uvicorn.Config(
        app,
        http=bounded_protocol(ConnectionBounds(most)),
        backlog=at_once,  # asyncio accepts so many before it looks at the first
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )
    for name in ("uvicorn.error", __name__):
        logging.getLogger(name).addFilter(Seldom())
    logging.getLogger("uvicorn.error").addFilter(_no_news)
    asyncio.get_running_loop().set_exception_handler(full_said_once)
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


def room() -> tuple[int, int]:
    """Connections at once, and how many may be accepted in one go, within the limit on open files (`ulimit -n`)."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = MOST + 512 if files == resource.RLIM_INFINITY else files
    at_once = max(8, min(64, files // 8))
    return max(8, min(MOST, files - at_once - _OTHER_FILES)), at_once


@dataclass(frozen=True)
class ConnectionBounds:
    """What the connections of one service share. `idle`: those without a request, the longest so first. `unread`:
    those that have sent what is not parsed yet.
    """

    most: int
    header: float = HEADER_SECONDS
    body: float = BODY_SECONDS
    idle: dict[Any, None] = field(default_factory=dict)
    unread: deque[Any] = field(default_factory=deque)

    def parse(self) -> None:
        """Parses a slice of each connection's by turns, then lets the event loop do other work."""
        end = time.perf_counter() + TURN_SECONDS
        while self.unread and time.perf_counter() < end:
            self.unread.popleft().parse_slice()
        if self.unread:
            asyncio.get_running_loop().call_soon(self.parse)

    def wait(self, connection: Any) -> None:
        """Puts a connection at the end of the row."""
        self.unread.append(connection)
        if len(self.unread) == 1:
            asyncio.get_running_loop().call_soon(self.parse)


_Base: Any = AutoHTTPProtocol


class BoundedProtocol(_Base):
    """uvicorn's HTTP protocol with the bounds of its service; `bounded_protocol` makes one for each."""

    bounds: ConnectionBounds
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _part: str | None = None
    _waits = _answered_early = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._rest = bytearray()
        self.flow.resume_reading = self._resume_reading  # uvicorn's own would read on over what waits
        if len(self.connections) > self.bounds.most:
            leaving = next(iter(self.bounds.idle), self)
            self.bounds.idle.pop(leaving, None)
            leaving.transport.abort()
        if not transport.is_closing():
            self._enter("header")

    def data_received(self, data: bytes) -> None:
        if self._answered_early:
            return
        self._rest += data
        if not self._working and not self._waits:
            self.parse_slice()
        elif not self.transport.is_closing():
            self.transport.pause_reading()
            self._wait()

    def parse_slice(self) -> None:
        """Parses the next part of what has come: the header to its end, or a slice of the body."""
        self._waits = False
        if self.transport.is_closing() or not self._rest:
            self._rest.clear()
            return
        if self._working:
            size = CHUNKED_SLICE if b"transfer-encoding" in dict(self.headers) else SLICE
        else:
            end = _BLANK_LINE.search(self._rest)
            size = end.end() if end else HEADER_SLICE
        data = bytes(self._rest[:size])
        del self._rest[:size]
        self._parse(data)
        if (now := self.transport.get_protocol()) is not self:  # a WebSocket's
            now.data_received(bytes(self._rest))
            self._rest.clear()
        if self._rest:
            self._wait()
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        if not self._working and self._part is None:
            self._enter("header")
        super().data_received(data)
        if self._working:
            self._enter("body" if self.cycle.more_body else None)

    def _wait(self) -> None:
        if self._rest and not self._waits and not self.flow.read_paused:
            self._waits = True
            self.bounds.wait(self)

    def _resume_reading(self) -> None:
        """In place of uvicorn's: the app takes more of the body; the socket is read once all that came is parsed."""
        self.flow.read_paused = False
        if self._rest:
            self._wait()
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_websocket_upgrade(self, *event: Any) -> None:
        self._timer = _cancelled(self._timer)  # a socket stays open; uvicorn's own protocol has it from here
        self.bounds.idle.pop(self, None)
        super().handle_websocket_upgrade(*event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._answered_early = True
            self._rest.clear()
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        if not self._working and not self.transport.is_closing():
            self._enter(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled = _cancelled(self._stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer, self._stalled = _cancelled(self._timer), _cancelled(self._stalled)
        self.bounds.idle.pop(self, None)
        super().connection_lost(exc)

    @property
    def _working(self) -> bool:
        """Whether a request's header is there and its reply not yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _enter(self, part: str | None) -> None:
        """Begins the time of the header or the body; ends it where there is neither to wait for."""
        if self._working:
            self.bounds.idle.pop(self, None)
        else:
            self.bounds.idle.setdefault(self)
        if part != self._part:
            _cancelled(self._timer)
            seconds = self.bounds.header if part == "header" else self.bounds.body
            self._part, self._timer = part, self.loop.call_later(seconds, self.transport.abort) if part else None


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def bounded_protocol(bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    """The protocol of a service with these bounds."""
    return type("ServiceProtocol", (BoundedProtocol,), {"bounds": bounds})


class Seldom(logging.Filter):
    """Lets a message through once in a while: strangers decide how often one is due, and logs fill disks."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message was not said within the last seconds."""
        kind = record.exc_info[0] if record.exc_info else None
        message, now = f"{kind} {record.getMessage()[:200]}", time.monotonic()
        if now - self._said.get(message, -_SELDOM) >= _SELDOM:
            self._said = {message: now} if len(self._said) > 100 else {**self._said, message: now}
            return True
        return False


def full_said_once(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's handler of errors. asyncio logs a traceback each time that no descriptor is left to accept a
    connection, hundreds a second; this says it in one line, which `Seldom` keeps rare.
    """
    if str(context.get("message", "")).startswith("socket.accept() out of system resource"):
        log.warning("no file descriptor is left for new connections; ulimit -n allows more")
    else:
        loop.default_exception_handler(context)
