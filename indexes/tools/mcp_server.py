"""Tools of MCP servers (the extra `mcp`, the protocol's own package), by stdio or HTTP.

A server is started or connected to once, in a thread with an event loop of its own, so that its tools are known before
a run begins and outlive any loop that asks. What it says of itself is untrusted: names and schemas are checked, and
descriptions shown neutralised, in one line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from indexes.tools.callables import said
from steprag.agent.tools import ToolSpec, spec_of
from steprag.errors import ConfigError, RetrieverError
from steprag.net.bounded_http import direct
from steprag.types import Passage

RELAY = Path(__file__).with_name("stdio_relay.py")
MESSAGE_BYTES = 8 << 20
"""Bytes of one message of a server."""


class _BoundedHttp(httpx2.AsyncClient):
    """Cuts replies that are longer than a message may be; of streams the protocol's package bounds each event."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **options)
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            body: Any = response.stream
            response.stream = _BoundedReply(body)
        return response


class _BoundedReply(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MESSAGE_BYTES
        async for piece in self._inner:
            yield piece[:left]
            left -= len(piece)
            if left <= 0:  # what is cut is no JSON, which the package answers; an error here would end the connection
                return

    async def aclose(self) -> None:
        await self._inner.aclose()


def _client(url: str, timeout: httpx2.Timeout) -> _BoundedHttp:
    """The client of a server's URL; one of this machine is never asked by way of a proxy."""
    return _BoundedHttp(timeout=timeout, **direct(url))


class McpServer:
    """An open connection. `seconds`: until a reply counts as lost."""

    def __init__(self, command: list[str] | None, url: str | None, seconds: float) -> None:
        """Starts or reaches the server. Raises ConfigError where it does not answer as one."""
        self.name = url or " ".join(command or ())
        self._open, self._users = ExitStack(), 0
        # what a server writes to its standard error is not for ours; the relay bounds it
        file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        log: Any = self._open.enter_context(file)
        relayed = [str(RELAY), str(MESSAGE_BYTES), *(command or ())]
        started = stdio_client(StdioServerParameters(command=sys.executable, args=relayed), errlog=log)
        try:
            # `read_timeout_seconds` bounds each reply; a reply that HTTP itself gives up would end the connection
            waiting = httpx2.Timeout(seconds, read=None)
            target = started if url is None else streamable_http_client(url, http_client=_client(url, waiting))
            self._portal = self._open.enter_context(start_blocking_portal())
            client = Client(target, read_timeout_seconds=seconds)
            self._client = self._open.enter_context(self._portal.wrap_async_context_manager(client))
            self.listed = self._portal.call(self._client.list_tools).tools
        except Exception as error:  # whatever a stranger's server makes the package raise, it is no tool here
            log.seek(0)
            last = " ".join(log.read(4096).split())[-200:]
            self._open.close()
            told = f"; it wrote: {last}" if last else ""
            raise ConfigError(f"MCP server {self.name}: {_reason(error)}{told}") from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The server's result. Raises RetrieverError."""
        try:
            return await asyncio.wrap_future(
                self._portal.start_task_soon(self._client.call_tool, name, dict(arguments))
            )
        except Exception as error:  # as above; this call failed, another may not
            raise RetrieverError(f"MCP server {self.name}, tool {name}: {_reason(error)}") from error

    def used(self) -> McpServer:
        """This server, with one user more."""
        self._users += 1
        return self

    def leave(self) -> None:
        """A user is done; the last one ends the connection, and the server where it was started here."""
        self._users -= 1
        if self._users == 0:
            self._open.close()


class McpTool:
    """One tool of a server."""

    def __init__(self, server: McpServer, name: str, spec: ToolSpec) -> None:
        self.spec, self._server, self._name = spec, server.used(), name
        facts = json.dumps([server.name, spec.name, spec.shown], ensure_ascii=False)
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:16]

    async def ready(self) -> None:
        """The server answered when it was opened."""

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """A passage for each text of the result. What a tool calls its error is an observation too."""
        result = await self._server.call(self._name, arguments)
        texts = [item.text for item in result.content if getattr(item, "type", "") == "text"]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return said(f"{self.spec.name} (error)" if result.is_error else self.spec.name, texts[:top_k])

    async def aclose(self) -> None:
        """Leaves the server."""
        await asyncio.to_thread(self._server.leave)


def mcp_tools(
    entry: str, command: list[str] | None, url: str | None, only: list[str] | None, seconds: float
) -> list[McpTool]:
    """The tools of a server, named `entry.tool`; with `only`, these. Raises ConfigError."""
    server = McpServer(command, url, seconds).used()
    try:
        specs = _specs(entry, server, only)
    except ConfigError:
        server.leave()
        raise
    tools = [McpTool(server, name, spec) for name, spec in specs.items()]
    server.leave()  # the tools are its users now
    return tools


def _specs(entry: str, server: McpServer, only: list[str] | None) -> dict[str, ToolSpec]:
    """The specifications of the wanted tools by the server's names for them. Raises ConfigError."""
    there = {tool.name: tool for tool in server.listed}
    wanted = list(there) if only is None else only
    if missing := [name for name in wanted if name not in there]:
        raise ConfigError(f"MCP server {server.name} has no tool {missing[0]}; it has {', '.join(there)}")
    if not wanted:
        raise ConfigError(f"MCP server {server.name} offers no tool")
    return {
        name: spec_of(f"{entry}.{name}", there[name].description or "", there[name].input_schema) for name in wanted
    }


def _reason(error: BaseException) -> str:
    """The innermost error in one line: task groups wrap the errors of their tasks."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
