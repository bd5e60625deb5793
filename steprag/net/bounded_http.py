"""An HTTP client for untrusted endpoints: every reply is bounded in bytes and in total time.

httpx2's time-outs bound a single read, so an endpoint that sends a byte now and then holds a request for ever; and a
reply of a few kilobytes may unpack to gigabytes.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2

from steprag.errors import ConfigError, quoted
from steprag.net.hosts import is_local

REPLY_BYTES = 32 << 20
"""Bytes of a reply, body alone."""
LEAST_SECRET = 12
"""Characters of a key from which on it is looked for in replies: "none" and "EMPTY" are words."""
HIDDEN = b"[key]"
_SOCKS = importlib.util.find_spec("socksio") is not None


def direct(url: str) -> dict[str, Any]:
    """Options of an httpx2 client: no proxy of the environment for an endpoint on this machine. SSL_CERT_FILE holds.

    Raises ConfigError for another endpoint where the environment names a proxy that cannot be used.
    """
    if is_local(url):
        return {"trust_env": False, "verify": httpx2.create_ssl_context()}
    for name, proxy in getproxies().items():
        if name in ("http", "https", "all"):
            _check_proxy(f"{name.upper()}_PROXY", proxy)
    return {}


def _check_proxy(variable: str, proxy: str) -> None:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        fits = parts.port != 0 and parts.scheme in ("http", "https", *(("socks5", "socks5h") if _SOCKS else ()))
    except ValueError:  # a port that is no number
        fits = False
    if not fits:
        raise ConfigError(
            f"${variable}: {quoted(proxy.rpartition('@')[2])} is no proxy that can be used here; "
            "give http://HOST:PORT, or unset it (SOCKS: pip install socksio, then socks5://HOST:PORT)"
        )


class BoundedClient(httpx2.AsyncClient):
    """A client of the endpoint at `url`. Its requests take `seconds` at most, from sending to the reply's last byte.

    A reply that is slower raises httpx2.ReadTimeout; one of more than `REPLY_BYTES`, or a packed one, raises
    httpx2.RemoteProtocolError. Redirects are not followed: they would carry the request to a host that the user did not
    name. Where a reply repeats `secret`, the client's own key, "[key]" stands in its place: what endpoints say is shown
    and kept in files. An endpoint on this machine is asked without a proxy.
    """

    def __init__(self, url: str, *, seconds: float, secret: str = "", **options: Any) -> None:
        super().__init__(follow_redirects=False, **direct(url), **options)
        self._seconds, self._secret = seconds, secret.encode() if len(secret) >= LEAST_SECRET else b""

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """As the base; `stream` leaves the body to be read within the same time."""
        request.headers["Accept-Encoding"] = "identity"
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                response = await super().send(request, stream=True, **options)
        except TimeoutError:
            raise _late(self._seconds, request) from None
        body: Any = response.stream
        response.stream = _BoundedBody(body, request, deadline, self._seconds, self._secret)
        try:
            if packed := response.headers.get("Content-Encoding", "identity").strip().lower().replace("identity", ""):
                raise httpx2.RemoteProtocolError(f"a packed reply ({packed[:20]}) that nobody asked for")
            if not stream:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


class _BoundedBody(httpx2.AsyncByteStream):
    """A reply's bytes, counted, in time, and without the secret."""

    def __init__(
        self, body: httpx2.AsyncByteStream, request: httpx2.Request, deadline: float, seconds: float, secret: bytes
    ) -> None:
        self._body, self._request, self._secret = body, request, secret
        self._deadline, self._seconds = deadline, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left, kept = REPLY_BYTES, b""
        async for chunk in self._chunks():
            left -= len(chunk)
            if left < 0:
                raise httpx2.RemoteProtocolError(f"a reply of more than {REPLY_BYTES:,} bytes", request=self._request)
            if not self._secret:
                yield chunk
                continue
            whole = (kept + chunk).replace(self._secret, HIDDEN)
            held = _begun(whole, self._secret)
            whole, kept = whole[: len(whole) - held], whole[len(whole) - held :]
            if whole:
                yield whole
        if kept:
            yield kept

    async def _chunks(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._body)
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise _late(self._seconds, self._request) from None
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


def _begun(text: bytes, secret: bytes) -> int:
    """How many bytes at the end of `text` may be the beginning of the secret: the rest may come with the next chunk."""
    return next((n for n in range(min(len(text), len(secret) - 1), 0, -1) if text.endswith(secret[:n])), 0)


def _late(seconds: float, request: httpx2.Request) -> httpx2.ReadTimeout:
    return httpx2.ReadTimeout(f"no whole reply within {seconds:g} s", request=request)


def checked_url(url: str, name: str) -> str:
    """An endpoint's URL. Raises ValueError, without the URL, for one that cannot be asked or that carries a password
    or a key: URLs are shown and kept in manifests, where keys must not stand.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
        _ = parts.port
    except ValueError:
        usable, parts = False, None
    if parts is None or not usable:
        raise ValueError(f"{name} is no URL of an endpoint; write http://HOST:PORT/… or https://…")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{name} holds a name or a password; put the key into an environment variable instead")
    if parts.query or parts.fragment:
        raise ValueError(f"{name} goes on with ? or #; end it before, and put a key into an environment variable")
    return url
