"""A chat as the model's tokens: what training learns and what decides whether a row is too long for it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from steprag.engines.models import ModelFiles
from steprag.engines.pretrained import from_pretrained
from steprag.engines.threads import one_load
from steprag.errors import ConfigError
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0
"""For one chat; good templates take milliseconds."""


def load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    """The base's tokenizer; ConfigError where it has no chat template."""
    from steprag.engines.weights import base_weights

    with one_load():
        from transformers import AutoTokenizer

        tokenizer = from_pretrained(AutoTokenizer, base_weights(files))
    if not tokenizer.chat_template:
        raise ConfigError(f"{files.name} has no chat template; train an instruct model")
    return tokenizer


def prompt_tokens(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of a prompt, up to where the assistant writes: a turn of its own, or on in its last message."""
    return _render(tokenizer, messages, **writes_on(messages))


def writes_on(messages: Sequence[Message]) -> dict[str, bool]:
    """The chat template's options for a prompt. An assistant's last message is continued, as vLLM and SGLang do when
    asked to (`steprag.policy.client`) and llama.cpp does unasked; any other begins the assistant's turn.
    """
    if messages[-1]["role"] == "assistant":
        return {"continue_final_message": True, "add_generation_prompt": False}
    return {"add_generation_prompt": True}


def reply_tokens(
    messages: tuple[Message, ...], reply: Message, prompt: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """What the assistant writes after `prompt` (the tokens of `messages`), up to the token that ends the turn.

    A reply that continues the assistant's message is encoded by itself: engines sample after the prompt's ids, so no
    token reaches across. Raises ConfigError for a template that renders the prompt otherwise once a reply follows, or
    ends no turn.
    """
    if messages[-1]["role"] == "assistant":
        return _continuing_tokens(messages, reply["content"], tokenizer)
    whole = _render(tokenizer, (*messages, reply))
    if whole[: len(prompt)] != prompt:
        raise ConfigError(
            "the chat template renders a prompt differently when its answer follows; use another template"
        )
    tail = whole[len(prompt) :]
    if tokenizer.eos_token_id not in tail:
        raise ConfigError(f"the chat template does not end an answer with {tokenizer.eos_token}; use another template")
    end = len(tail) - tail[::-1].index(tokenizer.eos_token_id)
    return tail[:end]


def _continuing_tokens(messages: tuple[Message, ...], text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    begun = messages[-1]
    chat = [*messages[:-1], Message(role=begun["role"], content=begun["content"] + text)]
    rendered = str(_applied(tokenizer, chat, tokenize=False))
    end = str(tokenizer.eos_token)
    if not rendered.rpartition(text.rstrip())[2].lstrip().startswith(end):
        raise ConfigError(f"the chat template does not end an answer with {end}; use another template")
    ids: Any = tokenizer.encode(text, add_special_tokens=False)
    return [*ids, int(tokenizer.eos_token_id)]  # pyright: ignore[reportArgumentType]


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> list[int]:
    return _applied(tokenizer, messages, return_dict=True, **options)["input_ids"]


def _applied(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> Any:
    """What the chat template makes of a chat. It is a program that came with the model, and runs in jinja2's sandbox.

    Raises ConfigError where it fails, asks for what the sandbox forbids, or takes more than `TEMPLATE_SECONDS`.
    """
    import jinja2

    chat: Any = list(messages)
    try:
        with _in_time(TEMPLATE_SECONDS):
            return tokenizer.apply_chat_template(chat, **options)
    except (jinja2.TemplateError, _OutOfTime) as error:
        told = " ".join(str(error).split())[:200]
        raise ConfigError(f"the chat template of {tokenizer.name_or_path} cannot be used: {told}") from None


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
