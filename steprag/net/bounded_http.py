"""The HTTP client for untrusted endpoints, on aiohttp: every reply is bounded in bytes and in total time.

Time-outs of a library bound a single read, so an endpoint that sends a byte now and then holds a request for ever; and
a reply of a few kilobytes may unpack to gigabytes.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi

from steprag.errors import ConfigError, quoted
from steprag.net.hosts import is_local

REPLY_BYTES = 32 << 20
"""Bytes of a reply, body alone."""
LEAST_SECRET = 12
"""Characters of a key from which on it is looked for in replies: "none" and "EMPTY" are words."""
HIDDEN = b"[key]"
PROXIES = ("http", "https")
"""Schemes of a proxy that can be used."""
FIRST_WAIT, LONGEST_WAIT, LONGEST_TOLD = 0.5, 8.0, 600.0
"""Seconds before a request is sent again, doubled each time; and the most of them that an endpoint may ask for."""
RESET = "reset"
"""In the names of headers that say when a limit resets; with `remaining` in its place, they say what is left of it."""
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?) ?")
EPOCH = 1e9
"""A greater number is a moment, in seconds since 1970, and not a wait."""


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an endpoint; none for one on this machine.

    Raises ConfigError for another endpoint where the environment names a proxy that cannot be used.
    """
    if is_local(url):
        return None
    proxies, parts = getproxies(), urlsplit(url)
    for name in PROXIES if proxies.get(parts.scheme) else (*PROXIES, "all"):  # else "all" is not asked
        _check_proxy(f"{name.upper()}_PROXY", proxies.get(name, ""))
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _check_proxy(variable: str, proxy: str) -> None:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        fits = not proxy or (parts.port != 0 and parts.scheme in PROXIES)
    except ValueError:  # a port that is no number
        fits = False
    if not fits:
        raise ConfigError(
            f"${variable}: {quoted(proxy.rpartition('@')[2])} is no proxy that can be used here; "
            "give http://HOST:PORT, or unset it"
        )


@dataclass(frozen=True)
class HttpReply:
    """A whole reply. `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


Headers = Mapping[str, str] | Sequence[tuple[str, str]]
Streamed = tuple[int, Mapping[str, str], AsyncIterator[bytes]]


class BoundedClient:
    """A client of the endpoint at `url`, in one event loop. Requests take `seconds` at most, from sending to the
    reply's last byte; `headers` go with each.

    A reply that is slower, longer than `REPLY_BYTES` or packed raises aiohttp.ClientError, as a lost connection does.
    Redirects are not followed: they would carry the request to a host that the user did not name. Where a reply repeats
    `secret`, the client's own key, "[key]" stands in its place: what endpoints say is shown and kept in files. An
    endpoint on this machine is asked without a proxy.
    """

    def __init__(
        self,
        url: str,
        *,
        seconds: float,
        secret: str = "",
        headers: Mapping[str, str] | None = None,
        connections: int = 0,
    ) -> None:
        """`connections`: how many are open at once, 0 for as many as there are requests."""
        self._proxy, self._tls = proxy_of(url), certificates() if url.startswith("https:") else None
        self._seconds, self._secret = seconds, secret.encode() if len(secret) >= LEAST_SECRET else b""
        self._headers, self._connections = headers, connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> BoundedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def get(self, url: str, seconds: float | None = None) -> HttpReply:
        """The reply to a GET request, within `seconds` where they are given."""
        return await self._whole("GET", url, None, None, seconds)

    async def post(self, url: str, body: object, headers: Headers | None = None) -> HttpReply:
        """The reply to a POST request of JSON."""
        return await self._whole("POST", url, _json(body), headers)

    def posted(self, url: str, body: object, headers: Headers | None = None) -> AbstractAsyncContextManager[Streamed]:
        """As `post`, and the reply as `streamed` gives it."""
        return self.streamed("POST", url, _json(body), headers)

    @asynccontextmanager
    async def streamed(
        self, method: str, url: str, content: bytes | None, headers: Headers | None = None
    ) -> AsyncIterator[Streamed]:
        """The reply to a request of these bytes: status, headers, and its bytes as they come."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        with _told_late(self._seconds):
            async with asyncio.timeout_at(deadline):
                response = await self._sent(method, url, content, headers, self._seconds)
        async with response:
            parts = _in_time(_chunks(response), deadline, self._seconds)
            yield response.status, response.headers, without(self._secret, parts)

    async def _whole(
        self, method: str, url: str, data: bytes | None, headers: Headers | None, seconds: float | None = None
    ) -> HttpReply:
        seconds = seconds or self._seconds
        with _told_late(seconds):
            async with asyncio.timeout(seconds), await self._sent(method, url, data, headers, seconds) as response:
                content = b"".join([chunk async for chunk in _chunks(response)])
        content = content.replace(self._secret, HIDDEN) if self._secret else content
        return HttpReply(response.status, response.headers, content)

    async def _sent(
        self, method: str, url: str, data: bytes | None, headers: Headers | None, seconds: float
    ) -> aiohttp.ClientResponse:
        """The reply's head. Connecting takes a little less than `seconds`, so that it differs from a late reply."""
        timeout = aiohttp.ClientTimeout(sock_connect=0.95 * seconds)
        response = await self._opened().request(
            method, url, data=data, headers=headers, proxy=self._proxy, allow_redirects=False, timeout=timeout
        )
        if packed := response.headers.get("Content-Encoding", "identity").strip().lower().replace("identity", ""):
            response.close()
            raise aiohttp.ClientPayloadError(f"a packed reply ({packed[:20]}) that nobody asked for")
        return response

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._connections, ssl=self._tls or True)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "StepRAG", "Accept": "application/json",
                         "Content-Type": "application/json", **(self._headers or {})},
            )  # fmt: skip
        return self._session


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def certificates() -> ssl.SSLContext:
    """The machine's certificates, as SSL_CERT_FILE and SSL_CERT_DIR name them; beside them those of certifi, which a
    bare machine lacks.
    """
    context = ssl.create_default_context()
    if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys():
        context.load_verify_locations(certifi.where())
    return context


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    left = REPLY_BYTES
    while chunk := await response.content.readany():
        left -= len(chunk)
        if left < 0:
            raise aiohttp.ClientPayloadError(f"a reply of more than {REPLY_BYTES:,} bytes")
        yield chunk


