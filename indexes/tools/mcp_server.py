"""Tools of MCP servers (the extra `mcp`, the protocol's own package), by stdio or HTTP.

A server is started or connected to before a run begins, in a thread with an event loop of its own, so that its tools
are known and outlive any loop that asks. Where the connection ends, the next call makes a new one. What a server says
of itself is untrusted: names and schemas are checked, and descriptions shown neutralised, in one line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp.types as protocol
from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from indexes.tools.callables import said
from indexes.tools.mcp_http import MESSAGE_BYTES, UNSENT, client_of
from indexes.tools.mcp_reading import WireLog
from steprag.agent.tools import ToolSpec, spec_of
from steprag.console.progress import say
from steprag.errors import ConfigError, RetrieverError
from steprag.net.bounded_http import HIDDEN, LEAST_SECRET
from steprag.types import Passage

RELAY = Path(__file__).with_name("stdio_relay.py")
LOST = protocol.CONNECTION_CLOSED
PAGES, TOOLS = 100, 1000
"""Pages of a listing, and tools, that are read."""


@dataclass(frozen=True)
class ServerAddress:
    """How a server is reached: by a command or a URL. `env`, `headers`: what it gets beyond the usual, values included.
    `seconds`: until a reply counts as lost.
    """

    command: tuple[str, ...] | None
    url: str | None
    seconds: float
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The command, or the URL without what may hold a key."""
        return re.sub(r"(//)[^/@]*@|[?#].*", r"\1", self.url) if self.url else " ".join(self.command or ())

    def transport(self, log: Any) -> AbstractAsyncContextManager[Any]:
        """The package's transport. `log`: where a command's standard error goes."""
        if self.url is not None:
            return streamable_http_client(self.url, http_client=client_of(self.url, self.headers, self.seconds))
        relayed = [str(RELAY), str(MESSAGE_BYTES), str(UNSENT), *(self.command or ())]
        server = StdioServerParameters(
            command=sys.executable, args=relayed, env=dict(self.env), encoding_error_handler="replace"
        )
        return stdio_client(server, errlog=log)

    def told(self, text: str) -> str:
        """A text in one line, without the values that the server got."""
        for value in (*self.env.values(), *self.headers.values()):
            for secret in {value, value.rpartition(" ")[2]}:
                text = text.replace(secret, HIDDEN.decode()) if len(secret) >= LEAST_SECRET else text
        return " ".join(text.split())[:300]


class _Link:
    """An open connection. `listed`: the server's tools."""

    def __init__(self, way: ServerAddress) -> None:
        """Starts or reaches the server. Raises ConfigError where it does not answer as one."""
        self._way, self._open, self._heard = way, ExitStack(), WireLog()
        # what a server writes to its standard error is not for ours; the relay bounds it
        file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        log: Any = self._open.enter_context(file)
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # else a traceback for each line that is no JSON
        try:
            self._portal = self._open.enter_context(start_blocking_portal())
            client = Client(self._heard.over(way.transport(log)), read_timeout_seconds=way.seconds)
            self._client = self._open.enter_context(self._portal.wrap_async_context_manager(client))
            self.listed = self._portal.call(self._tools)
        except Exception as error:  # whatever a stranger's server makes the package raise, it is no tool here
            log.seek(0)
            last = " ".join(log.read(4096).split())[-200:]
            self._open.close()
            told = f"{_reason(error)}; it wrote: {last}" if last else _reason(error)
            raise ConfigError(f"MCP server {way.name}: {way.told(told)}") from error

    async def _tools(self) -> list[protocol.Tool]:
        """The listing, page by page; it ends with a cursor that came before."""
        listed: list[protocol.Tool] = []
        seen: set[str | None] = {None, ""}
        cursor = None
        for _ in range(PAGES):
            page = await self._client.list_tools(cursor=cursor)
            listed += page.tools
            cursor = page.next_cursor
            if cursor in seen:
                return listed[:TOOLS]
            seen.add(cursor)
            if len(listed) > TOOLS:
                break
        say(f"MCP server {self._way.name} lists more than {TOOLS} tools or {PAGES} pages; the rest is not read")
        return listed[:TOOLS]

    def may_repeat(self, name: str) -> bool:
        """Whether the server says that a second call of the tool changes nothing."""
        hints = next((tool.annotations for tool in self.listed if tool.name == name), None)
        return hints is not None and hints.read_only_hint is True

    async def call(self, name: str, arguments: Mapping[str, Any]) -> protocol.CallToolResult:
        """The server's result. Raises what the package does."""
        if self._heard.ended:
            raise MCPError(UNSENT, "the connection had ended")
        return await asyncio.wrap_future(self._portal.start_task_soon(self._client.call_tool, name, dict(arguments)))

    def close(self) -> None:
        """Ends the connection, and the server where it was started here."""
        self._heard.ended = True
        self._open.close()
        if self._heard.noise:
            say(f"MCP server {self._way.name}: skipped {self._heard.noise} lines of its standard output that are no "
                "messages; a server's log belongs on its standard error")  # fmt: skip
            self._heard.noise = 0


