"""Turns over HTTP: ask, follow, cancel, fork, judge, and look into a step."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Header, Response

from inference.chat.forks import fork_request, human_pair
from inference.chat.live import LiveTurn
from inference.chat.player import detail, retold
from inference.chat.service import ChatService
from inference.chat.store import TurnRequest
from inference.chat.wire import COMMENT, FeedbackBody, ForkBody, TurnBody, dumped, new_id, sse, stream_of
from steprag.types import Feedback
from steprag.web.replies import ApiError, as_json

PREFIX = "/api/turns"


def asking_routes(service: ChatService) -> APIRouter:
    """What begins, ends or judges a turn."""
    router, desk, store = APIRouter(prefix=PREFIX), service.desk, service.desk.chat.store

    @router.post("", status_code=201)
    async def ask(body: TurnBody) -> Response:
        conversation = body.conversation or new_id("c")
        parent = _last_of(service, conversation)
        live = service.take(
            TurnRequest(new_id("t"), conversation, body.question, body.mode or service.mode, time.time(), body.rewrite,
                        parent=parent)
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
        live = service.take(request)
        await human_pair(desk.chat, parent, request)
        return as_json({"turn": live.id, "conversation": request.conversation}, 201)

    @router.post("/{turn_id}/feedback", status_code=204)
    async def feedback(turn_id: str, body: FeedbackBody) -> Response:
        store.judge(service.ended(turn_id).id, Feedback(body.right, body.answer))
        return Response(status_code=204)

    return router


def reading_routes(service: ChatService) -> APIRouter:
    """What a turn tells."""
    router, desk = APIRouter(prefix=PREFIX), service.desk

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
    if service.desk.of(conversation):
        raise ApiError(409, "turn_under_way", "the conversation's last question is not answered yet; wait, or stop it")
    turns = [turn.id for turn in service.desk.chat.store.turns() if turn.conversation == conversation]
    return turns[-1] if turns else None


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
