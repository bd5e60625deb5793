"""`steprag record`: an OpenAI-compatible proxy that keeps what another framework's agent asks, and the replies.

Requests and replies pass through as they are: streams, tools, errors, keys. A chat completion is a line of
`calls.jsonl` before its end goes out. `steprag trees recorded` makes trees of them.
"""

from __future__ import annotations

import json
import re
import secrets
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from steprag.console.progress import say, say_next
from steprag.errors import counted
from steprag.net.bounded_http import HIDDEN, LEAST_SECRET, REPLY_BYTES, BoundedClient
from steprag.net.hosts import listen, url_of
from steprag.policy.streams import reply_in
from steprag.policy.tool_calls import odd_calls
from steprag.records.jsonl import LineJournal, as_utf8
from steprag.records.normal_form import normal_form
from steprag.runs.run import open_run
from steprag.web.app import ApiError, tell_errors
from steprag.web.guard import Access, Guard
from steprag.web.listening import serve_app

END = re.compile(rb"[\r\n]data: ?\[DONE\]")
"""The last event of a stream; JSON has no line's end before such words of its own."""
COMPLETIONS = "chat/completions"
"""The path below /v1 whose calls are kept."""
KEYS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie")
"""Headers whose values are passed on and never kept."""
WARNINGS = 50
"""How many different problems of replies are shown."""
OWN = frozenset({"host", "content-length", "connection", "accept-encoding", "transfer-encoding"})
"""Headers of one connection; all others are passed on."""
PACKED = frozenset({"gzip", "x-gzip", "deflate"})
"""Encodings of a request that the recorder can read; the body is passed on as it is."""


async def serve_record(upstream: str, out: Path, port: int, seconds: float) -> None:
    """Serves until a signal comes. Raises ConfigError where address or folder are not in order."""
    with (
        listen("127.0.0.1", port) as listening,  # keys pass in the clear: no other machine may send any
        open_run(out, "record", identity={"upstream": upstream}, config={"seconds": seconds}) as run,
        LineJournal(run.path / "calls.jsonl") as journal,
    ):
        async with BoundedClient(upstream, seconds=seconds) as client:
            recorder = CallRecorder(upstream, client, journal)
            say(f"point the agent at {url_of(listening)}/v1; its calls are kept in {journal.path}; Ctrl-C stops it")
            say_next("trees", "recorded", run.path)
            try:
                await serve_app(record_app(recorder), listening, grace=10)
            finally:
                run.set(counts=dict(recorder.counts))
                kept, passed = counted(recorder.counts["kept"], "call"), recorder.counts["passed"]
                say(f"record: {kept} kept, {passed} others passed on")


def record_app(recorder: CallRecorder) -> FastAPI:
    """The application: all below /v1 is passed on. A page of a stranger's site reaches nothing."""
    app = FastAPI(title="StepRAG recorder", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, access=Access(secrets.token_hex(), True, ("/v1/",), REPLY_BYTES, "steprag_record"))
    tell_errors(app)
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    app.add_api_route("/v1/{path:path}", recorder.forward, methods=methods, response_model=None)
    return app


def leads_out(path: str) -> bool:
    """Whether a path, as it was sent, may be another than one below /v1 to a client or server that decodes it, once or
    more often, folds it, or leaves characters out.
    """
    if not path.startswith("/v1/") or "#" in path:
        return True
    for _ in range(4):
        path = normal_form("NFKC", unquote(path))
    if unquote(path) != path:
        return True
    _, *parts = re.split(r"[/\\]", path.removesuffix("/"))
    names = [part.partition(";")[0] for part in parts]  # some servers leave out what stands behind
    return "\\" in path or re.search(r"[\x00-\x1f\x7f]", path) is not None or not {"", ".", ".."}.isdisjoint(names)


