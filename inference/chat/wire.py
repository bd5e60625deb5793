"""What comes in over HTTP, checked, and how errors and event streams go out."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Response
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from steprag.web.guard import error_body

COMMENT = b": \n\n"
"""A message that says nothing: it shows that the stream lives."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SessionBody(_Body):
    """`POST /api/session`."""

    token: str


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


class ApiError(Exception):
    """A refusal in the shape of the OpenAI API. `code` is for programs, the message for people."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.after = status, code, param, after

    def reply(self) -> Response:
        """The response; with `Retry-After` where `after` says when to come again."""
        kind = (
            "invalid_request_error" if self.status < 429 else "rate_limit_error" if self.status == 429 else "api_error"
        )
        headers = {} if self.after is None else {"Retry-After": str(self.after)}
        return as_json(error_body(str(self), kind, self.code, self.param), self.status, headers)


def new_id(kind: str) -> str:
    """A name that nobody can guess: `kind` and 16 hex digits."""
    return f"{kind}{secrets.token_hex(8)}"


def as_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response. Half a surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, headers, media_type="application/json")


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
