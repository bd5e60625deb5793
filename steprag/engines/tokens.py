"""A chat as the model's tokens: what training learns, what decides whether a row is too long, where engines stop."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.models import ModelFiles
from steprag.engines.pretrained import from_pretrained
from steprag.engines.threads import one_load
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, write_json
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0
"""For one chat; good templates take milliseconds."""
KWARGS = "chat_template_kwargs"
"""The tokenizer's attribute that holds what every chat tells the template, such as `enable_thinking`."""
_ASKED, _SAID = "What is asked?", "steprag-said-this"
"""The texts of a chat that is rendered to see where a reply begins and ends; the second stands there once."""
_USER = (Message(role="user", content=_ASKED),)
_EMPTY_THOUGHT = re.compile(r"<([\w:|]*think\w*)>\s*</\1>\s*")
"""What templates of thinking models write into turns that were not thought about: history, and no part of a reply."""


class NotEncoded(ConfigError):
    """A chat that the template refuses, or a text that the tokenizer cannot hold: no fault of other rows."""


@dataclass(frozen=True)
class ReplyFrame:
    """What stands around a reply's own ids. `stops`: the tokens at which inference stops.

    `opening`: control tokens between the prompt and the text, which engines leave out of it (gpt-oss's channel).
    `closing`: control tokens behind the text; the last one ends the turn.
    """

    opening: tuple[int, ...]
    closing: tuple[int, ...]
    stops: frozenset[int]


def load_tokenizer(files: ModelFiles, kwargs: Mapping[str, Any] | None = None) -> PreTrainedTokenizerBase:
    """The base's tokenizer, from a folder that `name_or_path` names; `kwargs`: what every chat tells its template.

    ConfigError where it has no chat template.
    """
    from steprag.engines.weights import tokenizer_folder

    folder = str(tokenizer_folder(files))
    with one_load():
        from transformers import AutoTokenizer

        tokenizer = from_pretrained(AutoTokenizer, folder)
    if not tokenizer.chat_template:
        raise ConfigError(f"{files.name} has no chat template; train an instruct model")
    setattr(tokenizer, KWARGS, dict(kwargs or {}))
    return tokenizer


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

    `kwargs`: what the template is told beside what it is told in every chat. Raises NotEncoded where the template
    refuses the chat, or changes a message that is to be continued.
    """
    if messages[-1]["role"] == "assistant":
        prompt_text(messages, tokenizer, **kwargs)
    return _applied(tokenizer, messages, return_dict=True, **writes_on(messages), **kwargs)["input_ids"]


def prompt_text(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, **kwargs: Any) -> str:
    """A prompt as text, which engines encode; raises as `prompt_tokens`."""
    text = str(_applied(tokenizer, messages, tokenize=False, **writes_on(messages), **kwargs))
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
    opening = () if messages[-1]["role"] == "assistant" else frame.opening
    return [*opening, *_ids(tokenizer, reply["content"]), *frame.closing]


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
    if messages[-1]["role"] != "assistant":
        body = body[len(frame.opening) :]
    decoded = str(tokenizer.decode(body, clean_up_tokenization_spaces=False))
    if tokenizer.unk_token_id in body or "".join(decoded.split()) != "".join(reply["content"].split()):
        raise NotEncoded("is not what was sampled: the tokenizer has no tokens for some of its characters")


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
    return ReplyFrame(_opening(tokenizer, prompt_text(asked, tokenizer), before), tuple(closing), frozenset(stops))


def _opening(tokenizer: Any, prompt: str, before: str) -> tuple[int, ...]:
    """The ids between a prompt and a reply's text where they have control tokens, which an engine does not show."""
    written = before[len(prompt) :] if before.startswith(prompt) else ""
    ids = _ids(tokenizer, _EMPTY_THOUGHT.sub("", written))
    hidden = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return tuple(ids) if hidden.intersection(ids) else ()


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
    return str(_applied(tokenizer, messages, tokenize=False))


def _applied(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> Any:
    """What the chat template makes of a chat. It is a program that came with the model, and runs in jinja2's sandbox.

    Raises NotEncoded where it fails or asks for what the sandbox forbids, ConfigError where it takes more than
    `TEMPLATE_SECONDS`.
    """
    import jinja2

    chat: Any = list(messages)
    cannot = f"the chat template of {tokenizer.name_or_path} cannot be used: "
    try:
        with _in_time(TEMPLATE_SECONDS):
            return tokenizer.apply_chat_template(chat, **{**getattr(tokenizer, KWARGS, {}), **options})
    except _OutOfTime as error:
        raise ConfigError(f"{cannot}{error}") from None
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        told = cannot + " ".join(str(error).split())[:200]
        if chat[0]["role"] == "system" and "system" in str(error).lower():
            told += "; give a prompt profile with system_role: user"
        raise NotEncoded(told) from None


class _OutOfTime(Exception):
    """A template ran too long."""


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Raises _OutOfTime in the block once the time is over. Only the main thread can be interrupted so; others are
    not bounded. A timer that runs already goes on afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise _OutOfTime(f"it takes more than {seconds:g} seconds for one chat")

    handler, begun = signal.signal(signal.SIGALRM, late), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        again = max(left - (time.monotonic() - begun), 0.001) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, again, interval)
