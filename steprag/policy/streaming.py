"""A reply heard while it is written. The whole is the reply that the same request brings without streaming."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steprag.files import as_utf8
from steprag.policy.protocols import Listener, Policy, Streaming
from steprag.policy.replies import LONGEST
from steprag.types import Message, Sample


@dataclass(frozen=True)
class HeardPolicy:
    """A policy that tells a listener what it writes, where it can; else its completions come in one piece."""

    policy: Policy
    listener: Listener

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As `Policy.sample`. Of several completions none is heard: they are written at once."""
        if n == 1 and isinstance(self.policy, Streaming):
            return await self.policy.stream(messages, allowed, seed=seed, listener=self.listener)
        return await self.policy.sample(messages, allowed, n=n, seed=seed)


async def whole_reply(chunks: AsyncIterator[object], begun: str, listener: Listener) -> dict[str, Any]:
    """The chunks of a streamed chat completion as one reply; its text is told to `listener` as it comes.

    `begun`: the assistant's message that the completion writes on. An echo of `begun` is not passed to the
    listener. Raises ValueError where a chunk is none, or where the text is longer than a completion can be.
    """
    heard = _Heard(begun, listener)
    choice: dict[str, Any] = {}
    usage: Any = None
    async for chunk in chunks:
        if not isinstance(chunk, Mapping):
            raise ValueError("a chunk is no object")
        usage = chunk.get("usage") or usage
        if piece := _first_choice(chunk):
            delta = piece.pop("delta", None)
            choice |= {key: value for key, value in piece.items() if value is not None}
            heard.add(delta.get("content") if isinstance(delta, Mapping) else None)
    message = {"role": "assistant", "content": "".join(heard.pieces)}
    choices = [{"index": 0, "finish_reason": None, **choice, "message": message, "logprobs": None}]
    head = {"id": "streamed", "object": "chat.completion", "created": 0, "model": ""}
    return {**head, "choices": choices if choice else [], **({"usage": usage} if usage else {})}


def _first_choice(chunk: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = chunk.get("choices")
    if not choices:  # the last chunk holds the usage alone
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
        raise ValueError("a chunk without choices")
    return dict(choices[0])


@dataclass
class _Heard:
    """The text so far; what stands behind `begun` is told."""

    begun: str
    listener: Listener
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    held: str = ""

    def add(self, piece: object) -> None:
        if not isinstance(piece, str) or not piece:
            return
        self.length += len(piece)
        if self.length > LONGEST:
            raise ValueError("the text has no end")
        self.pieces.append(piece)
        if self.begun:
            self.held += piece
            if self.begun.startswith(self.held):
                return
            piece, self.begun, self.held = self.held.removeprefix(self.begun), "", ""
        if piece:
            self.listener(as_utf8(piece))
