"""A chat as the model's tokens: what training learns, what decides whether a row is too long, where engines stop."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.reasoning import left_open, split
from steprag.engines.templates import KWARGS, NotEncoded, applied, rendered
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, write_json
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ASKED, _SAID = "What is asked?", "steprag-said-this"
"""The texts of a chat that is rendered to see where a reply begins and ends; the second stands there once."""
_USER = (Message(role="user", content=_ASKED),)
_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
"""Normalisers of a tokenizer that write other characters than they were given, such as é of one for é of two."""
_EMPTY_THOUGHT = re.compile(r"<(?=[\w:|]*?think)([\w:|]++)>\s*+</\1>\s*+")
"""What templates of thinking models write into turns that were not thought about: history, and no part of a reply."""


@dataclass(frozen=True)
class ReplyFrame:
    """What stands around a reply's own ids. `stops`: the tokens at which inference stops.

    `opening`: what stands between the prompt and the text and is no part of it: control tokens, which engines leave out
    (gpt-oss's channel), or the end of a thought that the prompt has opened, which `steprag.engines.reasoning` splits
    off. `closing`: control tokens behind the text; the last one ends the turn. `thought`: the mark with which the
    prompt opens a thought; "" where it opens none.
    """

    opening: tuple[int, ...]
    closing: tuple[int, ...]
    stops: frozenset[int]
    thought: str = ""


def write_stops(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the base's generation_config.json, with the token that ends a turn where it lacks that: engines that read
    the folder stop where training does. Where the base has none, the ends of its config.json, which trainers change.
    """
    source, told = Path(tokenizer.name_or_path) / "generation_config.json", _told_ends(tokenizer)
    settings = read_json(source) if source.is_file() else {"eos_token_id": told}
    end = frame_of(_USER, tokenizer).closing[-1]
    if end not in told:
        settings |= {"eos_token_id": [end, *told]}
    write_json(folder / "generation_config.json", settings)


def prompt_tokens(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, **kwargs: Any) -> list[int]:
    """The ids of a prompt, up to where the assistant writes: a turn of its own, or on in its last message.

    `kwargs`: values for the template beside those of every chat. Raises NotEncoded where the template
    refuses the chat, or changes a message that the reply continues.
    """
    if messages[-1]["role"] == "assistant":
        prompt_text(messages, tokenizer, **kwargs)
    return applied(tokenizer, messages, return_dict=True, **writes_on(messages), **kwargs)["input_ids"]


def prompt_text(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, **kwargs: Any) -> str:
    """A prompt as text, which engines encode; raises as `prompt_tokens`."""
    text = str(applied(tokenizer, messages, tokenize=False, **writes_on(messages), **kwargs))
    last = messages[-1]
    if last["role"] == "assistant" and not text.rstrip().endswith(last["content"].rstrip()):
        raise NotEncoded("the chat template changes an assistant's message that is continued; use another template")
    return text


def writes_on(messages: Sequence[Message]) -> dict[str, bool]:
    """The chat template's options for a prompt. An assistant's last message is continued, as vLLM and SGLang do when
    asked to (`steprag.policy.client`) and llama.cpp does unasked; any other begins the assistant's turn.
    """
    if messages[-1]["role"] == "assistant":
        return {"continue_final_message": True, "add_generation_prompt": False}
    return {"add_generation_prompt": True}


def reply_tokens(messages: Sequence[Message], reply: Message, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the assistant writes after the prompt `messages`, up to the token that ends the turn.

    The text is encoded by itself, whatever the template does to earlier turns: engines sample after the prompt's ids,
    so no token reaches across. Raises NotEncoded and ConfigError as `frame_of`.
    """
    frame = frame_of(messages, tokenizer)
    opening, text = _said(messages, reply, frame)
    return [*opening, *_written_ids(tokenizer, text), *frame.closing]


def _said(messages: Sequence[Message], reply: Message, frame: ReplyFrame) -> tuple[tuple[int, ...], str]:
    """What comes before a reply's text, and the text: a reply with a thought of its own goes on in the one that the
    prompt has opened.
    """
    text = reply["content"]
    if messages[-1]["role"] == "assistant":
        return (), text
    if frame.thought and split(text)[0]:
        return (), text.lstrip().removeprefix(frame.thought).lstrip()
    return frame.opening, text


def _written_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text as it was sampled: no normaliser of the tokenizer puts other characters in."""
    forms, core = _as_written(tokenizer)
    if all(unicodedata.is_normalized(form, text) for form in forms):
        return _ids(tokenizer, text)
    return core.encode(text, add_special_tokens=False).ids


@lru_cache(maxsize=4)
def _as_written(tokenizer: Any) -> tuple[list[Any], Any]:
    """The Unicode forms that a tokenizer brings texts into, and its core without them; none of slow tokenizers."""
    from tokenizers import Tokenizer

    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or core.normalizer is None:
        return [], core
    first = json.loads(core.normalizer.__getstate__())
    steps = first.get("normalizers", [first])
    forms = [step["type"] for step in steps if step["type"] in _UNICODE_FORMS]
    if not forms:
        return [], core
    left = {"type": "Sequence", "normalizers": [step for step in steps if step["type"] not in _UNICODE_FORMS]}
    told = json.loads(core.to_str()) | {"normalizer": left, "truncation": None, "padding": None}
    return forms, Tokenizer.from_str(json.dumps(told))


def check_reply(
    messages: Sequence[Message], reply: Message, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raises NotEncoded where inference would not read `reply` from the `ids` of `reply_tokens`: it stops at the first
    token that ends a turn, and decodes what came before. Only blanks may differ, which some tokenizers do not keep.
    """
    frame = frame_of(messages, tokenizer)
    body = list(ids[: len(ids) - len(frame.closing)])
    if tuple(ids[len(body) :]) != frame.closing:
        last, wanted = tokenizer.convert_ids_to_tokens([ids[-1], frame.closing[-1]])
        raise NotEncoded(f"ends with {last!r}, and inference ends a turn with {wanted!r}")
    if early := frame.stops.intersection(body):
        raise NotEncoded(f"holds {_names(tokenizer, [*early])} within its text, where inference would stop")
    opening, text = _said(messages, reply, frame)
    body = body[len(opening) :]
    decoded = "".join(str(tokenizer.decode(body, clean_up_tokenization_spaces=False)).split())
    said, unknown = "".join(text.split()), tokenizer.unk_token_id in body
    if unknown or decoded != said:
        rest = iter(said)
        lost = unknown or all(character in rest for character in decoded)
        why = "has no tokens for some of its characters" if lost else "writes other characters than it was given"
        raise NotEncoded(f"is not what was sampled: the tokenizer {why}")


def frame_of(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, told: Sequence[int] | None = None
) -> ReplyFrame:
    """How the assistant's turn after `messages` begins and ends, as the template renders it.

    It ends with the first of `told` that follows a reply, at its end or where the user asks again (GLM-4's <|user|>);
    `told` is by default `eos_token_id` of the tokenizer's folder. Where none follows, as in Qwen2.5's base, it ends
    with the template's own token. Raises ConfigError where there is no such token, NotEncoded as `prompt_tokens`.
    """
    roles = tuple(message["role"] for message in messages)
    roles = roles[: len(roles) - (roles[-1] == "assistant")] or ("user",)
    ends: Any = tuple(_told_ends(tokenizer) if told is None else told) or (tokenizer.eos_token_id,)
    return _frame(tokenizer, f"{tokenizer.chat_template} {getattr(tokenizer, KWARGS, None)}", roles, ends)


def opened_thought(tokenizer: PreTrainedTokenizerBase) -> str:
    """The mark with which the template opens a thought in every prompt; "" where it opens none."""
    return frame_of(_USER, tokenizer).thought


def turn_stops(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens at which inference stops after a user's message."""
    return frame_of(_USER, tokenizer).stops


@lru_cache(maxsize=32)
def _frame(tokenizer: Any, _template: str, roles: tuple[str, ...], ends: tuple[int, ...]) -> ReplyFrame:
    asked = [Message(role=role, content=_ASKED) for role in roles]
    said = Message(role="assistant", content=_SAID)
    before, shown, after = _text(tokenizer, [*asked, said]).rpartition(_SAID)
    if not shown:
        raise ConfigError(f"the chat template of {tokenizer.name_or_path} does not show what the assistant says")
    added = tokenizer.added_tokens_decoder.keys() | set(tokenizer.all_special_ids)
    closing = _until(ends, _ids(tokenizer, after))
    if not closing:
        between = _text(tokenizer, [*asked, said, *_USER]).rpartition(_SAID)[2].partition(_ASKED)[0]
        closing = _until(ends, _ids(tokenizer, between)) or _until(added, _ids(tokenizer, after))
    closing = [token for token in closing if token in added]
    if not closing:
        raise ConfigError(
            f"the chat template of {tokenizer.name_or_path} ends no turn with a token such as "
            f"{_names(tokenizer, ends)}: take a model whose template does, or name its end as eos_token_id in "
            "generation_config.json"
        )
    stops = {*ends, closing[-1], tokenizer.eos_token_id} - {None}
    prompt = prompt_text(asked, tokenizer)
    written = before[len(prompt) :] if before.startswith(prompt) else ""
    thought, closes = _opened(tokenizer, prompt.rpartition(_ASKED)[2])
    opening = _thought_closed(tokenizer, prompt, written, closes) if closes else _opening(tokenizer, written)
    return ReplyFrame(opening, tuple(closing), frozenset(stops), thought)


def _opened(tokenizer: Any, end: str) -> tuple[str, str]:
    """The marks of the thought that the end of a prompt opens; empty where it opens none. A mark that control tokens
    follow is the user's word: some templates ask for thoughts there.
    """
    thought, closes = left_open(end) or ("", "")
    if thought and _control(tokenizer).intersection(_ids(tokenizer, end.rpartition(thought)[2])):
        return "", ""
    return thought, closes


def _control(tokenizer: Any) -> set[int]:
    """The tokens that engines do not show."""
    return {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _thought_closed(tokenizer: Any, prompt: str, written: str, closes: str) -> tuple[int, ...]:
    """The ids that close a thought which the prompt has opened: as the template does it in a turn that was not thought
    about, or else on a line of their own where the thought has its own lines.
    """
    if not written.strip().startswith(closes):
        written = f"\n{closes}\n\n" if prompt.endswith("\n") else closes
    return tuple(_ids(tokenizer, written))


def _opening(tokenizer: Any, written: str) -> tuple[int, ...]:
    """The ids between a prompt and a reply's text where they have control tokens, which an engine does not show."""
    ids = _ids(tokenizer, _EMPTY_THOUGHT.sub("", written))
    return tuple(ids) if _control(tokenizer).intersection(ids) else ()


@lru_cache(maxsize=8)
def _told_ends(tokenizer: Any) -> list[int]:
    """`eos_token_id` of generation_config.json, or else of config.json, beside the tokenizer; none without a folder."""
    for path in (Path(tokenizer.name_or_path or "-") / name for name in ("generation_config.json", "config.json")):
        told = read_json(path).get("eos_token_id") if path.is_file() else None
        if found := [one for one in (told if isinstance(told, list) else [told]) if isinstance(one, int) and one >= 0]:
            return found
    return []


def _until(ends: Collection[int], ids: list[int]) -> list[int]:
    """The ids up to the first of `ends`; none where there is none."""
    place = next((place for place, token in enumerate(ids) if token in ends), -1)
    return ids[: place + 1]


def _names(tokenizer: Any, ids: Sequence[int]) -> str:
    return ", ".join(map(str, tokenizer.convert_ids_to_tokens([token for token in ids if token is not None])))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _text(tokenizer: Any, messages: Sequence[Message]) -> str:
    return str(rendered(tokenizer, messages, tokenize=False))
