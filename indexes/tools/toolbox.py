"""`ToolBox`: several tools as one retriever; environment, journal, replay and training need not know about tools."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from steprag.agent.tools import BadCall, ToolSpec, call_of
from steprag.errors import ConfigError, RetrieverError
from steprag.records.jsonl import as_utf8
from steprag.types import Passage


class Tool(Protocol):
    """Something that a call may name."""

    @property
    def spec(self) -> ToolSpec:
        """What the policy is told of it."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names what answers; equal fingerprints give equal results as far as the tool can promise it."""
        ...

    async def ready(self) -> None:
        """Waits until calls can be answered. Raises ConfigError or DataError where none ever will be."""
        ...

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """What it says, best first. Raises RetrieverError where this one call failed."""
        ...

    async def aclose(self) -> None:
        """Releases what it holds."""
        ...


@dataclass(frozen=True)
class Bounds:
    """`seconds` until a call counts as lost, and the `chars` of a passage that are kept."""

    seconds: float = 30.0
    chars: int = 2000


class ToolBox:
    """A retriever whose queries are calls (`name: arguments`). Passages are named `tool/id` where there are several."""

    def __init__(self, tools: Sequence[Tool], bounds: Mapping[str, Bounds]) -> None:
        """Raises ConfigError where two tools have one name, or there is none."""
        self._by_name = {tool.spec.name: tool for tool in tools}
        if len(self._by_name) < len(tools) or not tools:
            raise ConfigError("a toolbox needs tools, each with a name of its own")
        self._bounds = bounds
        self.tools = tuple(tool.spec for tool in tools)
        facts = [
            [spec.name, spec.shown, tool.fingerprint, *self._cut(spec)]
            for spec, tool in zip(self.tools, tools, strict=True)
        ]
        self.fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def _cut(self, spec: ToolSpec) -> list[int]:
        """The length of passages, part of the fingerprint; empty for the default, so that older runs go on."""
        chars = self._bounds.get(spec.name, Bounds()).chars
        return [] if chars == Bounds().chars else [chars]

    async def ready(self) -> None:
        """Waits for every tool."""
        await asyncio.gather(*(tool.ready() for tool in self._by_name.values()))

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """What the named tool says. Raises RetrieverError where it fails, is late, or the call is none."""
        try:
            call = call_of(query, self.tools)
        except BadCall as error:
            raise RetrieverError(f"no call of a tool: {error}") from None
        bounds = self._bounds.get(call.tool, Bounds())
        try:
            async with asyncio.timeout(bounds.seconds):
                found = await self._by_name[call.tool].call(call.arguments, top_k)
        except TimeoutError:
            raise RetrieverError(f"tool {call.tool} said nothing within {bounds.seconds:g} s") from None
        several = len(self.tools) > 1
        return tuple(
            replace(
                passage,
                id=f"{call.tool}/{passage.id}" if several else passage.id,
                title=passage.title[: bounds.chars],
                text=passage.text[: bounds.chars],
            )
            for passage in found[:top_k]
        )

    async def aclose(self) -> None:
        """Closes every tool."""
        await asyncio.gather(*(tool.aclose() for tool in self._by_name.values()))


def said(tool: str, texts: Sequence[str]) -> list[Passage]:
    """Texts of a tool as passages, each named by its content, so that the journal keeps equal ones once."""
    held = [as_utf8(text) for text in texts if text.strip()]
    return [Passage(hashlib.sha256(text.encode()).hexdigest()[:16], tool, text) for text in held]
