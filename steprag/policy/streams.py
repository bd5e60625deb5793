"""Replies that come in pieces: server-sent events, put together to what the same request gives without streaming.

Endpoints may also answer with events where none were asked for, or with the whole reply where a stream was.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steprag.engines.reasoning import goes_on, split
from steprag.policy.protocols import Listener, Policy, Streaming
from steprag.policy.replies import LONGEST, message_of, reasoning_of, text_of
from steprag.records.jsonl import as_utf8
from steprag.types import Message, Sample

_FIELDS = (b"data:", b":", b"event:", b"id:", b"retry:")
"""How the lines of server-sent events begin; one with a colon alone keeps the connection open."""


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
    body = body.removeprefix(b"\xef\xbb\xbf")
    if not body.lstrip().startswith(_FIELDS):
        return json.loads(body)
    chunks, events = ChunkedReply(), Events()
    for event in (*events.feed(body), *events.end()):
        chunks.add(event)
    return chunks.reply()


async def whole_reply(parts: AsyncIterator[bytes], begun: str, listener: Listener, *, thinks: bool = False) -> object:
    """The body of a streamed chat completion as one reply; its text is told to `listener` as it comes.

    `begun`: the assistant's message that the completion writes on. Neither an echo of it nor reasoning is told
    (`thinks`: reasoning is). Raises ValueError where an event is no chunk, where the text is longer than a completion
    can be, or where the reply has no end.
    """
    heard = _Heard(begun, listener, thinks)
    chunks, events = ChunkedReply(heard), Events()
    async for part in parts:
        for event in events.feed(part):
            chunks.add(event)
    for event in events.end():
        chunks.add(event)
    return chunks.reply()


class Events:
    """Server-sent events as their bytes come in; lines that belong to none are one whole reply."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._plain: list[bytes] = []
        self._done = False

    def feed(self, part: bytes) -> list[object]:
        """The values of the events that end in `part`. Raises ValueError where one is no JSON."""
        if b"\n" not in part:
            self._line.append(part)
            return []
        *lines, rest = b"".join((*self._line, part)).split(b"\n")
        self._line = [rest]
        return [value for line in lines for value in self._of(line.rstrip(b"\r"))]

    def end(self) -> list[object]:
        """What is left once all bytes have come."""
        left = [*self._of(b"".join(self._line).rstrip(b"\r")), *self._of(b"")]
        plain = b"\n".join(self._plain).removeprefix(b"\xef\xbb\xbf").strip()
        return [*left, json.loads(plain)] if plain else left

    def _of(self, line: bytes) -> list[object]:
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:"))
        elif line and not line.startswith(_FIELDS):
            self._plain.append(line)
        if line or not self._data:
            return []
        data, self._data = b"\n".join(self._data).strip(), []
        self._done = self._done or data.startswith(b"[DONE]")
        return [] if self._done or not data else [json.loads(data)]


class ChunkedReply:
    """The chunks of a chat completion, put together."""

    def __init__(self, heard: _Heard | None = None) -> None:
        self._heard, self._head = heard, dict[str, Any]()
        self._choices: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, tuple[list[str], list[str]]] = {}
        self._length = 0

    def add(self, chunk: object) -> None:
        """Adds a chunk, which may also be a whole reply. Raises ValueError where it is none."""
        if not isinstance(chunk, Mapping):
            raise ValueError("a chunk is no object")
        self._head |= {key: value for key, value in chunk.items() if key != "choices" and value}
        choices = chunk.get("choices") or ()  # the last chunk holds the usage alone
        if not isinstance(choices, list | tuple) or not all(isinstance(choice, Mapping) for choice in choices):
            raise ValueError("a chunk without choices")
        for place, choice in enumerate(choices):
            index = choice.get("index")
            self._add(index if isinstance(index, int) else place, choice)

    def _add(self, index: int, choice: Mapping[str, Any]) -> None:
        message = message_of(choice)
        text, reasoning = text_of(message.get("content")) or text_of(message.get("refusal")), reasoning_of(message)
        self._length += len(text) + len(reasoning)
        if self._length > 2 * LONGEST:
            raise ValueError("the text has no end")
        known = self._choices.setdefault(index, {})
        facts = {
            key: value for key, value in choice.items() if key not in ("message", "delta", "text", "finish_reason")
        }
        known |= {key: value for key, value in facts.items() if value is not None or key not in known}
        if finish := choice.get("finish_reason") or ("unknown" if choice.get("delta") is None else None):
            known["finish_reason"] = finish
        texts, thoughts = self._texts.setdefault(index, ([], []))
        texts.append(text)
        thoughts.append(reasoning)
        if self._heard and text and index == next(iter(self._choices)):
            self._heard.add(text)

    def reply(self) -> dict[str, Any]:
        """The reply. Raises ValueError where a choice has no end."""
        if "error" not in self._head and any("finish_reason" not in one for one in self._choices.values()):
            raise ValueError("it stops without a finish_reason")
        choices = [
            {**choice, "message": {"content": "".join(texts), "reasoning_content": "".join(thoughts)}}
            for choice, (texts, thoughts) in zip(self._choices.values(), self._texts.values(), strict=True)
        ]
        return {**self._head, "choices": choices}


@dataclass
class _Heard:
    """Tells the listener what stands behind `begun`, and behind the reasoning."""

    begun: str
    listener: Listener
    thinks: bool
    held: str | None = field(default="")
    """What has come, until it is clear what of it is told; None from then on."""

    def add(self, piece: str) -> None:
        if self.held is not None:
            self.held += piece
            fresh = self.held.removeprefix(self.begun)
            if self.begun.startswith(self.held) or (not self.thinks and goes_on(fresh)):
                return
            piece, self.held = fresh if self.thinks else split(fresh)[1], None
        if piece:
            self.listener(as_utf8(piece))
