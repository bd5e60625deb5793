"""`steprag serve --mcp`: the agent as tools of any MCP client, by the protocol's own package (the extra `mcp`).

`ask` plays a turn of the chat service and tells its steps as progress. `search` and `fetch` reply in the shape that
deep-research clients expect of a server: `{"results": [{"id", "title", "url"}]}`, and one document by its id.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
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
from typing_extensions import TypedDict

from inference.chat.http.openai_api import content_of
from inference.chat.http.reasoning import inert
from inference.chat.http.service import ChatService, Words, new_id
from inference.chat.serve import asked_for, chat_service, serve_chat
from inference.chat.turns.events import Event, LiveTurn
from inference.chat.turns.store import TurnRequest
from steprag.agent.inert import screened
from steprag.agent.retriever import url_of
from steprag.config.load import index_of
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.errors import RetrieverError, quoted
from steprag.runs.run import NUMBERED
from steprag.types import Passage
from steprag.web.app import ApiError
from steprag.web.guard import Access
from steprag.web.listening import until_stopped

PATH = "/mcp"
REMEMBERED = 4096
"""Passages that `fetch` knows: those that were found last."""
EXCERPT = 300
"""Characters of a passage in the list of a search."""
UNSUPPORTED = "\n\nNothing that was read supports this answer."
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


class FoundDocument(TypedDict):
    """A passage in a list. `url`: empty where it has none."""

    id: str
    title: str
    url: str
    text: str


class FoundDocuments(TypedDict):
    """What `search` replies."""

    results: list[FoundDocument]


class WholeDocument(FoundDocument):
    """What `fetch` replies."""

    metadata: dict[str, str]


class AnswerSource(FoundDocument):
    """A passage that the agent read: its number, and whether the answer rests on it."""

    n: int
    cited: bool


class PlayedStep(TypedDict):
    """A step of the agent."""

    action: str
    content: str


class PlayedAnswer(TypedDict):
    """What `ask` replies. `answer`: None where the agent found none (`finish` says why). `lacks`: why nothing that it
    read supports the answer.
    """

    answer: str | None
    finish: str
    lacks: str | None
    steps: list[PlayedStep]
    sources: list[AnswerSource]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag serve --mcp", description="The agent as MCP tools: ask, search, fetch."
    )
    told = "stdio: a client starts this command; http: /mcp beside the page of steprag serve, with its token [stdio]"
    parser.add_argument("way", nargs="?", choices=("stdio", "http"), default="stdio", help=told)
    given, config = asked_for(parser, argv)
    index, out = index_of(given), Path(given.out)
    if given.way == "http":
        return until_stopped(serve_chat(config, index, out, doors))
    if given.out.endswith(NUMBERED):  # clients start one for each of their windows, in folders of their own
        config = config.model_copy(update={"serve": config.serve.model_copy(update={"keep": False})})

    async def serve() -> None:
        say("opening the index and starting the model")
        async with chat_service(config, index, out, Access("", True, (), config.serve.body_bytes, "")) as service:
            say("answering on standard input and output, until it ends")
            await server_of(service).run_stdio_async()

    return until_stopped(serve())


@asynccontextmanager
async def doors(app: Any, service: ChatService) -> AsyncIterator[None]:
    """Adds `PATH` to the chat service's application, whose guard stands before it too."""
    server = server_of(service)
    inner = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, max_request_body_size=service.limits.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's work
    )  # fmt: skip
    app.router.routes.extend(inner.routes)
    async with server.session_manager.run():
        yield


