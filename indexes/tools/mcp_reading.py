"""What an MCP server says, read leniently: listings and results as the protocol's package takes them.

The package refuses a whole listing for one tool without a schema, and a result for one block that it does not know.
So all are put right before it reads them: a tool has a name and a schema, a result has texts. What is no message in
its eyes is put right before (`stdio_relay.mended`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from indexes.tools.stdio_relay import NO_ID

NOTHING_SAID = "the tool reports an error without a word"
HINTS = ("readOnlyHint", "idempotentHint")
"""Annotations of a tool whose calls may be made twice."""
SCHEMAS = ("inputSchema", "input_schema", "parameters", "schema")
"""Names of a tool's schema: the protocol's, and those of other APIs."""
VERSION = "2025-03-26"
"""The protocol's version where a server names none: what the protocol has clients assume over HTTP."""
KNOWN = ("content", "structuredContent", "isError", "_meta", "resultType")
"""Fields of a call's result."""
WORDED = ("result", "text", "output", "toolResult", "message", "error", "data")
"""Names that servers give to its text."""


class WireLog:
    """What came of one connection: whether it `ended`, and the lines that were no messages, `noise`."""

    def __init__(self) -> None:
        self.ended, self.noise = False, 0

    @asynccontextmanager
    async def over(self, transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
        """The transport, its messages read leniently."""
        waiting: dict[Any, str] = {}
        async with transport as (read, write):
            yield _Lenient(read, waiting, self), _Sent(write, waiting)


class _Stream:
    """A stream of the transport. `waiting`: the methods of requests without a reply, by their ids."""

    def __init__(self, inner: Any, waiting: dict[Any, str]) -> None:
        self._inner, self._waiting = inner, waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *gone: Any) -> None:
        await self._inner.__aexit__(*gone)


class _Sent(_Stream):
    """What is sent."""

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._waiting[str(item.message.id)] = item.message.method
        await self._inner.send(item)


class _Lenient(_Stream):
    """A stream of messages, without what is none."""

    def __init__(self, inner: Any, waiting: dict[Any, str], heard: WireLog) -> None:
        super().__init__(inner, waiting)
        self._heard = heard

    def __aiter__(self) -> _Lenient:
        return self

    async def __anext__(self) -> SessionMessage:
        while True:
            try:
                item = await anext(self._inner)
            except BaseException:
                self._heard.ended = True
                raise
            if isinstance(item, SessionMessage):
                reply = item.message
                if isinstance(reply, JSONRPCResponse | JSONRPCError):
                    if reply.id in (None, NO_ID) and len(self._waiting) == 1:  # it can be nobody else's
                        (reply.id,) = self._waiting
                    method = self._waiting.pop(str(reply.id), "")
                    if isinstance(reply, JSONRPCResponse):
                        reply.result = put_right(reply.result, method)
                return item
            self._heard.noise += 1


def put_right(result: dict[str, Any], method: str = "") -> dict[str, Any]:
    """A reply's result: tools with a name each and an object as their schema; what a call says as texts; a server's
    first words with a version. `method`: of the request, where it is known.
    """
    if method == "initialize":
        version, about = result.get("protocolVersion"), result.get("serverInfo")
        facts = about if isinstance(about, Mapping) else {}
        return {
            "protocolVersion": version if isinstance(version, str) and version else VERSION,
            "capabilities": {"tools": {}},
            "serverInfo": {key: str(facts.get(key) or "unknown") for key in ("name", "version")},
        }
    tools = result.get("tools")
    if isinstance(tools, Mapping):
        tools = [{"name": name, **one} for name, one in tools.items() if isinstance(one, Mapping)]
    if isinstance(tools, list) and method in ("", "tools/list"):
        named = (one for one in tools if isinstance(one, Mapping) and isinstance(one.get("name"), str))
        cursor = result.get("nextCursor")
        more = {"nextCursor": str(cursor)} if isinstance(cursor, str | int) else {}
        return {**_without(result, "nextCursor"), **more, "tools": [*map(_tool, named)]}
    if result.get("resultType") not in (None, "complete"):  # it asks for more, which the package refuses
        return result
    if method == "tools/call" or {"content", "structuredContent", "isError"} & result.keys():
        texts = [{"type": "text", "text": text} for text in texts_of(result)]
        return {**_without(result, "structuredContent"), "content": texts, "isError": _failed(result)}
    return result


