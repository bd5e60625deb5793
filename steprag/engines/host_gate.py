"""A door before an engine that looks at no `Host`: who asks by a foreign name, or from a page elsewhere, is refused.

The servers of llama.cpp, vLLM and transformers answer whatever name they are asked by, so a web page whose own name
points to this machine could ask them. The gate reads the header of a connection's request, adds the engine's key and
hands on the rest as it comes. A connection carries one request, so no second header passes unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import urlsplit

from steprag.hosts import listen, stranger, url_of

HEADER_BYTES = 64 << 10
HEADER_SECONDS = 20.0
MOST = 512
"""Connections at once; one more is closed."""
_OURS = (b"authorization", b"connection", b"proxy-connection", b"keep-alive", b"upgrade")


@dataclass
class HostGate:
    """The door of one engine. `target`: its URL without a path. `key`: what it wants, None for nothing."""

    target: str
    key: str | None
    _open: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection to its end."""
        self._open += 1
        try:
            if self._open <= MOST:
                async with asyncio.timeout(HEADER_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                await self._handed_on(head, reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, or sent no header: there is nobody to tell
        finally:
            self._open -= 1
            writer.close()

    async def _handed_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = head[:-4].split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        if sum(line.lower().startswith(b"host:") for line in lines) != 1:
            writer.write(_refusal(400, "bad_request", "one Host header is wanted"))
            return
        if refused := stranger(named, loopback=True):
            writer.write(_refusal(403, *refused))
            return
        kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OURS]
        kept.append(b"Connection: close")
        if self.key:
            kept.append(b"Authorization: Bearer " + self.key.encode())
        place = urlsplit(self.target)
        try:
            back, forth = await asyncio.open_connection(place.hostname, place.port)
        except OSError:
            writer.write(_refusal(502, "engine_gone", "the engine does not answer"))
            return
        forth.write(b"\r\n".join([first, *kept]) + b"\r\n\r\n")
        asking = asyncio.create_task(_pour(reader, forth))
        try:
            await _pour(back, writer)
        finally:
            asking.cancel()
            forth.close()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Hands on bytes until there are no more, and then that: an engine sees its client go, and frees the slot."""
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(1 << 16):
            sink.write(piece)
            await sink.drain()
        sink.write_eof()


def _refusal(status: int, code: str, message: str) -> bytes:
    words = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}[status]
    body = json.dumps({"error": {"message": message, "type": "permission_error", "code": code}}).encode()
    head = f"HTTP/1.1 {status} {words}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


@contextlib.contextmanager
def host_gate(target: str, key: str | None, host: str, port: int) -> Generator[str]:
    """Keeps a gate before `target` for the length of a `with` block, in a thread of its own; gives its URL.

    Raises ConfigError where the port is taken.
    """
    listening = listen(host, port)
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(HostGate(target, key).answer, sock=listening, limit=HEADER_BYTES)
        await ended.wait()
        server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # its end cancels what is still open
            runner.run(serve())

    thread = threading.Thread(target=run, name="host-gate", daemon=True)
    thread.start()
    try:
        yield url_of(listening)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
