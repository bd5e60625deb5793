"""What an MCP server says, read leniently: listings and results as the protocol's package takes them.

The package refuses a whole listing for one tool without a schema, and a result for one block that it does not know.
So both are put right before it reads them: a tool has a name and a schema, a result has texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse

NOTHING_SAID = "the tool reports an error without a word"
HINTS = ("readOnlyHint", "idempotentHint")
"""Annotations of a tool whose calls may be made twice."""


class WireLog:
    """What came of one connection: whether it `ended`, and the lines that were no messages, `noise`."""

    def __init__(self) -> None:
        self.ended, self.noise = False, 0

    @asynccontextmanager
    async def over(self, transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
        """The transport, its messages read leniently."""
        async with transport as (read, write):
            yield _Lenient(read, self), write


class _Lenient:
    """A stream of messages, without what is none."""

    def __init__(self, inner: Any, heard: WireLog) -> None:
        self._inner, self._heard = inner, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> _Lenient:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *gone: Any) -> None:
        await self._inner.__aexit__(*gone)

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
                if isinstance(item.message, JSONRPCResponse):
                    item.message.result = put_right(item.message.result)
                return item
            self._heard.noise += 1


def put_right(result: dict[str, Any]) -> dict[str, Any]:
    """A reply's result: tools with a name each and an object as their schema; what a call says as texts."""
    if isinstance(result.get("tools"), list):
        named = (one for one in result["tools"] if isinstance(one, Mapping) and isinstance(one.get("name"), str))
        return {**result, "tools": [*map(_tool, named)]}
    if {"content", "structuredContent", "isError"} & result.keys():
        texts = [{"type": "text", "text": text} for text in texts_of(result)]
        return {**_without(result, "structuredContent"), "content": texts, "isError": result.get("isError") is True}
    return result


def _tool(told: Mapping[str, Any]) -> dict[str, Any]:
    """What we need of a tool. Its output's schema is left out: a result that breaks it is a result."""
    schema, said, hints = told.get("inputSchema"), told.get("description"), told.get("annotations")
    repeatable = isinstance(hints, Mapping) and any(hints.get(hint) is True for hint in HINTS)
    return {
        "name": told["name"],
        "description": said if isinstance(said, str) else "",
        "inputSchema": {**(schema if isinstance(schema, Mapping) else {}), "type": "object"},
        "annotations": {"readOnlyHint": repeatable},
    }


def texts_of(result: Mapping[str, Any]) -> list[str]:
    """What a call's result says: its texts, the structure where they do not hold it, and what cannot be shown."""
    content, rows = result.get("content"), result.get("structuredContent")
    blocks = [one for one in content if isinstance(one, Mapping)] if isinstance(content, list) else []
    words = [_words(block) for block in blocks]
    texts = [text for text in words if text and text.strip()]
    more = [] if rows is None or _is_said(rows, texts) else [json.dumps(rows, ensure_ascii=False)]
    longer = len("".join(more)) > len("".join(texts))  # the first passages count: the larger part goes first
    hidden = Counter(_kind(block) for block, text in zip(blocks, words, strict=True) if text is None)
    notes = [", ".join(f"{count} {kind}" for kind, count in hidden.items()) + ", not shown"] if hidden else []
    told = [*(more + texts if longer else texts + more), *notes]
    return told or ([NOTHING_SAID] if result.get("isError") is True else [])


def _words(block: Mapping[str, Any]) -> str | None:
    """A block's text, an embedded resource's, or the words that describe a link; None where it has none."""
    if block.get("type") == "resource_link":
        words = (block.get(key) for key in ("title", "name", "description", "uri"))
        told = dict.fromkeys(word for word in words if isinstance(word, str) and word)
        return f"{': '.join(told)} (1 resource_link, not shown)"
    inner = block.get("resource")
    text = (inner if isinstance(inner, Mapping) else block).get("text")
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
