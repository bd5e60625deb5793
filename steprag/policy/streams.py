"""Replies that come in pieces: server-sent events, put together to what the same request gives without streaming.

Endpoints may also answer with events where none were asked for, or with the whole reply where a stream was.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steprag.engines.reasoning import brief, goes_on, split
from steprag.errors import quoted
from steprag.policy.protocols import Listener, Policy, Streaming
from steprag.policy.refusals import page_words
from steprag.policy.replies import LONGEST, message_of, reasoning_of, text_of, without_end
from steprag.policy.tool_calls import ToolCalls, calls_of, mapping
from steprag.records.jsonl import as_utf8
from steprag.types import Message, Sample

_FIELDS = (b"data:", b":", b"event:", b"id:", b"retry:")
"""How the lines of server-sent events begin; one with a colon alone keeps the connection open."""
ALIVE = re.compile(
    r"\W*+(?:ping|pong|null|none|true|ok|keep.?alive|heart.?beat|open|connected|start\w*+|\d*+)\W*+", re.IGNORECASE
)
"""Data that only keeps a connection open."""
_ONE_VALUE = re.compile(rb"\{.*\}|\[DONE\]|\w*")


@dataclass(frozen=True)
class HeardPolicy:
    """A policy that streams to a listener, where it can; else its completions come in one piece."""

    policy: Policy
    listener: Listener

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As `Policy.sample`. Several completions of one request are not streamed."""
        if n == 1 and isinstance(self.policy, Streaming):
            return await self.policy.stream(messages, allowed, seed=seed, listener=self.listener)
        return await self.policy.sample(messages, allowed, n=n, seed=seed)


def reply_in(body: bytes) -> object:
    """The JSON reply, whatever its content type says: a byte order mark may precede it, and events may make it up.

    Raises ValueError or RecursionError where it is neither.
    """
    chunks, events = ChunkedReply(), Events()
    values = [*events.feed(body.removeprefix(b"\xef\xbb\xbf")), *events.end()]
    if len(values) == 1 and not events.told:
        return _unwrapped(values[0])
    for value in values:
        chunks.add(value)
    return chunks.reply()


async def whole_reply(parts: AsyncIterator[bytes], begun: str, listener: Listener, *, thinks: bool = False) -> object:
    """The body of a streamed chat completion as one reply; its text goes to `listener` as it comes.

    `begun`: the assistant's message that the completion writes on. Neither an echo of it nor reasoning goes there
    (`thinks`: reasoning is). Raises ValueError where an event is no chunk, where the text is longer than a completion
    can be, or where the reply has no end.
    """
    chunks, events = ChunkedReply(_Heard(begun, listener, thinks)), Events()
    async for part in parts:
        for event in events.feed(part):
            chunks.add(event)
    for event in events.end():
        chunks.add(event)
    return chunks.reply()


def _unwrapped(reply: object) -> object:
    """The reply that a gateway put into an envelope, such as {"code": 0, "data": {"choices": []}}; another as it is."""
    if not isinstance(reply, Mapping) or "choices" in reply or reply.get("error"):
        return reply
    inner = next((one for one in reply.values() if isinstance(one, Mapping) and one.get("choices")), None)
    return {"usage": reply.get("usage"), **inner} if inner else reply


def _told(usage: object) -> dict[str, Any]:
    """The counts that a usage reports; those of another kind, or 0, report nothing."""
    return {key: value for key, value in mapping(usage).items() if value}


def _json(text: bytes) -> object:
    """The text's value. Raises ValueError, which quotes a page that stands in its place, or RecursionError."""
    try:
        return json.loads(text)
    except ValueError as error:
        if page := page_words(text):
            raise ValueError(f"{error}; it is a page: {quoted(page)}") from None
        raise


class Events:
    """Server-sent events as their bytes come in; without any, the lines are one whole reply, or a chunk each. `told`:
    there was an event.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._plain: list[bytes] = []
        self._name, self._done = b"", False
        self.told, self._cut = False, False

    def feed(self, part: bytes) -> list[object]:
        """The values of the events that end in `part`. Raises ValueError where one is broken JSON."""
        if part:  # a line's end may come in two parts
            part, self._cut = part.removeprefix(b"\n") if self._cut else part, part.endswith(b"\r")
        part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in part:
            self._line.append(part)
            return []
        *lines, rest = b"".join((*self._line, part)).split(b"\n")
        self._line = [rest]
        return [value for line in lines for value in self._of(line)]

    def end(self) -> list[object]:
        """What is left once all bytes have come."""
        left = [*self._of(b"".join(self._line)), *self._of(b"")]
        lines = [line for line in self._plain if line.strip()]
        if self.told or not lines:
            return left
        if len(lines) > 1 and all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
            return [*left, *map(json.loads, lines)]
        return [*left, _json(b"\n".join(lines).removeprefix(b"\xef\xbb\xbf"))]

    def _of(self, line: bytes) -> list[object]:
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:"))
        elif line.startswith(b"event:"):
            self._name = line.removeprefix(b"event:").strip()
        elif line and not line.startswith(_FIELDS):
            self._plain.append(line)
        if line:
            return []
        data, name = self._data, self._name
        self._data, self._name, self.told = [], b"", self.told or bool(data)
        values = self._values(data)
        if name != b"error":
            return values
        return [value if isinstance(value, Mapping) and "error" in value else {"error": value} for value in values]

    def _values(self, data: list[bytes]) -> list[object]:
        """The value of an event's lines, or of each where no empty line parts the events."""
        whole = b"\n".join(data).strip()
        if len(data) > 1 and all(_ONE_VALUE.fullmatch(line.strip()) for line in data):
            return [value for line in data for value in self._values([line])]
        self._done = self._done or whole.startswith(b"[DONE]")
        text = whole.decode(errors="replace")
        if self._done or not text:
            return []
        if text[0] in "{[":
            return [json.loads(whole)]
        return [] if ALIVE.fullmatch(text) else [text]


