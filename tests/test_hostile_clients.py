"""Clients that mean harm to a web service: slow, silent and many. The service goes on answering the others."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest
from fastapi import FastAPI, Request

from steprag.web import listening
from steprag.web.listening import ConnectionBounds, Seldom, bounded_protocol, full_said_once, room

uvicorn = pytest.importorskip("uvicorn")
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: loc"
BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"


def answering() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def read() -> str:
        return "ok"

    @app.post("/")
    async def write(request: Request) -> int:
        return len(await request.body())

    return app


@asynccontextmanager
async def served(most: int = 8, header: float = 20, body: float = 20) -> AsyncIterator[int]:
    config = uvicorn.Config(
        answering(), port=0, log_level="error", http=bounded_protocol(ConnectionBounds(most, header, body))
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve(None))  # without its signal handlers
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def reply(port: int, sent: bytes = WHOLE) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await reader.read(64)
    finally:
        writer.close()


def bounded(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in an event loop, within 30 seconds."""

    @wraps(test)
    def run(**given: bytes) -> None:
        asyncio.run(asyncio.wait_for(test(**given), 30))

    return run


@bounded
async def test_half_headers_make_room_for_whole_requests() -> None:
    async with served(most=8) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _, writer in held:
            writer.write(HALF)
        for _ in range(5):
            assert (await reply(port)).startswith(b"HTTP/1.1 200")
        closed = await asyncio.gather(*(reader.read() for reader, _ in held[:30]), return_exceptions=True)
        assert all(one == b"" or isinstance(one, ConnectionError) for one in closed)
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("sent", [b"", HALF, BODY])
@bounded
async def test_what_stays_unfinished_is_closed(sent: bytes) -> None:
    async with served(header=0.2, body=0.2) as port:
        assert not (await reply(port, sent)).startswith(b"HTTP/1.1 200")
        assert (await reply(port)).startswith(b"HTTP/1.1 200")


@bounded
async def test_a_trickle_is_closed_and_a_second_half_header_too() -> None:
    async with served(header=0.4) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WHOLE)
        await reader.readuntil(b'"ok"')
        await asyncio.sleep(0.6)  # idle between requests: not bounded by the header's time
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()


@bounded
async def test_busy_connections_are_not_made_to_go() -> None:
    async with served(most=4) as port:
        begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in begun:
            writer.write(BODY)
        await asyncio.sleep(0.2)
        refused = await asyncio.gather(*(reply(port) for _ in range(3)), return_exceptions=True)
        assert all(one == b"" or isinstance(one, ConnectionError) for one in refused)
        for reader, writer in begun:
            writer.write(b" body.")
            assert (await reader.read(64)).startswith(b"HTTP/1.1 200")
            writer.close()


def test_connections_stay_below_the_limit_on_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for limit in (128, 1024, soft):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            most, at_once = room()
            assert at_once >= 8
            assert most + at_once + 40 < limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_table_of_files_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    logger, seldom = logging.getLogger(listening.__name__), Seldom()
    logger.addFilter(seldom)
    loop = asyncio.new_event_loop()
    try:
        for _ in range(1000):
            full_said_once(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24)})
    finally:
        logger.removeFilter(seldom)
        loop.close()
    assert [record.getMessage() for record in caplog.records] == [
        "no file descriptor is left for new connections; ulimit -n allows more"
    ]


CHUNKS = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"/", b"/refused"])
@bounded
async def test_chunks_of_one_byte_cost_their_senders_alone(path: bytes) -> None:
    """Between two slices the loop is free, and nothing behind a refusal is parsed: neither shows in a clock alone."""
    async with served(most=400) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in held:
            writer.write(CHUNKS % path + b"1\r\nx\r\n" * 20_000)
        for _ in range(5):
            assert (await asyncio.wait_for(reply(port), 5)).startswith(b"HTTP/1.1 200")
        if path == b"/refused":
            answers = await asyncio.gather(*(reader.read() for reader, _ in held))
            assert all(one.startswith(b"HTTP/1.1 404") for one in answers)
        for _, writer in held:
            writer.transport.abort()


STUCK = """
import re, signal, sys
from steprag.console import stop_guard
from steprag.web.listening import until_stopped
stop_guard.LATER = 0.5
async def serving():
    print("begun", flush=True)
    {}
sys.exit(until_stopped(serving(), 0.5))
"""


@pytest.mark.parametrize("work", ["re.match('(a|a)*b', 'a' * 60)", "sum(iter(int, 1))"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_whatever_it_is_doing(work: str, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK.format(work)], stdout=subprocess.PIPE) as service:
        assert service.stdout
        assert service.stdout.readline() == b"begun\n"
        service.send_signal(number)
        try:
            assert service.wait(30) in (0, -signal.SIGKILL)  # `re` looks for signals
        finally:
            service.kill()
