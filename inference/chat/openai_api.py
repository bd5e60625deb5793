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

from inference.chat.events import Event
from inference.chat.live import LiveTurn
from inference.chat.service import ChatService
from inference.chat.store import TurnRequest
from inference.chat.wire import COMMENT, ChatMessage, CompletionBody, dumped, new_id, sse, stream_of
from steprag.web.guard import error_body
from steprag.web.replies import ApiError, as_json

NAME = "agent"
"""The model's name; `agent-MODE` fixes the mode."""
CHORE = "### Task:"
"""How Open WebUI begins what it asks beside the conversation: titles, tags, follow-up questions."""


def openai_routes(service: ChatService) -> APIRouter:
    """`/v1/models` and `/v1/chat/completions`."""
    router = APIRouter(prefix="/v1")
    names = [NAME, *(f"{NAME}-{mode}" for mode in service.modes)]

    @router.get("/models")
    async def models() -> Response:
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "steprag"} for name in names]
        return as_json({"object": "list", "data": rows})

    @router.post("/chat/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        if body.model not in names:
            raise ApiError(404, "model_not_found", f"model {body.model!r} is not one of {', '.join(names)}")
        live = service.take(turn_request(service, body))
        if body.stream:
            return stream_of(_chunks(service, live, body))
        return await _whole(service, live, body, request)

    return router


def turn_request(service: ChatService, body: CompletionBody) -> TurnRequest:
    """The turn that a request asks for: its last message is the question, those before are what went before.

    Raises ApiError where the last message is not a user's.
    """
    *before, last = body.messages
    if last.role != "user" or not last.text.strip():
        raise ApiError(400, "no_question", "the last message must be a user's, with text", param="messages")
    mode = body.model.removeprefix(NAME).removeprefix("-") or service.mode
    chore = last.text.lstrip().startswith(CHORE)
    if chore and "direct" in service.modes:
        mode = "direct"
    return TurnRequest(new_id("t"), new_id("v"), last.text.strip(), mode, time.time(), rewrite=not chore,
                       history=exchanges(before), kept=not chore)  # fmt: skip


def exchanges(messages: list[ChatMessage]) -> tuple[tuple[str, str], ...]:
    """The earlier questions that an answer followed, with it. System messages are left out: the agent's are its own."""
    pairs, question = [], None
    for message in messages:
        if message.role == "user":
            question = message.text
        elif message.role == "assistant" and question is not None:
            pairs.append((question, message.text))
            question = None
    return tuple(pairs)


def thought(event: Event) -> str | None:
    """What a client shows as reasoning for an event; None where it shows nothing."""
    match event["type"]:
        case "question" if event["question"] != event["asked"]:
            return f"Question: {event['question']}\n"
        case "step.finished":
            return f"{event['action']}: {event['content']}\n"
        case "passages":
            return "".join(f"  [{item['n']}] {item['title']}\n" for item in event["items"]) or "  nothing found\n"
        case _:
            return None


def citation_annotations(service: ChatService, live: LiveTurn) -> list[dict[str, Any]]:
    """The passages that the answer rests on, as the API's annotations over the whole answer."""
    answer = next((event for event in live.events if event["type"] == "answer"), None)
    if answer is None:
        return []
    items = {item["n"]: item for event in live.events if event["type"] == "passages" for item in event["items"]}
    end = len(answer["content"])
    return [
        {"type": "url_citation", "url_citation": {
            "url": items[one["n"]]["url"] or f"steprag:{items[one['n']]['id']}", "title": items[one["n"]]["title"],
            "start_index": 0, "end_index": end}}
        for one in answer["sources"] if one["cited"]
    ]  # fmt: skip


def content_of(last: Event, events: list[Event]) -> str:
    """What the client shows as the answer: the answer, or why there is none."""
    answer = next((event["content"] for event in events if event["type"] == "answer"), None)
    if answer is not None:
        return answer
    return f"(no answer: {last.get('finish', 'cancelled')})"


def usage_of(last: Event) -> dict[str, int]:
    """A turn's usage in the API's words."""
    used = last.get("usage", {})
    prompt, completion = used.get("prompt_tokens", 0), used.get("completion_tokens", 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def _chunks(service: ChatService, live: LiveTurn, body: CompletionBody) -> AsyncIterator[bytes]:
    """The turn as chunks of a chat completion, then `[DONE]`. Cancels the turn where the client leaves."""
    head = {"id": live.id, "object": "chat.completion.chunk", "created": int(time.time()), "model": body.model}

    def chunk(delta: dict[str, Any], event: Event | None, finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        said = {} if event is None else {"steprag": event}
        return sse(dumped({**head, "choices": [choice], **more, **said}))

    def told(event: Event) -> bytes:
        delta: dict[str, Any] = {"role": "assistant", "content": ""} if event["type"] == "turn.started" else {}
        if (words := thought(event)) is not None:
            delta |= {"reasoning_content": words, "reasoning": words}
        return chunk(delta, event)

    try:
        async with aclosing(live.follow()) as news:  # pyright: ignore[reportArgumentType] (can be closed)
            async for events in news:
                yield b"".join(map(told, events)) or COMMENT
        last = live.events[-1]
        if last["type"] == "turn.failed":
            yield sse(dumped(error_body(last["message"], "api_error", last["code"])))
        else:
            annotations = citation_annotations(service, live)
            yield chunk({"content": content_of(last, live.events), "annotations": annotations}, None)
            yield chunk({}, None, "stop")
            if body.stream_options and body.stream_options.include_usage:
                yield sse(dumped({**head, "choices": [], "usage": usage_of(last)}))
        yield sse("[DONE]")
    finally:
        service.desk.cancel(live.id)  # nothing where it is over


async def _whole(service: ChatService, live: LiveTurn, body: CompletionBody, request: Request) -> Response:
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
    told = "".join(filter(None, map(thought, live.events)))
    message = {"role": "assistant", "content": content_of(last, live.events), "reasoning_content": told,
               "reasoning": told, "annotations": citation_annotations(service, live)}  # fmt: skip
    return as_json({
        "id": live.id, "object": "chat.completion", "created": int(time.time()), "model": body.model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage_of(last),
        "steprag": {"turn": live.id, "events": live.events},
    })  # fmt: skip


async def _until_over(live: LiveTurn) -> None:
    async with aclosing(live.follow()) as events:  # pyright: ignore[reportArgumentType] (can be closed)
        async for _ in events:
            pass


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
