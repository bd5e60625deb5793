"""`steprag serve --mcp`: the agent as tools of any MCP client, by the protocol's own package (the extra `mcp`).

`ask` plays a turn of the chat service and reports its steps as progress. `search` and `fetch` reply in the shape that
deep-research clients expect of a server: `{"results": [{"id", "title", "url"}]}`, and one document by its id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cachetools import LRUCache
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.chat.config import ChatConfig
from apps.chat.http.openai_api import content_of
from apps.chat.http.reasoning import inert
from apps.chat.http.service import ChatService, Words, new_id
from apps.chat.serve import chat_service
from apps.chat.turns.events import Event, LiveTurn, judged
from apps.chat.turns.store import TurnRequest
from steprag.agent.inert import screened_apart
from steprag.agent.retriever import url_of
from steprag.console.progress import say
from steprag.errors import RetrieverError, quoted
from steprag.records.json_text import NotJson, decoded
from steprag.types import Passage
from steprag.web.app import ApiError, as_json
from steprag.web.guard import Access, error_body

CANCELLED = "notifications/cancelled"
REMEMBERED = 4096
"""Passages that `fetch` knows: those that were found last."""
EXCERPT = 300
"""Characters of a passage in the list of a search."""
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


Found = dict[str, Any]
"""A passage: id, title, url (empty where it has none), text."""


async def serve_stdio(config: ChatConfig, index: str, out: Path) -> None:
    """Answers on standard input and output until they end. Raises ConfigError as `serve_chat`."""
    say("opening the index and starting the model")
    async with chat_service(config, index, out, Access("", True, (), config.serve.body_bytes, "")) as service:
        end, loop = endable_input(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        say("answering on standard input and output, until it ends")
        await server_of(AgentTools(service)).run_stdio_async()


def endable_input() -> Callable[[], None]:
    """Puts a pipe in the place of standard input, and gives what ends it: no signal ends a read of the real one."""
    source, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    sink = os.fdopen(writing, "wb", 0)

    def relay() -> None:
        with suppress(OSError, ValueError), sink:  # ended meanwhile
            while data := os.read(source, 1 << 16):
                sink.write(data)

    threading.Thread(target=relay, daemon=True).start()
    return sink.close


@asynccontextmanager
async def doors(app: Any, service: ChatService) -> AsyncIterator[None]:
    """Adds `/mcp` to the chat service's application, whose guard stands before it too."""
    tools = AgentTools(service)
    server = server_of(tools)
    inner = server.streamable_http_app(
        stateless_http=True, max_request_body_size=service.limits.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's work
    )  # fmt: skip
    for route in inner.routes:
        app.router.routes.append(Route(getattr(route, "path", "/mcp"), Cancelling(getattr(route, "app", inner), tools)))
    async with server.session_manager.run():
        yield


@dataclass(frozen=True)
class AgentTools:
    """The tools over a chat service. `found`: the passages that were found last, by id. `playing`: the turns that
    clients wait for, by who asked and the id of the request.
    """

    service: ChatService
    found: LRUCache[str, Passage] = field(default_factory=lambda: LRUCache(REMEMBERED))
    playing: dict[tuple[object, ...], list[str]] = field(default_factory=dict)

    async def ask(self, question: Words, context: Context, mode: str | None = None) -> CallToolResult:
        """Answers a question in steps of search and reading."""
        turn = TurnRequest(new_id("t"), new_id("m"), question, mode or self.service.mode, time.time())
        try:
            live = await self.service.take(turn)
        except ApiError as error:
            raise ToolError(str(error)) from None
        caller = _caller(context.request_context.request, context.request_context.request_id)
        self.playing.setdefault(caller, []).append(live.id)
        try:
            await _told(self.service, live, context)
        finally:
            self.playing[caller].remove(live.id)
            if not self.playing[caller]:
                del self.playing[caller]
        if live.events[-1]["type"] != "turn.finished":
            raise ToolError(live.events[-1].get("message", "the turn was cancelled"))
        self.found.update({passage.id: passage for passage in _passages(live.events)})
        answer = played_answer(live.events)
        cited = [one for one in answer["sources"] if one["cited"]]
        lines = [f"\n{one['n']}. {inert(one['title'] or one['id'])} {one['url']}".rstrip(" ") for one in cited]
        sources = "\n\nSources:" * bool(lines) + "".join(lines)
        text = content_of(live.events) + sources
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=answer)

    async def search(
        self, query: Words, top_k: Annotated[int, Field(ge=1, le=50)] | None = None
    ) -> dict[str, list[Found]]:
        """Finds passages; the results are excerpts."""
        if len(query) > (most := self.service.limits.question_chars):
            raise ToolError(f"a query of {len(query)} characters; at most {most}")
        environment = self.service.desk.chat.modes[self.service.mode]
        try:
            passages = await environment.retriever.search(query, top_k or environment.top_k)
        except RetrieverError as error:
            raise ToolError(str(error)) from None
        if environment.screen:
            passages = await screened_apart(passages)
        self.found.update({passage.id: passage for passage in passages})
        return {"results": [_listed(passage, EXCERPT) for passage in passages]}

    async def fetch(self, id: str) -> Found:
        """A whole passage, by the id that search or ask gave."""
        passage = self.found.get(id)
        if passage is None:
            raise ToolError(f"no search has found {quoted(id)} lately; search, and fetch an id of its results")
        return {**_listed(passage), "metadata": {"index": self.service.index}}