def _tool(told: Mapping[str, Any]) -> dict[str, Any]:
    """What we need of a tool. Its output's schema is left out: a result that breaks it is a result."""
    schema, said, hints = _schema(told), told.get("description"), told.get("annotations")
    repeatable = isinstance(hints, Mapping) and any(hints.get(hint) is True for hint in HINTS)
    return {
        "name": told["name"],
        "description": said if isinstance(said, str) else "",
        "inputSchema": {**(schema if isinstance(schema, Mapping) else {}), "type": "object"},
        "annotations": {"readOnlyHint": repeatable},
    }


def _failed(result: Mapping[str, Any]) -> bool:
    return result.get("isError") in (True, "true")


def _schema(told: Mapping[str, Any]) -> Any:
    """A tool's schema, by the protocol's name or another API's; a server may give it as a text of JSON."""
    schema = next((told[key] for key in SCHEMAS if told.get(key)), None)
    return _decoded(schema) if isinstance(schema, str) else schema


def texts_of(result: Mapping[str, Any]) -> list[str]:
    """What a call's result says: its texts, the structure where they do not hold it, and what cannot be shown. A
    result of another form is a structure.
    """
    content, rows = result.get("content"), result.get("structuredContent")
    if content is None and rows is None:
        told = {key: value for key, value in result.items() if key not in KNOWN}
        alone = next(iter(told)) if len(told) == 1 else ""
        content = told[alone] if alone in WORDED and isinstance(told[alone], str) else None
        rows = told if content is None and told else None
    given = content if isinstance(content, list) else [] if content is None else [content]
    if not any(isinstance(one, Mapping) for one in given):  # bare values
        given = [one if isinstance(one, str) else json.dumps(one) for one in given if one is not None]
    blocks = [one if isinstance(one, Mapping) else {"text": one} for one in given if isinstance(one, str | Mapping)]
    words = [_words(block) for block in blocks]
    texts = [text for text in words if text and text.strip()]
    more = [] if rows is None or _is_said(rows, texts) else [json.dumps(rows, ensure_ascii=False)]
    longer = len("".join(more)) > len("".join(texts))  # the first passages count: the larger part goes first
    hidden = Counter(_kind(block) for block, text in zip(blocks, words, strict=True) if text is None)
    notes = [", ".join(f"{count} {kind}" for kind, count in hidden.items()) + ", not shown"] if hidden else []
    told = [*(more + texts if longer else texts + more), *notes]
    return told or ([NOTHING_SAID] if _failed(result) else [])


def _words(block: Mapping[str, Any]) -> str | None:
    """A block's text, an embedded resource's, or the words that describe a link; None where it has none."""
    if block.get("type") == "resource_link":
        words = (block.get(key) for key in ("title", "name", "description", "uri"))
        told = dict.fromkeys(word for word in words if isinstance(word, str) and word)
        return f"{': '.join(told)} (1 resource_link, not shown)"
    inner = block.get("resource")
    text = (inner if isinstance(inner, Mapping) else block).get("text")
    if text is None and block and not {"resource", "type", "mimeType"} & block.keys():
        text = dict(block)  # a row in place of a block
    if text is None and block.get("type") == "text":
        text = next((block[key] for key in ("content", "value") if isinstance(block.get(key), str)), None)
    if block.get("type") in ("json", "object", "data"):
        text = next((block[key] for key in ("json", "object", "data") if key in block), text)
    if isinstance(text, Mapping | list):
        return json.dumps(text, ensure_ascii=False)
    return text if isinstance(text, str) else "" if block.get("type") == "text" else None


def _kind(block: Mapping[str, Any]) -> str:
    """What a block without words is, such as `image/png`, and where it is."""
    inner = block.get("resource")
    told = inner if isinstance(inner, Mapping) else block
    kind = told.get("mimeType") or block.get("type") or "block of no kind"
    return f"{kind} ({told['uri']})" if told.get("uri") else str(kind)


def _is_said(rows: Any, texts: list[str]) -> bool:
    """Whether texts hold a structure already: as JSON, whole or a text for each item. `result` is where the official
    SDK puts what is no object.
    """
    held = rows.get("result", rows) if isinstance(rows, Mapping) and len(rows) == 1 else rows
    read = [*map(_decoded, texts)]
    return any(one in (texts, read, *texts, *read) for one in (rows, held))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without(result: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != name}
