"""What comes in over HTTP, checked, and how errors and event streams go out."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

COMMENT = b": \n\n"
"""A message that says nothing: it shows that the stream lives."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TurnBody(_Body):
    """`POST /api/turns`."""

    question: Words
    conversation: Name | None = None
    mode: str | None = None
    rewrite: bool = True


class ForkBody(_Body):
    """`POST /api/turns/T/fork`: step `step` of the turn is to be `text`, and the agent goes on from there."""

    step: Annotated[int, Field(ge=0, le=1000)]
    text: Words


class FeedbackBody(_Body):
    """`POST /api/turns/T/feedback`."""

    right: bool
    answer: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] | None = None


class TextPart(BaseModel):
    """A part of an OpenAI message; only texts are taken."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """An OpenAI message; fields that the agent has no use for are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """The message's words."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    """`stream_options` of a chat completion."""

    include_usage: bool = False


class CompletionBody(BaseModel):
    """`POST /v1/chat/completions`: what counts, and what is refused; other fields are ignored."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=200)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None


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
