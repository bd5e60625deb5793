"""The application and its routes: turns, conversations, what answers here, and its metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from heapq import nlargest
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Header, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from apps.chat.http.file_routes import UPLOADS, file_routes, taken, unasked
from apps.chat.http.listing import EXPORTS, cited_in, exported, holds, summaries, title_of
from apps.chat.http.openai_api import last_event, openai_routes
from apps.chat.http.reasoning import reasoning_of
from apps.chat.http.service import (
    COMMENT,
    ChatService,
    FeedbackBody,
    ForkBody,
    Name,
    NameBody,
    QueryBody,
    TurnBody,
    dumped,
    new_id,
    sse,
    stream_of,
)
from apps.chat.http.source_pages import PREFIX, source_routes
from apps.chat.turns.events import LiveTurn, judged
from apps.chat.turns.retelling import again_request, detail, fork_request, human_pair, retold
from apps.chat.turns.store import TurnRequest
from inference.predictions import BROKEN_OFF
from steprag.errors import JournalFull
from steprag.records.turns import Feedback, Turn
from steprag.web.app import ApiError, as_json, page_app

PAGE = Path(__file__).parents[1] / "page"
FREE = (f"{PREFIX}/", "/api/health")
"""Paths without a token, beside the page's own files: links to passages hold a proof of their own."""
LISTED = 1000
"""Conversations that are listed, the newest."""


def create_chat_app(service: ChatService) -> FastAPI:
    """The application. The desk is the caller's to close."""
    access = replace(service.access, uploads=(f"{UPLOADS}/", service.limits.file_megabytes << 20))
    app = page_app("StepRAG", PAGE, access, {"/v1/": 400})
    ours = (info_routes, asking_routes, plain_routes, reading_routes, conversation_routes, file_routes)
    for routes in (*ours, openai_routes, source_routes):
        app.include_router(routes(service))

    @app.exception_handler(OSError)
    async def no_room(request: Request, error: OSError) -> Response:
        return ApiError(503, "not_kept", f"this cannot be kept: {error.strerror}").reply()

    @app.exception_handler(JournalFull)
    async def journal_full(request: Request, error: JournalFull) -> Response:
        return ApiError(503, "not_kept", "the disk has no room, or cannot be written; try again when it can").reply()

    return app


def info_routes(service: ChatService) -> APIRouter:
    """`/api/info`: model, index and modes. `/metrics`: counts of turns, in Prometheus' text format."""
    router, desk = APIRouter(), service.desk

    @router.get("/api/info")
    async def info() -> Response:
        rewriter = desk.chat.rewriter is not None
        return as_json({"model": service.model, "index": service.index, "modes": service.modes, "mode": service.mode,
                        "rewriter": rewriter, "version": service.version, "examples": service.examples,
                        "about": service.about, "waiting": desk.waiting, "playing": desk.playing,
                        "files": taken(service)})  # fmt: skip

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(desk.metrics), media_type=CONTENT_TYPE_LATEST)

    return router


def asking_routes(service: ChatService) -> APIRouter:
    """What begins, ends or judges a turn."""
    router, desk, store = APIRouter(prefix="/api/turns"), service.desk, service.desk.chat.store

    @router.post("", status_code=201)
    async def ask(body: TurnBody) -> Response:
        conversation = body.conversation or new_id("c")
        parent = _last_of(service, conversation)
        live = await service.take(
            TurnRequest(new_id("t"), conversation, body.question, body.mode or service.mode, time.time(), body.rewrite,
                        parent=parent, source=body.source)
        )  # fmt: skip
        return as_json({"turn": live.id, "conversation": conversation}, 201)

    @router.delete("/{turn_id}", status_code=204)
    async def cancel(turn_id: str) -> Response:
        if desk.live(turn_id) is None:
            service.ended(turn_id)
        desk.cancel(turn_id)
        return Response(status_code=204)

    @router.post("/{turn_id}/fork", status_code=201)
    async def fork(turn_id: str, body: ForkBody) -> Response:
        parent = service.ended(turn_id)
        request = await fork_request(desk.chat, parent, body.step, body.text, new_id("t"), body.action)
        live = await service.take(request)
        await human_pair(desk.chat, parent, request)
        return as_json({"turn": live.id, "conversation": request.conversation}, 201)

    @router.post("/{turn_id}/again", status_code=201)
    async def again(turn_id: str) -> Response:
        turn = service.ended(turn_id)
        _last_of(service, turn.conversation)
        live = await service.take(again_request(desk.chat, turn, new_id("t")))
        return as_json({"turn": live.id, "conversation": turn.conversation}, 201)

    @router.post("/{turn_id}/feedback", status_code=204)
    async def feedback(turn_id: str, body: FeedbackBody) -> Response:
        await store.judge(service.ended(turn_id).id, Feedback(body.right, body.answer))
        return Response(status_code=204)

    return router


def plain_routes(service: ChatService) -> APIRouter:
    """`POST /generate`, a question and its reply in one request; `GET /api/health`."""
    router = APIRouter()

    @router.post("/generate")
    async def generate(body: QueryBody, request: Request) -> Response:
        conversation, mode = body.conversation or new_id("v"), body.mode or service.mode
        parent = _last_of(service, conversation)
        live = await service.take(
            TurnRequest(new_id("t"), conversation, body.query, mode, time.time(), parent=parent, source=body.source)
        )
        last = await last_event(service, live, request)
        told = {event["type"]: event for event in live.events}
        answer = told.get("answer", {})
        return as_json({"response": answer.get("content"), **judged(answer), "mode": live.request.mode,
                        "route": told.get("question", {}).get("route"),
                        "reasoning": reasoning_of(live.events), "sources": cited_in(live.events),
                        "finish": last.get("finish", "cancelled"), "usage": last.get("usage"), "turn": live.id,
                        "conversation": conversation})  # fmt: skip

    @router.get("/api/health")
    async def health() -> Response:
        return as_json({"status": "ok"})

    return router


