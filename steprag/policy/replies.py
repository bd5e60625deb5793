"""What an endpoint's reply says: completions with the tags that their engine cut off, and the tokens used.

A streamed reply, once whole, equals the reply to the same request without streaming.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from pydantic import ValidationError

from steprag.errors import PolicyUnavailable
from steprag.policy.protocols import Listener, Policy, Streaming
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import as_utf8
from steprag.types import COUNTABLE, Completion, Message, Sample, Usage

LONGEST = 1 << 20
"""Characters of a completion: a longer one is no answer to a request that bounds its tokens."""
STOP_REASONS = {"vllm": "stop_reason", "sglang": "matched_stop"}
"""Where engines name the stop string that ended a completion; null or a token's number where none did."""


def sample_of(reply: object, stop: tuple[str, ...], begun: str, engine: str) -> Sample | None:
    """The reply as a sample; None if it is malformed: the package does not validate what endpoints send.

    None, too, if its usage is negative or beyond 2^53, or if a completion has more than `LONGEST` characters. `stop`
    holds the closing tags at which completions end, `begun` is the assistant's message that they write on.

    llama.cpp repeats the message that it wrote on; a completion is what is new. Of several completions it reports the
    tokens of the first alone.
    """
    try:
        checked = ChatCompletion.model_validate(reply)
    except ValidationError:
        return None
    if not checked.choices or not _is_sane(checked):
        return None
    completions = tuple(_completion(choice, stop, begun, engine) for choice in checked.choices)
    return Sample(completions, _usage(checked, 1.0 if engine != "llamacpp" else _times_the_first(completions)))


def _is_sane(reply: ChatCompletion) -> bool:
    """Whether its counts are in range and its texts at most `LONGEST` long; nothing else is checked."""
    counts = [reply.usage.prompt_tokens, reply.usage.completion_tokens] if reply.usage else []
    if reply.usage and reply.usage.prompt_tokens_details:
        counts.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
    texts = (choice.message.content or "" for choice in reply.choices)
    return all(0 <= count <= COUNTABLE for count in counts) and all(len(text) <= LONGEST for text in texts)


def _completion(choice: Choice, stop: tuple[str, ...], begun: str, engine: str) -> Completion:
    """The completion with the closing tag that its engine stopped at and cut off."""
    text, finish = as_utf8(choice.message.content or "").removeprefix(begun), choice.finish_reason or "unknown"
    if finish != "stop" or not stop:
        return Completion(text, finish)
    named, said = STOP_REASONS.get(engine), choice.model_extra or {}
    if named in said:
        cut_off = said[named] if said[named] in stop and not text.endswith(said[named]) else ""
    else:
        cut_off = _unclosed(text, stop)
    return Completion(text + cut_off, finish)


def _unclosed(text: str, stop: tuple[str, ...]) -> str:
    """The closing tag of the last one opened, where it is missing. Without a stop reason, a matched stop string and an
    early end look alike; the tag is added in both cases.
    """
    opened = {tag: text.rfind(tag.replace("/", "")) for tag in stop}
    last = max(stop, key=opened.__getitem__)
    return last if opened[last] >= 0 and last not in text[opened[last] :] else ""


def _times_the_first(completions: tuple[Completion, ...]) -> float:
    """How many times as long as the first all completions are together, in characters: an estimate of their tokens."""
    first = len(completions[0].text)
    return sum(len(one.text) for one in completions) / first if first else len(completions)


def _usage(reply: ChatCompletion, times: float) -> Usage:
    """What the reply says it used; its generated tokens `times` over."""
    if reply.usage is None:
        return Usage(calls=1)
    details = reply.usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    prompt = reply.usage.prompt_tokens
    return Usage(1, prompt, round(times * reply.usage.completion_tokens), min(cached, prompt))


def served_models(text: str, url: str) -> dict[str, dict[str, str]]:
    """The names in a list of models, and where their weights lie. Raises PolicyUnavailable where it is no such list."""
    try:
        return {
            str(model["id"]): {key: str(model[key]) for key in ("root", "parent") if model.get(key)}
            for model in decoded(text)["data"]
        }
    except (NotJson, TypeError, KeyError, AttributeError):
        raise PolicyUnavailable(
            f"{url} answers, but not as an OpenAI-compatible endpoint, whose URL usually ends in /v1"
        ) from None


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
