"""The agent as an OpenAI model: any client that speaks that API can ask it.

Steps go out as reasoning (`reasoning_content`, and `reasoning`, as engines name it today), the answer as content,
sources as `url_citation` annotations with the last piece, and each native event beside them under `steprag`. When a
client leaves, streaming or not, its turn is cancelled.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from apps.chat.http.completion_request import SOURCE_LIST, CompletionBody
from apps.chat.http.reasoning import Reasoning, inert, reasoning_of
from apps.chat.http.service import COMMENT, ChatService, dumped, new_id, sse, stream_of
from apps.chat.http.source_pages import source_path
from apps.chat.routing import mode_named, tells_talk
from apps.chat.turns.events import Event, LiveTurn
from apps.chat.turns.store import TurnRequest
from steprag.agent.citations import headed
from steprag.errors import quoted
from steprag.web.app import ApiError, as_json
from steprag.web.guard import error_body, route_of

NAME = "agent"
"""The model's name; `agent-MODE` fixes the mode."""
SERVED = "/v1/chat/completions"
ROOTS = ("/v1", "/api/v1", "/v1beta", "/openai")
ENDS = ("/completions", "/responses", "/embeddings", "/models", "/chat", "/generate", "/tags")
"""How paths begin and end that clients ask whose base URL is another server's: Azure's /openai/deployments/NAME/…,
Ollama's /api/chat, or one without /v1.
"""
SOURCES = "+sources"
"""Behind a model's name: the answer ends with links to its sources, for clients that show no annotations."""
NOTHING = "{}"
"""The answer to a task: all tasks ask for JSON. Open WebUI then takes the first question for the title."""
Link = Callable[[int, str], str]
"""The address of a turn's passage, by its number and title."""
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
"""The end of a reply in the making that may change with what follows, or be left out."""


