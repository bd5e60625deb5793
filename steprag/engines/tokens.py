"""A chat as the model's tokens: what training learns and what decides whether a row is too long for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steprag.engines.models import ModelFiles
from steprag.engines.pretrained import from_pretrained
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
    chat: Any = [*messages[:-1], Message(role=begun["role"], content=begun["content"] + text)]
    rendered = str(tokenizer.apply_chat_template(chat, tokenize=False))
    end = str(tokenizer.eos_token)
    if not rendered.rpartition(text.rstrip())[2].lstrip().startswith(end):
        raise ConfigError(f"the chat template does not end an answer with {end}; use another template")
    ids: Any = tokenizer.encode(text, add_special_tokens=False)
    return [*ids, int(tokenizer.eos_token_id)]  # pyright: ignore[reportArgumentType]


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> list[int]:
    chat: Any = list(messages)
    rendered: Any = tokenizer.apply_chat_template(chat, return_dict=True, **options)
    return rendered["input_ids"]
