"""Requests to the web: few bytes, few redirects, no cookies, no proxies, and no private address (`addresses`)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from indexes.web.addresses import ForbiddenAddress, GuardedResolver, checked
from steprag.errors import RetrieverError, quoted

REDIRECTS = 3
REDIRECTING = frozenset({301, 302, 303, 307, 308})
CONNECTIONS, PER_HOST = 32, 2
BLOCK = 1 << 16
Permits = Callable[[URL], Awaitable[bool]]
"""Whether an address may be fetched, asked before each hop."""


class FetchError(RetrieverError):
    """A request to the web failed."""


@dataclass(frozen=True)
class Reply:
    """What came back. `url`: where it came from, after redirects. `body` is decompressed, and cut off at the cap."""

    url: URL
    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Sends requests. For one event loop at a time."""

    def __init__(
        self,
        allowed: frozenset[tuple[str, int]],
        *,
        most: int,
        user_agent: str,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`most`: bytes of a body. `resolver` looks names up (the system's by default) and is guarded either way."""
        self.allowed, self._most, self._agent, self._inner = allowed, most, user_agent, resolver
        self._session: tuple[asyncio.AbstractEventLoop, aiohttp.ClientSession] | None = None

    async def get(self, url: str | URL, permits: Permits | None = None) -> Reply:
        """The reply of the last hop, whatever its status. Raises FetchError; every hop is checked before it is asked,
        by `permits` too. The caller bounds the time.
        """
        for _ in range(REDIRECTS + 1):
            url = self._checked(url)
            if permits is not None and not await permits(url):
                raise FetchError("robots.txt forbids it")
            reply = await self.request("GET", url)
            if reply.status not in REDIRECTING:
                return reply
            url = _next(reply)
        raise FetchError(f"more than {REDIRECTS} redirects")

    async def request(
        self, method: str, url: str | URL, *, headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None, json: Any = None,
    ) -> Reply:  # fmt: skip
        """One reply, no redirect followed. Raises FetchError."""
        asked = self._checked(url)
        sent = {"User-Agent": self._agent, "Accept-Encoding": "gzip", **(headers or {})}
        try:
            async with self._open().request(method, asked, headers=sent, params=params, json=json,
                                            allow_redirects=False) as reply:  # fmt: skip
                return Reply(reply.url, reply.status, reply.headers, await self._body(reply))
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a URL that aiohttp cannot send
            raise FetchError(_reason(error)) from None

    def _checked(self, url: str | URL) -> URL:
        try:
            return checked(url, self.allowed)
        except ForbiddenAddress as error:
            raise FetchError(str(error)) from None

    async def _body(self, reply: aiohttp.ClientResponse) -> bytes:
        """The body as far as the cap, decompressed here, so that a bomb is cut off and not held."""
        unpack = _unpacker(reply.headers.get("Content-Encoding", ""))
        body = bytearray()
        async for block in reply.content.iter_chunked(BLOCK):
            body += unpack(block, self._most - len(body))
            if len(body) >= self._most:
                reply.close()
                break
        return bytes(body[: self._most])

    def _open(self) -> aiohttp.ClientSession:
        """The session of the running loop; connections belong to the loop that made them."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session[0] is not loop:
            resolver = GuardedResolver(self._inner or ThreadedResolver(), self.allowed)
            connector = aiohttp.TCPConnector(
                limit=CONNECTIONS, limit_per_host=PER_HOST, resolver=resolver, use_dns_cache=False,
                socket_factory=resolver.socket_for,
            )  # fmt: skip
            self._session = loop, aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )  # fmt: skip
        return self._session[1]

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._session is not None and self._session[0] is asyncio.get_running_loop():
            await self._session[1].close()
        self._session = None


def _reason(error: Exception) -> str:
    """What went wrong, in a line; what the guard said of a name or a socket, where it was the guard."""
    inner = getattr(error, "os_error", None)
    return str(inner) if isinstance(inner, ForbiddenAddress) else f"{type(error).__name__}: {error}"[:300]


def _next(reply: Reply) -> URL:
    try:
        return reply.url.join(URL(reply.headers.get("Location", "")))
    except ValueError as error:
        raise FetchError(f"a redirect to no address: {str(error)[:100]}") from None


def _unpacker(encoding: str) -> Any:
    """What decompresses a block to at most so many bytes. Raises FetchError for an encoding that was not asked for."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return lambda block, most: block[:most]
    if encoding not in ("gzip", "x-gzip"):
        raise FetchError(f"content encoding {quoted(encoding)} was not asked for")
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    def unpack(block: bytes, most: int) -> bytes:
        try:
            return stream.decompress(block, most) if most > 0 else b""
        except zlib.error as error:
            raise FetchError(f"damaged content: {error}") from None

    return unpack
