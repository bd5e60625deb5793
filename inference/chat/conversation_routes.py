"""Conversations over HTTP: listed, read, deleted."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from inference.chat.service import ChatService
from inference.chat.store import TurnRequest
from inference.predictions import BROKEN_OFF
from steprag.types import Turn
from steprag.web.replies import ApiError, as_json


def conversation_routes(service: ChatService) -> APIRouter:
    """`/api/conversations`."""
    router = APIRouter(prefix="/api/conversations")
    desk, store = service.desk, service.desk.chat.store

    @router.get("")
    async def listed() -> Response:
        rows: dict[str, dict[str, Any]] = {}
        for turn in [*store.turns(), *store.pending]:
            row = rows.setdefault(turn.conversation, {"id": turn.conversation, "title": turn.asked[:80], "turns": 0})
            row |= {"turns": row["turns"] + 1, "updated": turn.time}
        newest = sorted(rows.values(), key=lambda row: -row["updated"])
        return as_json({"conversations": newest[:1000]})

    @router.get("/{conversation}")
    async def one(conversation: str) -> Response:
        turns = [_row(turn) for turn in store.turns() if turn.conversation == conversation]
        turns += [_row(live.request) for live in desk.of(conversation)]
        if not turns:
            raise ApiError(404, "no_such_conversation", "there is no such conversation")
        return as_json({"id": conversation, "turns": sorted(turns, key=lambda row: row["time"])})

    @router.delete("/{conversation}", status_code=204)
    async def forget(conversation: str) -> Response:
        desk.forget(conversation)
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
            "feedback": feedback}  # fmt: skip