@dataclass
class CallRecorder:
    """Passes calls on to `upstream` and keeps those that ask for a chat completion."""

    upstream: str
    client: BoundedClient
    journal: LineJournal
    counts: Counter[str] = field(default_factory=Counter)
    warned: set[str] = field(default_factory=set)

    def warn(self, problem: str) -> None:
        """Says once what is wrong with a reply: trees are made of it later, when the agent cannot be run again."""
        if problem not in self.warned and len(self.warned) < WARNINGS:
            self.warned.add(problem)
            say(f"record: {problem}")

    async def forward(self, request: Request) -> Response:
        """The upstream's reply as it is; 502 or 504, in the API's shape, where there is none."""
        whole, query = request.scope["raw_path"].decode("latin-1"), request.url.query
        if leads_out(whole):
            raise ApiError(404, "no_such_path", "only plain paths below /v1 are passed on")
        path = whole.removeprefix("/v1/")
        call = KeptCall(self, request, body := await request.body())
        if request.method != "POST" or path.rstrip("/") != COMPLETIONS:
            call.over = True
            self.counts["passed"] += 1
            if request.method == "POST" and self.counts["passed"] == 1:
                say(f"record: POST /v1/{path[:100]} is passed on and not kept; only {COMPLETIONS} is")
        headers = [(name, value) for name, value in request.headers.items() if name not in OWN]
        url = f"{self.upstream}/{path}{f'?{query}' if query else ''}"
        try:
            stack = AsyncExitStack()
            sent = self.client.streamed(request.method, url, body or None, headers)
            status, told, parts = await stack.enter_async_context(sent)
            stream = told.get("Content-Type", "").startswith("text/event-stream")
            told = {name: value for name, value in told.items() if name.lower() not in OWN}
            if stream:
                stack.callback(call.end, status, left=True)
                return _Passing(stack, call.pieces(status, parts), status, told)
            async with stack:
                call.parts = [part async for part in parts]
        except aiohttp.ClientError as error:
            status = 504 if isinstance(error, TimeoutError) else 502
            problem = f"the upstream gave no whole reply: {type(error).__name__}: {error}"
            call.end(status, problem)
            raise ApiError(status, "upstream", problem) from None
        call.end(status, left=await request.is_disconnected())
        return Response(b"".join(call.parts), status, told)


class _Passing(StreamingResponse):
    """A stream that closes `stack` however it ends: of one that its client left before the first byte, nothing runs."""

    def __init__(self, stack: AsyncExitStack, *given: Any) -> None:
        super().__init__(*given)
        self._stack = stack

    async def __call__(self, *asgi: Any) -> None:
        async with self._stack:
            await super().__call__(*asgi)


def _unpacked(body: bytes, encoding: str) -> bytes:
    """A request's body, unpacked. Raises ValueError if its encoding is unknown, or if it is damaged or too long."""
    if encoding in ("", "identity"):
        return body
    if encoding not in PACKED:
        raise ValueError(f"it is packed as {encoding[:40]!r}")
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = stream.decompress(body, REPLY_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof:
        raise ValueError(f"it is torn, or unpacks to more than {REPLY_BYTES:,} bytes")
    return content


class KeptCall:
    """One call while it runs; `end` writes its line, once. `over`: it is written, or not to be kept."""

    def __init__(self, recorder: CallRecorder, request: Request, body: bytes) -> None:
        self._recorder, self._request, self._body = recorder, request, body
        self._time, self._begun = time.time(), time.monotonic()
        values = [request.headers.get(name, "") for name in KEYS]
        words = {word for value in values for word in (value, value.partition(" ")[2]) if len(word) >= LEAST_SECRET}
        self._secrets = sorted(words, key=len, reverse=True)
        self._encoding = request.headers.get("content-encoding", "identity").strip().lower()
        self.over, self.parts = False, list[bytes]()

    async def pieces(self, status: int, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A stream's bytes as they come. The call is kept before `[DONE]` goes out, or where stream or client end."""
        left, error, seen = True, "", b"\n"
        try:
            async for part in parts:
                self.parts.append(part)
                seen = seen[-16:] + part  # the mark may come in two parts
                if END.search(seen):
                    self.end(status)
                yield part
            left = await self._request.is_disconnected()
        except aiohttp.ClientError as problem:
            left, error = False, f"the stream broke off: {problem}"
            raise
        finally:
            self.end(status, error, left=left)

    def end(self, status: int, error: str = "", *, left: bool = False) -> None:
        """Keeps the call. `left`: the client went before the reply's end."""
        if self.over:
            return
        self.over, told = True, list[object]()
        for what, content in (("request", self._body), ("reply", b"".join(self.parts))):
            try:
                value = reply_in(content) if what == "reply" else json.loads(_unpacked(content, self._encoding))
                if not isinstance(value, dict):
                    raise ValueError("it is no JSON object")
                told.append(value)
            except (ValueError, RecursionError) as problem:
                told.append(None)
                error = error or f"the {what} cannot be read: {problem}"
        for odd in odd_calls(*told) if status < 400 else ():
            self._recorder.warn(odd)
        row = {
            "id": secrets.token_hex(8), "time": self._time, "seconds": round(time.monotonic() - self._begun, 3),
            "status": status, "left": left, "error": error or None, "request": told[0] or {}, "reply": told[1],
        }  # fmt: skip
        line = as_utf8(json.dumps(row, ensure_ascii=False))
        for secret in self._secrets:
            line = line.replace(json.dumps(secret, ensure_ascii=False)[1:-1], HIDDEN.decode())
        self._recorder.journal.append(json.loads(line, parse_constant=lambda _: None))  # NaN is no JSON
        self._recorder.counts["kept"] += 1
