"""The HTTP client of an MCP server: bounded replies, and each failure as an error of the protocol that names it.

The protocol's package tells of no status, and ends the connection where HTTP fails.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS

from indexes.tools.stdio_relay import HALVES, mended
from steprag.net.bounded_http import certificates, proxy_of

MESSAGE_BYTES = 8 << 20
"""Bytes of one message of a server."""
UNSENT = -32090
"""Our code of an error: the call did not reach the tool, so it may be made again."""
SESSION = "mcp-session-id"
FORGOTTEN = (400, 404)
"""Statuses of servers that no longer know the session, as after their restart."""
REMEDIES = {
    401: "; give its key by headers: {Authorization: NAME OF A VARIABLE}",
    403: "; its key may not do this, or headers names none",
    404: "; no MCP server is at this address",
    405: "; an address that ends in /sse is of the old protocol: give the server's other one, often /mcp",
}


class BoundedHttp(httpx2.AsyncClient):
    """Cuts replies that are longer than a message may be; of streams the protocol's package bounds each event."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The reply; an error of the protocol in its place where HTTP fails or refuses."""
        try:
            response = await super().send(request, **options)
            body: Any = response.stream
            if response.headers.get("Content-Type", "").startswith("text/event-stream"):
                response.stream = _MendedEvents(body, _asked(request))
                return response
            whole = b"".join([piece async for piece in _BoundedReply(body)])
            if response.status_code < 400:
                whole = mended(whole, _asked(request))
            response.stream = httpx2.ByteStream(whole)
            await body.aclose()
            if response.status_code >= 400:
                await response.aread()
                return _refusal(request, response)
            if b'"jsonrpc"' in whole and _is_json(whole):  # whatever it is said to be
                response.headers["Content-Type"] = "application/json"
            return response
        except httpx2.TransportError as error:
            reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.UnsupportedProtocol)
            told = f"{type(error).__name__}: {error}"
            return _error(request, 503, CONNECTION_CLOSED if reached else UNSENT, told)


class _BoundedReply(httpx2.AsyncByteStream):
    """A body without what is too long or does not come. What is cut is no JSON, which the protocol's package answers;
    an error here would end the connection.
    """

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MESSAGE_BYTES
        try:
            async for piece in self._inner:
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return
        except httpx2.TransportError:
            return

    async def aclose(self) -> None:
        await self._inner.aclose()


class _MendedEvents(_BoundedReply):
    """Events whose messages are put right; one that is longer than a message may be is handed on as it comes.

    `asked`: the id of the request that they answer.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, asked: object) -> None:
        super().__init__(inner)
        self._asked = asked

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event, size, left = list[bytes](), 0, b""
        async for piece in self._inner:
            *lines, left = (left + piece).split(b"\n")
            for line in lines:
                event.append(line)
                size += len(line) + 1
                if not line.strip():
                    yield self._put_right(event)
                    event, size = [], 0
            if size + len(left) > MESSAGE_BYTES:
                yield b"".join(line + b"\n" for line in event) + left
                event, size, left = [], 0, b""
        yield b"".join(line + b"\n" for line in event) + left

    def _put_right(self, event: list[bytes]) -> bytes:
        """An event's lines; its message, of one or several lines of data, is mended as one."""
        data = [line.removeprefix(b"data:").strip() for line in event if line.startswith(b"data:")]
        if (said := b"\n".join(data)) and (better := mended(said, self._asked)) != said:
            rest = [line for line in event[:-1] if not line.startswith(b"data:")]
            event = [*rest, b"data: " + better.replace(b"\n", b"\n\ndata: "), b""]
        return b"".join(line + b"\n" for line in event)


def _asked(request: httpx2.Request) -> object:
    """The id of the request for which a reply is awaited; None where none is."""
    return json.loads(request.content).get("id") if request.content else None


def _is_json(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _refusal(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """A refusal as an error with its status, the server's own words, and a remedy."""
    status = response.status_code
    try:
        error = json.loads(response.content)["error"]
        code, told, data = int(error["code"]), f": {error['message']}", error.get("data")
    except (ValueError, TypeError, KeyError):  # no error of the protocol
        code, told, data = INTERNAL_ERROR, "", None
    if status in FORGOTTEN and SESSION in request.headers and code != INVALID_PARAMS:
        code = UNSENT
    told = f"HTTP {status} {response.reason_phrase}{told}{REMEDIES.get(status, '')}"
    return _error(request, status, code, told, data)


def _error(request: httpx2.Request, status: int, code: int, message: str, data: Any = None) -> httpx2.Response:
    error = {"code": code, "message": HALVES.sub("\ufffd", message[:300]), "data": data}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def client_of(url: str, headers: Mapping[str, str], seconds: float) -> BoundedHttp:
    """The client of a server's URL; one of this machine is never asked by way of a proxy."""
    # the protocol's package bounds each reply; one that HTTP itself gives up would end the connection
    sent = {"Accept-Encoding": "identity", **headers}
    timeout = httpx2.Timeout(seconds, read=None)
    return BoundedHttp(headers=sent, timeout=timeout, proxy=proxy_of(url), trust_env=False, verify=certificates())
