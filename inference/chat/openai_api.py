"""The agent as an OpenAI model: any client that speaks that API can ask it.

Steps go out as reasoning (`reasoning_content`, and `reasoning`, as engines name it today), the answer as content,
sources as `url_citation` annotations with the last piece, and each native event beside them under `steprag`. When a
client leaves, streaming or not, its turn is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from inference.chat.events import LiveTurn
from inference.chat.openai_replies import (
    SOURCE_LIST,
    Chunks,
    Link,
    citation_annotations,
    completion,
    content_of,
    reasoning_of,
    source_list,
    usage_of,
)
from inference.chat.service import COMMENT, ChatMessage, ChatService, CompletionBody, dumped, new_id, sse, stream_of
from inference.chat.source_pages import source_path
from inference.chat.store import TurnRequest
from steprag.errors import quoted
from steprag.web.app import ApiError, as_json
from steprag.web.guard import error_body

NAME = "agent"
"""The model's name; `agent-MODE` fixes the mode."""
SOURCES = "+sources"
"""Behind a model's name: the answer ends with links to its sources, for clients that show no annotations."""
TASK = "### Task:"
"""How Open WebUI begins what it asks beside the conversation (titles, tags, follow-up questions), and the documents
that it puts before a question."""
DOCUMENTS_END = "</context>"
NOTHING = "{}"
"""What a task is answered: all of them ask for JSON. Open WebUI then takes the first question for the title."""


def openai_routes(service: ChatService) -> APIRouter:
    """`/v1/models` and `/v1/chat/completions`."""
    router = APIRouter(prefix="/v1")
    names = [NAME, *(f"{NAME}-{mode}" for mode in service.modes)]

    @router.get("/models")
    async def models() -> Response:
        listed = [*names, f"{NAME}{SOURCES}"]
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "steprag"} for name in listed]
        return as_json({"object": "list", "data": rows})

    @router.post("/chat/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        name = body.model.removesuffix(SOURCES)
        if name not in names:
            raise ApiError(404, "model_not_found", f"model {quoted(body.model)} is not one of {', '.join(names)}")
        if refused := body.refused():
            raise ApiError(400, "unsupported", refused[1], param=refused[0])
        question = asked_by(body.messages)
        if question is None:
            return _nothing(body)
        mode = name.removeprefix(NAME).removeprefix("-") or service.mode
        live = await service.take(TurnRequest(new_id("t"), new_id("v"), question, mode, time.time(),
                                        history=exchanges(body.messages[:-1])))  # fmt: skip

        def link(n: int, title: str) -> str:
            return f"{str(request.base_url).rstrip('/')}{source_path(service.access, live.id, n, title)}"

        if body.stream:
            return stream_of(_chunks(service, live, body, link))
        return await _whole(service, live, body, request, link)

    return router


def asked_by(messages: list[ChatMessage]) -> str | None:
    """The question of a conversation: its last message, without the documents that Open WebUI puts before it. None
    where it is a task for the client's own sake. Raises ApiError where it is no user's.
    """
    last = messages[-1]
    text = last.text.strip()
    if last.role != "user" or not text:
        raise ApiError(400, "no_question", "the last message must be a user's, with text", param="messages")
    if text.startswith(TASK):
        return text.rpartition(DOCUMENTS_END)[2].strip() or None if DOCUMENTS_END in text else None
    return text


def exchanges(messages: list[ChatMessage]) -> tuple[tuple[str, str], ...]:
    """The earlier questions that an answer followed, with it. System messages are left out: the agent's are its own."""
    pairs, question = [], None
    for message in messages:
        if message.role == "user":
            question = message.text
        elif message.role == "assistant" and message.text and question is not None:
            pairs.append((question, message.text.partition(SOURCE_LIST)[0]))
            question = None
    return tuple(pairs)


def _nothing(body: CompletionBody) -> Response:
    """The reply to a task: at once, without a turn and without the engine."""
    id = new_id("n")
    if not body.stream:
        return as_json(completion(id, body.model, NOTHING, usage_of({}), {"ignored": body.ignored}))

    async def chunks() -> AsyncIterator[bytes]:
        yield Chunks(id, body.model, body.ignored).ending(NOTHING, [], usage_of({})) + sse("[DONE]")

    return stream_of(chunks())


async def _chunks(service: ChatService, live: LiveTurn, body: CompletionBody, link: Link) -> AsyncIterator[bytes]:
    """The turn as chunks of a chat completion, then `[DONE]`. Cancels the turn where the client leaves."""
    chunks = Chunks(live.id, body.model, body.ignored)
    try:
        async with aclosing(live.follow()) as news:  # pyright: ignore[reportArgumentType] (can be closed)
            async for events in news:
                yield b"".join(map(chunks.event, events)) or COMMENT
        last = live.events[-1]
        if last["type"] == "turn.failed":
            yield sse(dumped(error_body(last["message"], "api_error", last["code"])))
        else:
            usage = usage_of(last) if body.stream_options and body.stream_options.include_usage else None
            yield chunks.ending(*_said(body, live, link), usage)
        yield sse("[DONE]")
    finally:
        service.desk.cancel(live.id)  # nothing where it is over


async def _whole(
    service: ChatService, live: LiveTurn, body: CompletionBody, request: Request, link: Link
) -> Response:  # fmt: skip
    """The turn as one chat completion. Cancels the turn where the client leaves."""
    ended = asyncio.ensure_future(_until_over(live))
    left = asyncio.ensure_future(_until_left(request))
    try:
        await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        service.desk.cancel(live.id)  # nothing where it is over
        for task in (ended, left):
            task.cancel()
    last = live.events[-1]
    if last["type"] == "turn.failed":
        raise ApiError(502, last["code"], last["message"])
    told, (content, annotations) = reasoning_of(live.events), _said(body, live, link)
    return as_json(completion(
        live.id, body.model, content, usage_of(last),
        {"turn": live.id, "events": live.events, "ignored": body.ignored},
        reasoning_content=told, reasoning=told, annotations=annotations,
    ))  # fmt: skip


def _said(body: CompletionBody, live: LiveTurn, link: Link) -> tuple[str, list[dict[str, Any]]]:
    """What a turn that ended says, and its annotations."""
    content, annotations = content_of(live.events), citation_annotations(live.events, link)
    return content + (source_list(annotations) if body.model.endswith(SOURCES) else ""), annotations


async def _until_over(live: LiveTurn) -> None:
    async with aclosing(live.follow()) as events:  # pyright: ignore[reportArgumentType] (can be closed)
        async for _ in events:
            pass


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
