"""A chat as the model's tokens: what training learns and what decides whether a row is too long for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steprag.engines.models import ModelFiles
from steprag.engines.threads import one_load
from steprag.errors import ConfigError
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    """The base's tokenizer; ConfigError where it has no chat template."""
    from steprag.engines.weights import base_weights

    with one_load():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(base_weights(files))
    if not tokenizer.chat_template:
        raise ConfigError(f"{files.name} has no chat template; train an instruct model")
    return tokenizer


def prompt_tokens(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The prompt, up to where the assistant begins to write."""
    return _render(tokenizer, messages, add_generation_prompt=True)


def reply_tokens(
    messages: tuple[Message, ...], reply: Message, prompt: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """What the assistant writes after `prompt` (the tokens of `messages`), up to the token that ends the turn.

    Raises ConfigError for a template that renders the prompt otherwise once a reply follows, or ends no turn.
    """
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


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> list[int]:
    chat: Any = list(messages)
    rendered: Any = tokenizer.apply_chat_template(chat, return_dict=True, **options)
    return rendered["input_ids"]