class ChunkedReply:
    """The chunks of a chat completion, put together."""

    def __init__(self, heard: _Heard | None = None) -> None:
        self._heard, self._head = heard, dict[str, Any]()
        self._choices: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, tuple[list[str], list[str]]] = {}
        self._whole: dict[int, Mapping[str, Any]] = {}
        self._calls: dict[int, ToolCalls] = {}
        self._length, self._odd = 0, ""

    def add(self, chunk: object) -> None:
        """Adds a chunk, which may also be a whole reply; a text counts where the reply has no end. Raises ValueError
        where it is none.
        """
        if isinstance(chunk, str):
            self._odd = chunk
            return
        chunk = _unwrapped(chunk)
        if not isinstance(chunk, Mapping):
            raise ValueError("a chunk is no object")
        usage = {**_told(self._head.get("usage")), **_told(chunk.get("usage"))}  # the prompt's may come first
        self._head |= {key: value for key, value in chunk.items() if key != "choices" and value}
        if usage:
            self._head["usage"] = usage
        choices = chunk.get("choices") or ()  # the last chunk holds the usage alone
        if not isinstance(choices, list | tuple) or not all(isinstance(choice, Mapping) for choice in choices):
            raise ValueError("a chunk without choices")
        for place, choice in enumerate(choices):
            index = choice.get("index")
            self._add(index if isinstance(index, int) else place, choice)

    def _add(self, index: int, choice: Mapping[str, Any]) -> None:
        pieces = isinstance(choice.get("delta"), Mapping)  # some endpoints repeat all that came as `message`
        message = message_of({"delta": choice["delta"]} if pieces else choice)
        if pieces and choice.get("message"):
            self._whole[index] = message_of(choice)
        text, reasoning = text_of(message.get("content")) or text_of(message.get("refusal")), reasoning_of(message)
        self._length += len(text) + len(reasoning)
        if self._length > 2 * LONGEST:
            raise ValueError("the text has no end")
        known = self._choices.setdefault(index, {})
        facts = {
            key: value for key, value in choice.items() if key not in ("message", "delta", "text", "finish_reason")
        }
        known |= {key: value for key, value in facts.items() if value is not None or key not in known}
        if finish := choice.get("finish_reason"):
            known["finish_reason"] = finish
        texts, thoughts = self._texts.setdefault(index, ([], []))
        texts.append(text)
        thoughts.append(reasoning)
        self._length += self._calls.setdefault(index, ToolCalls()).add(calls_of(message))
        if self._heard and text and index == next(iter(self._choices)):
            self._heard.add(text)

    def reply(self) -> dict[str, Any]:
        """The reply; a choice without a finish_reason ended with the stream. Raises ValueError where it broke off."""
        endless = any("finish_reason" not in one for one in self._choices.values())
        if self._odd and (endless or not self._choices) and "error" not in self._head:
            raise ValueError(f"it stops without a finish_reason, and says {quoted(self._odd)}")
        choices = []
        for (index, choice), (texts, thoughts) in zip(self._choices.items(), self._texts.values(), strict=True):
            message: dict[str, Any] = {"content": "".join(texts), "reasoning_content": "".join(thoughts)}
            if index in self._calls and (calls := self._calls[index].calls):
                message["tool_calls"] = calls
            whole = message if any(message.values()) else self._whole.get(index, message)
            choices.append({"finish_reason": "unknown", **choice, "message": whole})
        return {**self._head, "choices": choices}


@dataclass
class _Heard:
    """Tells the listener what stands behind `begun`, and behind the reasoning."""

    begun: str
    listener: Listener
    thinks: bool
    held: str | None = field(default="")
    """What has come, until it is clear which part goes to the listener; None from then on."""

    def add(self, piece: str) -> None:
        if self.held is not None:
            self.held += piece
            fresh = self.held.removeprefix(self.begun)
            if self.begun.startswith(self.held):
                return
            if not self.thinks and goes_on(fresh):
                self.begun, self.held = "", brief(fresh)  # reasoning that comes in a million pieces is read once
                return
            piece, self.held = fresh if self.thinks else split(fresh)[1], None
        if piece := without_end(piece):
            self.listener(as_utf8(piece))
