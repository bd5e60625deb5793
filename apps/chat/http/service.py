"""Parts that the routes share: the service, request bodies, and event streams."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from apps.chat.config import ChatServiceConfig
from apps.chat.routing import mode_named
from apps.chat.turns.desk import Desk, Full
from apps.chat.turns.events import LiveTurn
from apps.chat.turns.store import TurnRequest
from steprag.errors import quoted
from steprag.records.turns import Turn
from steprag.web.app import ApiError
from steprag.web.guard import Access

COMMENT = b": \n\n"
"""A message that says nothing: it shows that the stream lives."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Source = Literal["files", "index", "both"]
"""`apps.chat.turns.files.SOURCES`."""
STEP_CHARS = 8192
"""Characters of a step that a person writes."""


@dataclass(frozen=True)
class ChatService:
    """A service's parts. `model`, `index`: what answers, in words. `mode`: the one that counts where none is asked
    for. `examples`: questions that the page offers. `about`: a line on what the model is and knows.
    """

    desk: Desk
    access: Access
    limits: ChatServiceConfig
    model: str
    index: str
    mode: str
    version: str
    examples: tuple[str, ...] = ()
    about: str = ""

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the modes there are."""
        return tuple(self.desk.chat.modes)

    async def take(self, request: TurnRequest) -> LiveTurn:
        """Accepts a turn. Raises ApiError: 422 for a mode or length that is not allowed, 429 where too many wait."""
        mode = mode_named(request.mode, self.modes)
        if mode is None:
            known = ", ".join(self.modes)
            raise ApiError(422, "no_such_mode", f"mode {quoted(request.mode)} is not one of {known}", param="mode")
        if len(request.asked) > (most := self.limits.question_chars):
            told = f"a question of {len(request.asked)} characters; at most {most} (serve.question_chars)"
            raise ApiError(422, "too_long", told)
        try:
            return await self.desk.accept(replace(request, mode=mode))
        except Full:
            raise ApiError(429, "busy", "too many questions wait already", after=2) from None

    def ended(self, turn_id: str) -> Turn:
        """A turn that ended. Raises ApiError: 409 while it is played, 404 where there is none."""
        turn = self.desk.chat.store.get(turn_id)
        if turn is not None:
            return turn
        if self.desk.live(turn_id):
            raise ApiError(409, "not_ended", "the turn is not over")
        raise ApiError(404, "no_such_turn", "there is no such turn")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TurnBody(_Body):
    """`POST /api/turns`."""

    question: Words
    conversation: Name | None = None
    mode: str | None = None
    rewrite: bool = True
    source: Source | None = None


class QueryBody(_Body):
    """`POST /generate`."""

    query: Words
    mode: str | None = None
    conversation: Name | None = None
    source: Source | None = None


class ForkBody(_Body):
    """`POST /api/turns/T/fork`: step `step` of the turn becomes `text`, and the agent continues from there. `action`:
    what words without a tag are to be.
    """

    step: Annotated[int, Field(ge=0, le=1000)]
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=STEP_CHARS)]
    action: Name | None = None


class NameBody(_Body):
    """`PATCH /api/conversations/C`: its name; an empty one is its first question again."""

    title: Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


class FeedbackBody(_Body):
    """`POST /api/turns/T/feedback`."""

    right: bool
    answer: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] | None = None


def new_id(kind: str) -> str:
    """A name that nobody can guess: `kind` and 16 hex digits."""
    return f"{kind}{secrets.token_hex(8)}"


def sse(data: str, id: str | None = None) -> bytes:
    """A message of an event stream."""
    return format_sse_event(data_str=data, id=id)


def dumped(value: Any) -> str:
    """A value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


def stream_of(messages: AsyncIterator[bytes]) -> StreamingResponse:
    """An event stream."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(messages, media_type="text/event-stream", headers=headers)
