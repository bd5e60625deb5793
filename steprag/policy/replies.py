"""What an endpoint's reply says: completions with the tags that their engine cut off, and the tokens used.

Only the text is needed. All else may be missing, or of another kind than OpenAI's own API sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steprag.engines.reasoning import split
from steprag.errors import ContentFiltered, quoted
from steprag.policy.tool_calls import mapping
from steprag.records.jsonl import as_utf8
from steprag.types import COUNTABLE, NANO, Completion, Sample, Usage

LONGEST = 1 << 20
"""Characters of a completion: a longer one is no answer to a request that bounds its tokens."""
STOP_REASONS = {"vllm": "stop_reason", "sglang": "matched_stop"}
"""Where engines name the stop string that ended a completion; null or a token's number where none did."""
CUT = re.compile(r"length|max_?(new_|output_)?tokens?|max_?len|limit|window|exceeded|repetition")
"""In a `finish_reason` (`_word`) where a limit cut the completion: OpenAI's word and those of others."""
FILTERED = re.compile(r"content_?filter|safety|recitation|blocklist|prohibited|spii|guardrail|sensitive|refusal|toxic")
"""In a `finish_reason` where the provider's filter took the reply."""
STOPPED = re.compile(r"stop|eos|end|unknown|complete|finish|done|none|null")
"""In a `finish_reason` of a completion that ended by itself or at a stop string."""
_END = (
    r"<[|｜][\w▁.-]{1,40}[|｜]>|\[\|endofturn\|\]|</?s>|<(?:seed:)?eos>|<EOS>|<end_of_turn>|<end_of_utterance>|<turn\|>|"
    r"\[EOS\]|\[/?INST\]|\[END FINAL RESPONSE\]"
)
END_OF_TURN = re.compile(rf"(?:{_END})\s{{0,9}}\Z")
"""A special token of a chat template at the end of a text, which the engine should have left out."""
NEXT_TURN = re.compile(
    rf"(?:{_END})\s{{0,9}}(?:<\|im_start\|>|<\|start_header_id\|>|<\|header_start\|>|<\|start_of_role\|>|"
    r"<start_of_turn>|<\|turn>|<\|start\|>|<seed:bos>|\[INST\])|"
    r"<\|im_start\|>\s?user|<\|start_header_id\|>\s?user|<start_of_turn>\s?user|<[|｜](?:hy_)?[Uu]ser[|｜]>|\n\[\|user\|\]"
)
"""Where a model that nothing stopped writes the user's next turn itself."""
_GAP = re.compile(r"\W+")
BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "network_error", "insufficient_system_resource"})
"""`finish_reason` where the provider failed; what it had written by then counts if it is whole."""


def sample_of(reply: object, stop: tuple[str, ...], begun: str, engine: str, *, thinks: bool = False) -> Sample:
    """The reply as a sample. Raises ValueError, which names the field, where it has no text to read; ContentFiltered
    where the provider's filter took all of it. Completions that it took of several are left out.

    `stop` holds the closing tags at which completions end, `begun` is the assistant's message that they write on.
    `thinks`: reasoning belongs to the completion; else it is split off.

    llama.cpp repeats the message that it wrote on; a completion is what is new. Of several completions it reports the
    tokens of the first alone.
    """
    body = _object(reply, "the reply")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ValueError(f"choices: expected a list with one or more, found {quoted(choices)} among {quoted([*body])}")
    read = [_completion(_object(one, "choices"), stop, begun, engine, thinks) for one in choices]
    completions = tuple(one for one in read if not FILTERED.search(one.finish))
    if not completions:
        raise ContentFiltered(f"the provider's filter took the reply (finish_reason {quoted(read[0].finish)})")
    used = body.get("usage") or choices[0].get("usage")
    return Sample(completions, usage_of(used, 1.0 if engine != "llamacpp" else _times_the_first(completions)))


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected an object, found {quoted(value)}")
    return value