@dataclass(frozen=True)
class AgentTools:
    """The tools over a chat service. `found`: the passages that were found last, by id."""

    service: ChatService
    found: LRUCache[str, Passage] = field(default_factory=lambda: LRUCache(REMEMBERED))

    async def ask(
        self, question: Words, context: Context, mode: str | None = None
    ) -> Annotated[CallToolResult, PlayedAnswer]:
        """Answers a question in steps of search and reading."""
        turn = TurnRequest(new_id("t"), new_id("m"), question, mode or self.service.mode, time.time())
        try:
            live = await self.service.take(turn)
        except ApiError as error:
            raise ToolError(str(error)) from None
        await _told(self.service, live, context)
        if live.events[-1]["type"] != "turn.finished":
            raise ToolError(live.events[-1].get("message", "the turn was cancelled"))
        self.found.update({passage.id: passage for passage in _passages(live.events)})
        answer = played_answer(live.events)
        text = content_of(live.events) + (UNSUPPORTED if answer["lacks"] else "") + _source_lines(answer["sources"])
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=dict(answer))

    async def search(self, query: Words, top_k: Annotated[int, Field(ge=1, le=50)] | None = None) -> FoundDocuments:
        """Finds passages; the results are excerpts."""
        if len(query) > (most := self.service.limits.question_chars):
            raise ToolError(f"a query of {len(query)} characters; at most {most}")
        environment = self.service.desk.chat.environment(self.service.mode)
        try:
            passages = await environment.retriever.search(query, top_k or environment.top_k)
        except RetrieverError as error:
            raise ToolError(str(error)) from None
        if environment.screen:
            passages = screened(passages)
        self.found.update({passage.id: passage for passage in passages})
        return {"results": [_listed(passage, EXCERPT) for passage in passages]}

    async def fetch(self, id: str) -> WholeDocument:
        """A whole passage, by the id that search or ask gave."""
        passage = self.found.get(id)
        if passage is None:
            raise ToolError(f"no search has found {quoted(id)} lately; search, and fetch an id of its results")
        return {**_listed(passage), "metadata": {"index": self.service.index}}


def server_of(service: ChatService) -> MCPServer[Any]:
    """The MCP server over a chat service."""
    server: MCPServer[Any] = MCPServer(
        "steprag", title="StepRAG", version=service.version, log_level="WARNING", subscriptions=False,
        instructions=f"ask answers questions from the passages of {Path(service.index).name}, in steps that it shows "
                     f"(mode: {', '.join(service.modes)}). search and fetch read those passages. {service.about}",
    )  # fmt: skip
    tools = AgentTools(service)
    for tool in (tools.ask, tools.search, tools.fetch):
        server.add_tool(tool, annotations=READS)
    return server


async def _told(service: ChatService, live: LiveTurn, context: Context) -> None:
    """Tells each step and search as progress until the turn is over. Cancels the turn where the client leaves."""
    total = service.desk.chat.environment(live.request.mode).depth
    steps = 0
    try:
        async with aclosing(live.follow()) as news:  # pyright: ignore[reportArgumentType] (can be closed)
            async for events in news:
                for event in events:
                    steps += event["type"] == "step.finished"
                    if line := _line(event):
                        await context.report_progress(steps, max(total, steps), line)
                if not events:  # nothing for long: the client must see that this lives
                    await context.report_progress(steps, max(total, steps), "…")
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


def played_answer(events: list[Event]) -> PlayedAnswer:
    """A finished turn as one object."""
    answer: Event = next((event for event in events if event["type"] == "answer"), {})
    cited = {one["n"] for one in answer.get("sources", ()) if one["cited"]}
    numbers = {item["id"]: item["n"] for event in events if event["type"] == "passages" for item in event["items"]}
    return {
        "answer": answer.get("content"), "finish": events[-1]["finish"], "lacks": answer.get("lacks"),
        "steps": [{"action": event["action"], "content": event["content"]}
                  for event in events if event["type"] == "step.finished"],
        "sources": [{**_listed(passage, EXCERPT), "n": numbers[passage.id], "cited": numbers[passage.id] in cited}
                    for passage in _passages(events)],
    }  # fmt: skip


def _passages(events: list[Event]) -> list[Passage]:
    """The different passages that a turn found, in the order of their numbers."""
    items = {item["n"]: item for event in events if event["type"] == "passages" for item in event["items"]}
    return [Passage(item["id"], item["title"], item["text"]) for _, item in sorted(items.items())]


def _listed(passage: Passage, most: int | None = None) -> FoundDocument:
    return {"id": passage.id, "title": passage.title, "url": url_of(passage.id) or "", "text": passage.text[:most]}


def _source_lines(sources: list[AnswerSource]) -> str:
    lines = [f"{one['n']}. {inert(one['title'] or one['id'])} {one['url']}".rstrip() for one in sources if one["cited"]]
    return "\n\nSources:\n" + "\n".join(lines) if lines else ""


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
