"""A tools file (YAML) to a toolbox.

tools:
  wiki: {index: runs/index, description: an encyclopedia}
  news: {index: "http://127.0.0.1:8890"}
  add: {python: "my_tools:add"}
  desk: {mcp: {command: [python, server.py]}}
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from indexes.tools.callables import CallableTool
from indexes.tools.toolbox import Bounds, Tool, ToolBox
from steprag.agent.retriever import Retriever
from steprag.agent.tools import ToolSpec, spec_of
from steprag.errors import ConfigError
from steprag.extras import remedy
from steprag.records.jsonl import existing
from steprag.records.yaml_files import read_yaml
from steprag.types import Passage

Opened = Callable[[str], Retriever]
"""Opens an index folder or a service's URL."""


class McpEntry(BaseModel):
    """How an MCP server is reached: a command that is started and spoken to over its standard streams, or a URL."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[str], Field(min_length=1)] | None = None
    url: str | None = None


class ToolEntry(BaseModel):
    """One entry of a tools file; exactly one of `index`, `python` and `mcp`. `only`: of a server's tools, these."""

    model_config = ConfigDict(extra="forbid")

    description: str = ""
    index: str | None = None
    python: str | None = None
    mcp: McpEntry | None = None
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
    try:
        entries = ToolsFile.model_validate(read_yaml(path)).tools
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg'].lower()}") from None
    tools: list[Tool] = []
    bounds: dict[str, Bounds] = {}
    for name, entry in entries.items():
        made = _tools(name, entry, path, opened)
        tools += made
        bounds |= {tool.spec.name: Bounds(entry.seconds, entry.chars) for tool in made}
    return ToolBox(tools, bounds)


def _tools(name: str, entry: ToolEntry, path: Path, opened: Opened) -> Sequence[Tool]:
    ways = [way for way in ("index", "python", "mcp") if getattr(entry, way) is not None]
    if len(ways) != 1:
        raise ConfigError(f"{path}: tools.{name}: give one of index, python and mcp")
    if entry.index is not None:
        if entry.index.endswith((".yaml", ".yml")) and "tools" in read_yaml(existing(entry.index, "web file")):
            raise ConfigError(f"{path}: tools.{name}.index names a tools file; name its tools here")
        return [IndexTool(name, entry.description, opened(entry.index))]
    if entry.python is not None:
        return [CallableTool(name, entry.python, entry.description)]
    assert entry.mcp is not None
    if (entry.mcp.command is None) == (entry.mcp.url is None):
        raise ConfigError(f"{path}: tools.{name}.mcp: give a command or a url")
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(f"{path}: tools.{name} is an MCP server, which needs an extra: {remedy('mcp')}")
    from indexes.tools.mcp_server import mcp_tools

    return mcp_tools(name, entry.mcp.command, entry.mcp.url, entry.only, entry.seconds)