@dataclass(frozen=True)
class Cancelling:
    """Cancels the turn that a `notifications/cancelled` names, and passes every other request on. The protocol's
    package cannot do it: it handles each request by itself.
    """

    app: ASGIApp
    tools: AgentTools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body, read = await request.body() if request.method == "POST" else b"", False

        async def again() -> Message:
            nonlocal read
            if read or request.method != "POST":
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        answer = self._cancelled(request, body)
        await (answer or self.app)(scope, again, send)

    def _cancelled(self, request: Request, body: bytes) -> Response | None:
        """The reply to such a notification; None for any other request."""
        try:
            told = decoded(body) if b"cancelled" in body else None
            if not isinstance(told, dict) or told.get("method") != CANCELLED:
                return None
            turns = self.tools.playing.get(_caller(request, told["params"]["requestId"]), [])
        except (NotJson, LookupError, TypeError):
            return None  # the protocol's package says what is wrong with it
        if len(turns) > 1:
            told = error_body("several clients use this request id; close the connection instead", "conflict", "id")
            return as_json(told, 409)
        for turn in turns:
            self.tools.service.desk.cancel(turn)
        return Response(status_code=202)


def _caller(request: Request | None, id: object) -> tuple[object, ...]:
    """Identifies a request: its id, which each client counts by itself, and the client."""
    if request is None:
        return (id,)
    headers = (request.headers.get(name) for name in ("mcp-session-id", "user-agent"))
    return id, request.client and request.client.host, *headers


def server_of(tools: AgentTools) -> MCPServer[Any]:
    """The MCP server over a chat service."""
    service = tools.service
    server: MCPServer[Any] = MCPServer(
        "steprag", title="StepRAG", version=service.version, log_level="WARNING", subscriptions=False,
        instructions=f"ask answers questions from the passages of {Path(service.index).name}, in steps that it shows "
                     f"(mode: {', '.join(service.modes)}). search and fetch read those passages. {service.about}",
    )  # fmt: skip
    for tool in (tools.ask, tools.search, tools.fetch):
        server.add_tool(tool, annotations=READS)
    return server


async def _told(service: ChatService, live: LiveTurn, context: Context) -> None:
    """Tells each step and search as progress until the turn is over. Cancels the turn where the client leaves."""
    count = 0
    try:
        async with aclosing(live.follow()) as news:  # pyright: ignore[reportArgumentType] (can be closed)
            async for events in news:  # none where nothing came for long: the client must see that this lives
                for line in filter(None, map(_line, events)) if events else ["…"]:
                    count += 1  # progress has to grow
                    await context.report_progress(count, None, line)
    finally:
        service.desk.cancel(live.id)  # nothing where it is over


def _line(event: Event) -> str:
    """What progress says of an event; empty for most."""
    if event["type"] == "step.finished":
        return f"{event['action']}: {inert(event['content'])}"
    if event["type"] == "passages":
        titles = [f"[{item['n']}] {item['title'] or item['id']}" for item in event["items"]]
        return f"found: {inert('; '.join(titles)) or 'nothing'}"
    return ""


def played_answer(events: list[Event]) -> dict[str, Any]:
    """A finished turn. `answer` is None where it found none (see `finish`); `lacks` as `Grounds.told`."""
    answer: Event = next((event for event in events if event["type"] == "answer"), {})
    cited = {one["n"] for one in answer.get("sources", ()) if one["cited"]}
    numbers = {item["id"]: item["n"] for event in events if event["type"] == "passages" for item in event["items"]}
    return {
        "answer": answer.get("content"), "finish": events[-1]["finish"],
        **judged(answer),
        "steps": [{"action": event["action"], "content": event["content"]}
                  for event in events if event["type"] == "step.finished"],
        "sources": [{**_listed(passage, EXCERPT), "n": numbers[passage.id], "cited": numbers[passage.id] in cited}
                    for passage in _passages(events)],
    }  # fmt: skip


def _passages(events: list[Event]) -> list[Passage]:
    """The different passages that a turn found, in the order of their numbers."""
    items = {item["n"]: item for event in events if event["type"] == "passages" for item in event["items"]}
    return [Passage(item["id"], item["title"], item["text"]) for _, item in sorted(items.items())]


def _listed(passage: Passage, most: int | None = None) -> Found:
    return {"id": passage.id, "title": passage.title, "url": url_of(passage.id) or "", "text": passage.text[:most]}