def reading_routes(service: ChatService) -> APIRouter:
    """The events of a turn."""
    router, desk = APIRouter(prefix="/api/turns"), service.desk

    @router.get("/{turn_id}/events")
    async def follow(turn_id: str, last_event_id: str | None = Header(None)) -> Response:
        live = desk.live(turn_id)
        if live is not None:
            return stream_of(_live_events(live, _place(last_event_id, live)))
        told = await retold(desk.chat, service.ended(turn_id))
        return stream_of(_told(turn_id, told))

    @router.get("/{turn_id}/steps/{place}")
    async def step(turn_id: str, place: int) -> Response:
        turn = service.ended(turn_id)
        if not 0 <= place <= len(turn.steps) - (turn.refused is None):
            raise ApiError(404, "no_such_step", f"the turn has no step {place}")
        seen = await detail(desk.chat, turn, place)
        candidates = [{"text": text, "refused": reason} for text, reason in seen.candidates]
        text = turn.steps[place].text if place < len(turn.steps) else turn.refused
        return as_json({"messages": seen.messages, "allowed": seen.allowed, "candidates": candidates, "text": text})

    return router


def _last_of(service: ChatService, conversation: str) -> str | None:
    """The turn that a new one of the conversation follows. Raises ApiError where one is under way."""
    if service.desk.busy(conversation):
        raise ApiError(409, "turn_under_way", "the conversation's last question is not answered yet; wait, or stop it")
    return next(reversed(service.desk.chat.store.conversations.get(conversation, {})), None)


def _place(last_event_id: str | None, live: LiveTurn) -> int:
    """How many events a client has. Ids are `mark:number`; those of another telling do not count."""
    mark, _, number = (last_event_id or "").rpartition(":")
    if mark != live.mark or not number.isascii() or not number.isdecimal():
        return 0
    return min(int(number), len(live.events))


async def _live_events(live: LiveTurn, after: int) -> AsyncIterator[bytes]:
    async with aclosing(live.follow(after)) as news:  # pyright: ignore[reportArgumentType] (can be closed)
        async for events in news:
            yield (
                b"".join(sse(dumped(event), f"{live.mark}:{number}") for number, event in enumerate(events, after + 1))
                or COMMENT
            )
            after += len(events)


async def _told(turn_id: str, events: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    for number, event in enumerate(events, 1):
        yield sse(dumped(event), f"{turn_id}:{number}")


def conversation_routes(service: ChatService) -> APIRouter:
    """`/api/conversations`."""
    router = APIRouter(prefix="/api/conversations")
    desk, store = service.desk, service.desk.chat.store
    files_of = desk.chat.files.of if desk.chat.files else lambda conversation: ()

    @router.get("")
    async def listed(words: str = "") -> Response:
        asked = words.lower().split()
        there = [(id, tuple(turns.values())) for id, turns in store.conversations.items()]
        if asked:
            rows = [(id, turns, store.names.get(id, "")) for id, turns in there]
            there = await asyncio.to_thread(lambda: [row[:2] for row in rows if holds(asked, *row[1:])])
        newest = nlargest(LISTED, there, key=lambda one: one[1][-1].time)
        told = [{**row, "files": len(files_of(row["id"]))} for row in summaries(newest, store.names)]
        return as_json({"conversations": [*(() if asked else unasked(service)), *told]})

    @router.get("/{conversation}")
    async def one(conversation: Name) -> Response:
        turns, files = store.conversations.get(conversation, {}), files_of(conversation)
        if not turns and not files:
            raise ApiError(404, "no_such_conversation", "there is no such conversation")
        rows = sorted(map(_row, turns.values()), key=lambda row: row["time"])
        return as_json({"id": conversation, "turns": rows, "files": [*map(vars, files)]})

    @router.get("/{conversation}/export")
    async def export(conversation: Name, form: Literal["markdown", "json"] = "markdown") -> Response:
        turns = [one for one in store.conversations.get(conversation, {}).values() if isinstance(one, Turn)]
        if not turns:
            raise ApiError(404, "no_such_conversation", "there is no such conversation, or none of its turns has ended")
        title = title_of(tuple(turns), store.names.get(conversation))
        text = exported(form, title, turns, [await retold(desk.chat, turn) for turn in turns])
        ending, kind = EXPORTS[form]
        headers = {"Content-Disposition": f'attachment; filename="{conversation}.{ending}"'}
        return Response(text.encode("utf-8", "replace"), headers=headers, media_type=kind)

    @router.patch("/{conversation}", status_code=204)
    async def rename(conversation: Name, body: NameBody) -> Response:
        if conversation not in store.conversations:
            raise ApiError(404, "no_such_conversation", "there is no such conversation")
        await store.name(conversation, body.title)
        return Response(status_code=204)

    @router.delete("/{conversation}", status_code=204)
    async def forget(conversation: Name) -> Response:
        await desk.forget(conversation)
        return Response(status_code=204)

    return router


def _row(turn: Turn | TurnRequest) -> dict[str, Any]:
    """A turn as a conversation lists it."""
    status, feedback = "running", None
    if isinstance(turn, Turn):
        status = turn.finish if turn.finish in BROKEN_OFF else "finished"
        feedback = turn.feedback and vars(turn.feedback)
    return {"turn": turn.id, "asked": turn.asked, "mode": turn.mode, "parent": turn.parent, "time": turn.time,
            "given": turn.given if isinstance(turn, Turn) else len(turn.given), "status": status,
            "feedback": feedback, "source": turn.source}  # fmt: skip