def message_of(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its message; the delta of a chunk; of the old completions API the text."""
    for key in ("message", "delta"):
        if choice.get(key) is not None:
            return _object(choice[key], key)
    return {"content": choice.get("text")}


def text_of(content: object) -> str:
    """A message's content: a text, none, or the text among its parts. Raises ValueError."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Mapping):
        said = content.get("text", content.get("value"))
        return text_of(said) if content.get("type", "text") in ("text", "output_text") else ""
    if not isinstance(content, Sequence):
        raise ValueError(f"message.content: expected a text, found {quoted(content)}")
    return "".join(map(text_of, content))


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning that the endpoint has split off by itself: a field, or parts of the content."""
    told = (message.get(key) for key in ("reasoning_content", "reasoning", "thinking"))
    content = message.get("content")
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    thoughts = [part.get(str(part["type"])) for part in parts if part.get("type") in ("thinking", "reasoning")]
    return next((text for text in told if isinstance(text, str) and text), "") or text_of(thoughts)


def _completion(choice: Mapping[str, Any], stop: tuple[str, ...], begun: str, engine: str, thinks: bool) -> Completion:
    """The completion, cut at the first closing tag, or with the tag that its engine stopped at and cut off."""
    message, finish = message_of(choice), str(choice.get("finish_reason") or "unknown")
    text = as_utf8(text_of(message.get("content")) or text_of(message.get("refusal"))).removeprefix(begun)
    if len(text) > LONGEST:
        raise ValueError(f"message.content: {len(text):,} characters have no end")
    thought, text = ("", text) if thinks else split(text)
    text = without_end(text)
    reasoning, word = as_utf8(reasoning_of(message)[:LONGEST]) or thought, _word(finish)
    if FILTERED.search(word):
        return Completion(text, word, reasoning=reasoning)
    ends = [text.index(tag) + len(tag) for tag in stop if tag in text]
    if ends:
        return Completion(text[: min(ends)], "stop", reasoning=reasoning)
    if CUT.search(word):
        return Completion(text, "length", reasoning=reasoning)
    if word in BROKEN and not text.rstrip().endswith(">"):
        raise ValueError(f"finish_reason: {quoted(finish)}, with a text that breaks off")
    if stop and STOPPED.search(word):
        text = _closed(text, stop, choice, STOP_REASONS.get(engine))
    return Completion(text, finish, reasoning=reasoning)


def without_end(text: str) -> str:
    """The text without special tokens that end it, and without a turn of the user's behind them."""
    beyond = NEXT_TURN.search(text)
    end = beyond.start() if beyond else len(text)
    while token := END_OF_TURN.search(text, max(0, end - 64), end):
        end = token.start()
    return text[:end]


def _word(finish: str) -> str:
    """A `finish_reason` in small letters, its parts joined: "content_filter: SAFETY" is content_filter_safety."""
    return _GAP.sub("_", finish.lower())


def _closed(text: str, stop: tuple[str, ...], said: Mapping[str, Any], named: str | None) -> str:
    """The text with its closing tag, of which engines may leave a part. `named`: where the engine says the tag."""
    whole = text[: len(text) - max(_shared(text, tag) for tag in stop)]
    if named is not None and named in said:
        return whole + said[named] if said[named] in stop else text
    tag = _unclosed(whole, stop)
    return whole + tag if tag else text


def _shared(text: str, tag: str) -> int:
    """How many characters at the end of the text begin the tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)


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


def usage_of(told: object, times: float = 1.0) -> Usage:
    """What the reply says it used, its generated tokens `times` over; 0 of what it does not say. Raises ValueError.

    Anthropic's `input_tokens` leave out what its cache holds. xAI and Gemini count reasoning in the total alone, others
    in the details alone. OpenRouter says what it charged (`cost`, and what the provider bills to a key of the user's).
    """
    used = mapping(told)
    details = mapping(used.get("prompt_tokens_details") or used.get("input_tokens_details")) or used  # or beside
    read = _count(used, "cache_read_input_tokens")
    cached = _count(details, "cached_tokens") or _count(used, "prompt_cache_hit_tokens") or read
    prompt = _count(used, "prompt_tokens")
    if not prompt and (fresh := _count(used, "input_tokens")):
        prompt = fresh + read + _count(used, "cache_creation_input_tokens")
    written = _count(used, "completion_tokens") or _count(used, "output_tokens")
    extra = mapping(used.get("completion_tokens_details") or used.get("output_tokens_details"))
    if written < (thought := _count(extra, "reasoning_tokens")):
        written += thought
    total = _number(used.get("total_tokens")) or 0
    total = round(total) if 0 <= total <= COUNTABLE else 0
    if prompt and "cache_read_input_tokens" not in used:
        written = max(written, total - prompt)
    prompt = prompt or max(0, total - written)
    return Usage(1, prompt, round(times * written), min(cached, prompt), charged=_charged(used))


def _number(value: object) -> float | None:
    """A number, also one that is written as a text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value[:20])
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(used: Mapping[str, Any], key: str) -> int:
    """A number of tokens, 0 where there is none or nothing was counted (-1). Raises ValueError where no count can be
    that number.
    """
    value = _number(used.get(key))
    if value is None or value == -1:
        return 0
    if not 0 <= value <= COUNTABLE:
        raise ValueError(f"usage.{key}: {quoted(value)} is no count")
    return round(value)


def _charged(used: Mapping[str, Any]) -> int | None:
    """What the endpoint says that the call cost, in billionths of a dollar; None where it says nothing."""
    cost = used.get("cost")
    parts = [_number(cost.get("total_cost") if isinstance(cost, Mapping) else cost)]
    if used.get("is_byok"):
        parts.append(_number(mapping(used.get("cost_details")).get("upstream_inference_cost")))
    sums = [part for part in parts if part is not None and 0 <= part * NANO <= COUNTABLE]
    return round(sum(sums) * NANO) if sums else None