class McpServer:
    """A server and its wanted tools, `specs` by its own names for them. Where its connection ended, a call makes a new
    one, as long as the tools are the same.
    """

    def __init__(self, way: ServerAddress, chosen: Callable[[Iterable[protocol.Tool]], dict[str, ToolSpec]]) -> None:
        """Starts or reaches it. Raises ConfigError where it is no server, or offers nothing that is wanted."""
        self.name, self._way, self._chosen = way.name, way, chosen
        self._users, self._lock = 0, threading.Lock()
        self._link, self._retired = _Link(way), ExitStack()
        try:
            self.specs = chosen(self._link.listed)
        except ConfigError:
            self._link.close()
            raise

    async def call(self, name: str, arguments: Mapping[str, Any]) -> protocol.CallToolResult:
        """The server's result. A call that did not reach the tool, or that may be made twice, is made once more over a
        new connection. Raises RetrieverError.
        """
        link, last = self._link, False
        while True:
            try:
                return await link.call(name, arguments)
            except Exception as error:  # as above; this call failed, another may not
                code, told = getattr(error, "code", None), self._way.told(_reason(error))
                if code == protocol.INVALID_PARAMS:  # what the policy wrote is its own to read about
                    return protocol.CallToolResult(content=[protocol.TextContent(text=told)], is_error=True)
                if last or not (code == UNSENT or (code == LOST and link.may_repeat(name))):
                    more = "; it may have been carried out, so it is not made again" if code == LOST else ""
                    raise RetrieverError(f"MCP server {self.name}, tool {name}: {told}{more}") from error
            link, last = await asyncio.to_thread(self._renewed, link), True

    def _renewed(self, old: _Link) -> _Link:
        """A connection in place of `old`; another call may have made it already. Raises RetrieverError."""
        with self._lock:
            if self._link is not old:
                return self._link
            if self._users == 0:
                raise RetrieverError(f"MCP server {self.name} was left while a call waited")
            try:
                new = _Link(self._way)
            except ConfigError as error:
                raise RetrieverError(str(error)) from error
            if not self._is_as_before(new):
                new.close()
                raise RetrieverError(f"MCP server {self.name} came back with other tools; start the run again")
            self._retired.close()  # not `old` yet: other calls may be under way over it
            self._retired.callback(old.close)
            self._link = new
            return new

    def _is_as_before(self, link: _Link) -> bool:
        try:
            return self._chosen(link.listed) == self.specs
        except ConfigError:
            return False

    def used(self) -> McpServer:
        """This server, with one user more."""
        self._users += 1
        return self

    def leave(self) -> None:
        """A user is done; the last one ends the connection."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._retired.close()
                self._link.close()


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
        texts = [item.text for item in result.content if isinstance(item, protocol.TextContent)]
        return said(f"{self.spec.name} (error)" if result.is_error else self.spec.name, texts[:top_k])

    async def aclose(self) -> None:
        """Leaves the server."""
        await asyncio.to_thread(self._server.leave)


def mcp_tools(entry: str, way: ServerAddress, only: list[str] | None) -> list[McpTool]:
    """The tools of a server, named `entry.tool`; with `only`, these. One that no policy can call is left out and said
    to be. Raises ConfigError.
    """
    left_out: dict[str, str] = {}

    def chosen(listed: Iterable[protocol.Tool]) -> dict[str, ToolSpec]:
        return _specs(entry, way.name, {tool.name: tool for tool in listed}, only, left_out)

    server = McpServer(way, chosen)
    for reason in left_out.values():
        say(f"{reason}; it is left out. `only` under tools.{entry} names the tools that you want")
    return [McpTool(server, name, spec) for name, spec in server.specs.items()]


def _specs(
    entry: str, server: str, there: Mapping[str, protocol.Tool], only: list[str] | None, left_out: dict[str, str]
) -> dict[str, ToolSpec]:
    """The specifications of the wanted tools by the server's names for them; `left_out` gets why others have none.
    Raises ConfigError for one that `only` names, and where none is left.
    """
    if missing := [name for name in only or () if name not in there]:
        raise ConfigError(f"MCP server {server} has no tool {missing[0]}; it has {', '.join(there)}")
    specs: dict[str, ToolSpec] = {}
    for name in there if only is None else only:
        try:
            specs[name] = spec_of(f"{entry}.{name}", there[name].description or "", there[name].input_schema)
        except ConfigError as error:
            if only is not None:
                raise
            left_out[name] = str(error)
    if not specs:
        reason = next(iter(left_out.values()), "it lists none")
        raise ConfigError(f"MCP server {server} offers no tool that a policy can call: {reason}")
    return specs


def _reason(error: BaseException) -> str:
    """The innermost error: task groups wrap the errors of their tasks."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    told = re.sub(r": \d+ validation errors? for .*", " (no message of the protocol)", str(error), flags=re.DOTALL)
    return told if isinstance(error, MCPError) else f"{type(error).__name__}: {told}"