async def _in_time(chunks: AsyncIterator[bytes], deadline: float, seconds: float) -> AsyncIterator[bytes]:
    while True:
        with _told_late(seconds):
            async with asyncio.timeout_at(deadline):
                chunk = await anext(chunks, None)
        if chunk is None:
            return
        yield chunk


async def without(secret: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A reply's bytes without the secret, which may come in pieces."""
    kept = b""
    async for chunk in chunks:
        if not secret:
            yield chunk
            continue
        whole = (kept + chunk).replace(secret, HIDDEN)
        held = _begun(whole, secret)
        whole, kept = whole[: len(whole) - held], whole[len(whole) - held :]
        if whole:
            yield whole
    if kept:
        yield kept


def _begun(text: bytes, secret: bytes) -> int:
    """How many bytes at the end of `text` may be the beginning of the secret: the rest may come with the next chunk."""
    return next((n for n in range(min(len(text), len(secret) - 1), 0, -1) if text.endswith(secret[:n])), 0)


@contextmanager
def _told_late(seconds: float) -> Iterator[None]:
    """Raises aiohttp's error where time is over."""
    try:
        yield
    except TimeoutError as error:
        if isinstance(error, aiohttp.ClientError):  # nobody listens
            raise
        raise aiohttp.ServerTimeoutError(f"no whole reply within {seconds:g} s") from None


def pause(attempt: int, headers: Mapping[str, str], said: float = 0.0) -> float:
    """Seconds before a request is sent again: what the reply's headers ask for, or else its words (`said`), at most
    `LONGEST_TOLD`; else by how often it was sent before.
    """
    told = asked_wait(headers)
    told = said if told is None else told
    if 0 < told <= LONGEST_TOLD:
        return told
    return min(FIRST_WAIT * 2.0**attempt, LONGEST_WAIT) * random.uniform(0.75, 1)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds that headers ask to wait: OpenAI's `retry-after-ms`, or Retry-After, or the latest reset among limits
    that are used up (`x-ratelimit-reset-requests`, Brave's lists). None if they ask for nothing.
    """
    headers = {name.lower(): value for name, value in headers.items()}
    if (told := _seconds(f"{headers.get('retry-after-ms', '').strip()}ms")) is not None:
        return told
    if (told := _seconds(headers.get("retry-after", ""))) is not None:
        return told
    resets = list[float]()
    for name, value in headers.items():
        if "limit" in name and RESET in name:
            parts = value.split(",") if re.fullmatch(r"[\d., ]+", value) else [value]
            left = headers.get(name.replace(RESET, "remaining"), "").split(",")
            resets += [told for part, rest in zip_longest(parts, left, fillvalue="")
                       if rest.strip() in ("", "0") and (told := _seconds(part)) is not None]  # fmt: skip
    return max(resets, default=None)


def _seconds(text: str) -> float | None:
    """How far off a moment is: a number of seconds, `1m30s`, `6 ms`, an HTTP or ISO date, or seconds or milliseconds
    since 1970. None for any other text.
    """
    text = text.strip()
    if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text):
        number = float(text)
        number = number / 1000 if number > EPOCH * 100 else number
        return number - time.time() if number > EPOCH else number
    if re.fullmatch(rf"({_SPAN.pattern})+", text):
        return sum(float(count) * UNITS[unit[:2] if unit.startswith("ms") else unit[0]]
                   for count, unit in _SPAN.findall(text))  # fmt: skip
    with suppress(ValueError, OverflowError):  # a year that is none
        if date := email.utils.parsedate_tz(text):
            return email.utils.mktime_tz(date) - time.time()
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).timestamp() - time.time()
    return None
