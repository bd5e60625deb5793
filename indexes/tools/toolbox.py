"""`ToolBox`: several tools as one retriever, so environment, journal, replay and training need not know about tools.

It is opened from a tools file (YAML):

tools:
  wiki: {index: runs/index, description: an encyclopedia}
  news: {index: "http://127.0.0.1:8890"}
  add: {python: "my_tools:add"}
  desk: {mcp: {command: [python, server.py], env: [DESK_KEY]}}
  facts: {graph: atlas}
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from indexes.tools.callables import CallableTool
from indexes.tools.graph import GraphTool
from steprag.agent.retriever import Retriever
from steprag.agent.tools import BadCall, ToolSpec, call_of, spec_of
from steprag.errors import ConfigError, RetrieverError
from steprag.extras import remedy
from steprag.records.jsonl import existing
from steprag.records.yaml_files import read_yaml, shaped
from steprag.types import Passage

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
Opened = Callable[[str], Retriever]
"""Opens an index folder or a service's URL."""


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


def _program(said: object) -> object:
    return [said] if isinstance(said, str) and said else said


class McpEntry(BaseModel):
    """How an MCP server is reached: a command that is started and spoken to over its standard streams, or a URL.

    `env` names variables of our environment that the command gets, `headers` the variable that holds each header.
    `args` follow the command, which may be the program alone, as clients of MCP have it.
    """

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[str], Field(min_length=1), BeforeValidator(_program)] | None = None
    args: list[str] = []
    url: str | None = None
    env: list[str] = []
    headers: dict[str, str] = {}


class ToolEntry(BaseModel):
    """An entry of a tools file: one of `index`, `python`, `mcp` and `graph`. `only`: of a server's tools, these."""

    model_config = ConfigDict(extra="forbid")

    description: str = ""
    index: str | None = None
    python: str | None = None
    mcp: McpEntry | None = None
    graph: str | None = None
    only: list[str] | None = None
    seconds: Annotated[float, Field(gt=0)] = 30.0
    chars: Annotated[int, Field(ge=1)] = 2000


class ToolsFile(BaseModel):
    """A tools file."""

    model_config = ConfigDict(extra="forbid")

    tools: Annotated[dict[str, ToolEntry], Field(min_length=1)]


class IndexTool:
    """An index or a service, asked with a text."""

    def __init__(self, name: str, description: str, retriever: Retriever) -> None:
        schema = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
        self.spec: ToolSpec = spec_of(name, description or "Passages for a text.", schema)
        self._retriever = retriever
        self.fingerprint = retriever.fingerprint

    async def ready(self) -> None:
        """Waits for the index."""
        await self._retriever.ready()

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """The passages that the index finds."""
        return await self._retriever.search(arguments["text"], top_k)

    async def aclose(self) -> None:
        """Closes the index."""
        await self._retriever.aclose()


def open_toolbox(path: Path, opened: Opened) -> ToolBox:
    """The tools of a file. `opened` opens the indexes that it names. Raises ConfigError with file and key."""
    entries = shaped(ToolsFile, read_yaml(path), path).tools
    tools: list[Tool] = []
    bounds: dict[str, Bounds] = {}
    for name, entry in entries.items():
        made = _tools(name, entry, path, opened)
        tools += made
        bounds |= {tool.spec.name: Bounds(entry.seconds, entry.chars) for tool in made}
    return ToolBox(tools, bounds)


def _tools(name: str, entry: ToolEntry, path: Path, opened: Opened) -> Sequence[Tool]:
    ways = [way for way in ("index", "python", "mcp", "graph") if getattr(entry, way) is not None]
    if len(ways) != 1:
        raise ConfigError(f"{path}: tools.{name}: give one of index, python, mcp and graph")
    if entry.index is not None:
        if entry.index.endswith((".yaml", ".yml")) and "tools" in read_yaml(existing(entry.index, "web file")):
            raise ConfigError(f"{path}: tools.{name}.index names a tools file; name its tools here")
        return [IndexTool(name, entry.description, opened(entry.index))]
    if entry.python is not None:
        return [CallableTool(name, entry.python, entry.description)]
    if entry.graph is not None:
        return [GraphTool(name, entry.graph, entry.description, entry.seconds)]
    assert entry.mcp is not None
    where = f"{path}: tools.{name}.mcp"
    if (entry.mcp.command is None) == (entry.mcp.url is None):
        raise ConfigError(f"{where}: give a command or a url")
    for unused in sorted(entry.mcp.model_fields_set & ({"env", "args"} if entry.mcp.url else {"headers"})):
        raise ConfigError(f"{where}: {unused} is for a {'command' if entry.mcp.url else 'url'}")
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(f"{path}: tools.{name} is an MCP server, which needs an extra: {remedy('mcp')}")
    from indexes.tools.mcp_server import ServerAddress, mcp_tools

    env = {variable: _value(variable, f"{where}.env") for variable in entry.mcp.env}
    headers = {header: _value(variable, f"{where}.headers") for header, variable in entry.mcp.headers.items()}
    command = (*entry.mcp.command, *entry.mcp.args) if entry.mcp.command else None
    return mcp_tools(name, ServerAddress(command, entry.mcp.url, entry.seconds, env, headers), entry.only)


def _value(variable: str, where: str) -> str:
    """What a variable of the environment holds. Raises ConfigError, which does not repeat what may be a key itself."""
    if not VARIABLE.fullmatch(variable):
        raise ConfigError(f"{where} names variables of the environment, such as DESK_KEY; keys do not stand in files")
    value = os.environ.get(variable, "").strip()
    if not value or not value.isprintable():
        state = "holds what is no line of text" if value else "is not set"
        raise ConfigError(f"{where}: {variable} {state}; export {variable}=…")
    return value