def openai_routes(service: ChatService) -> APIRouter:
    """`/v1/models` and `/v1/chat/completions`; who asks below /v1 for more, or elsewhere, is told of these."""
    router = APIRouter()
    _add_models(router, service)
    _add_completions(router, service)

    async def unknown(request: Request) -> Response:
        path = route_of(request.scope)
        told = (
            f"{request.method} {quoted(path)} is not served; ask POST {SERVED}, or GET /v1/models (a "
            "client's base URL ends in /v1)"
        )
        raise ApiError(405 if path == SERVED else 404, "not_found", told)

    below = [path for root in ROOTS for path in (root, f"{root}/{{path:path}}")]
    for path in (*below, *ENDS, *(f"/{{before:path}}{end}" for end in ENDS)):
        router.add_api_route(path, unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    return router


def _names(service: ChatService) -> list[str]:
    return [NAME, *(f"{NAME}-{mode}" for mode in service.modes), f"{NAME}{SOURCES}"]


def _known(name: str, service: ChatService) -> str:
    """The name of a model, which may end in `SOURCES`. Raises ApiError where there is none."""
    names, mode = _names(service), name.removesuffix(SOURCES).removeprefix(f"{NAME}-")
    if name.removesuffix(SOURCES) not in names and (mode == name or mode_named(mode, service.modes) is None):
        raise ApiError(404, "model_not_found", f"model {quoted(name)} is not one of {', '.join(names)}", param="model")
    return name


def _row(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "steprag"}


def _add_models(router: APIRouter, service: ChatService) -> None:
    @router.get("/v1/models")
    @router.get("/v1/models/")
    async def models() -> Response:
        return as_json({"object": "list", "data": [*map(_row, _names(service))]})

    @router.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        return as_json(_row(_known(name, service)))


def _add_completions(router: APIRouter, service: ChatService) -> None:
    @router.post(SERVED)
    @router.post(f"{SERVED}/")
    async def complete(body: CompletionBody, request: Request) -> Response:
        name = _known(body.model, service).removesuffix(SOURCES)
        body.check()
        question = body.question
        if question is None:
            return _nothing(body)
        mode = name.removeprefix(NAME).removeprefix("-") or service.mode
        live = await service.take(TurnRequest(new_id("t"), new_id("v"), question, mode, time.time(),
                                        history=body.exchanges(service.limits.history)))  # fmt: skip

        def link(n: int, title: str) -> str:
            return f"{str(request.base_url).rstrip('/')}{source_path(service.access, live.id, n, title)}"

        if body.stream:
            return stream_of(_chunks(service, live, body, link))
        return await _whole(service, live, body, request, link)


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


async def last_event(service: ChatService, live: LiveTurn, request: Request) -> Event:
    """The last event of a turn; cancels it where the client leaves. Raises ApiError where it failed."""
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
    return last


async def _whole(
    service: ChatService, live: LiveTurn, body: CompletionBody, request: Request, link: Link
) -> Response:  # fmt: skip
    """The turn as one chat completion."""
    last = await last_event(service, live, request)
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


def citation_annotations(events: list[Event], link: Link) -> list[dict[str, Any]]:
    """The passages that the answer rests on, as the API's annotations over the whole answer. Passages that have no
    address of the web have one of this service.
    """
    answer = next((event for event in events if event["type"] == "answer"), None)
    if answer is None:
        return []
    items = {item["n"]: item for event in events if event["type"] == "passages" for item in event["items"]}
    end = len(content_of(events))
    return [
        {"type": "url_citation", "url_citation": {
            "url": item["url"] or link(one["n"], item["title"]), "title": item["title"] or item["id"],
            "start_index": 0, "end_index": end}}
        for one in answer["sources"] if one["cited"] for item in [items[one["n"]]]
    ]  # fmt: skip


def source_list(annotations: list[dict[str, Any]]) -> str:
    """The cited passages as a list of links, to stand behind the answer; empty where there are none."""
    cited = [one["url_citation"] for one in annotations]
    titles = [re.sub(r"[\[\]()]", "", inert(" ".join(one["title"].split()))) for one in cited]
    rows = [f"{n}. [{title}](<{one['url']}>)" for n, (title, one) in enumerate(zip(titles, cited, strict=True), 1)]
    return SOURCE_LIST + "\n".join(rows) if rows else ""


def content_of(events: list[Event]) -> str:
    """What the client shows as the answer: the answer, without images and HTML, behind words that say so where it is a
    guess; or why there is none. A `<` that begins no tag stays, as in "a < b".
    """
    answer = next((event for event in events if event["type"] == "answer"), None)
    if answer is None:
        return f"(no answer: {events[-1].get('finish', 'cancelled')})"
    return headed(_harmless(answer["content"]), answer.get("lacks"))


def _harmless(answer: str) -> str:
    return _HTML.sub("‹", answer).replace("![", "! [")


def usage_of(last: Event) -> dict[str, int]:
    """A turn's usage in the API's words."""
    used = last.get("usage", {})
    prompt, completion = used.get("prompt_tokens", 0), used.get("completion_tokens", 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Chunks:
    """Makes the chunks of one streamed completion."""

    def __init__(self, id: str, model: str, ignored: list[str]) -> None:
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._ignored, self._reasoning = ignored, Reasoning()
        self._talks, self._held, self._sent = False, list[str](), list[str]()

    def event(self, event: Event) -> bytes:
        """A chunk for a native event; the first one says which fields of the request change nothing."""
        delta: dict[str, Any] = {}
        if event["type"] == "turn.started":
            delta, event = {"role": "assistant", "content": ""}, {**event, "ignored": self._ignored}
        self._talks = self._talks or tells_talk(event)
        if self._talks:
            delta |= self._talked(event)
        elif words := self._reasoning.of(event):
            delta |= {"reasoning_content": words, "reasoning": words}
        return self._chunk(delta, steprag=event)

    def ending(self, content: str, annotations: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
        """The answer, the reason for the end, and the usage where it was asked for."""
        content = content.removeprefix("".join(self._sent))
        last = self._chunk({"content": content, "annotations": annotations}) + self._chunk({}, "stop")
        return last if usage is None else last + sse(dumped({**self._head, "choices": [], "usage": usage}))

    def _talked(self, event: Event) -> dict[str, str]:
        """The words that a reply of conversation gains, which has no steps before it."""
        if event["type"] != "step.delta":
            return {}
        self._held.append(event["text"])
        if not event["text"].strip():
            return {}
        text = "".join(self._held) if self._sent else "".join(self._held).lstrip()
        shown = text.rstrip().removesuffix("!").removesuffix("<").rstrip()
        self._held = [text[len(shown) :]]
        if not shown:
            return {}
        self._sent.append(_harmless(shown))
        return {"content": self._sent[-1]}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse(dumped({**self._head, "choices": [choice], **more}))


def completion(
    id: str, model: str, content: str, usage: dict[str, int], steprag: dict[str, Any], **message: Any
) -> dict[str, Any]:
    """A whole completion; `message`: further fields of the answer, `steprag` what is beyond the API."""
    return {
        "id": id, "object": "chat.completion", "created": int(time.time()), "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content, **message},
                     "finish_reason": "stop"}],
        "usage": usage, "steprag": steprag,
    }  # fmt: skip
