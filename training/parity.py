"""Token parity: what the trainer learns is what inference will send and receive, checked on every row before training.

Two ways to the same ids are compared. The trainer's come from `training.rows`, which renders prompt and reply together.
Inference renders the prompt to text with the tokenizer's chat template and encodes that text, special tokens as
such, which is what vLLM, SGLang and `transformers serve` do; it then reads tokens until one that ends the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steprag.errors import TrainingError
from steprag.types import Message
from training.rows import Row, TokenRow, tokenise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 256
SHOWN = 6
"""Tokens shown on either side of a difference."""


def checked_tokens(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[TokenRow]:
    """The rows of at most `max_length` tokens; the others are left out, never cut. All are checked (`check_parity`)."""
    made = tokenise(rows, tokenizer)
    check_parity(rows, made, tokenizer)
    return [row for row in made if row.length <= max_length]


def check_parity(rows: Sequence[Row], tokens: Sequence[TokenRow], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises TrainingError at the first row whose ids differ, and shows the first tokens that do."""
    for start in range(0, len(rows), BATCH):
        sent = sent_tokens([row.prompt for row in rows[start : start + BATCH]], tokenizer)
        for number, ids in enumerate(sent, start):
            check_prompt(f"row {number + 1}", tokens[number].prompt, ids, tokenizer)
            for reply, made in zip(rows[number].completions, tokens[number].completions, strict=True):
                _check_completion(number, reply["content"], made, tokenizer)


def sent_tokens(prompts: Sequence[Sequence[Message]], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The ids of prompts as inference makes them: rendered to text, and that text encoded.

    Raises TrainingError where an assistant's message that is to be continued is not at the end of that text.
    """
    texts = [_sent_text(prompt, tokenizer) for prompt in prompts]
    encoded: Any = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return encoded


def _sent_text(prompt: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    chat: Any = list(prompt)
    if prompt[-1]["role"] != "assistant":
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    text = str(tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True))
    if not text.rstrip().endswith(prompt[-1]["content"].rstrip()):
        raise TrainingError("the chat template changes an assistant's message that is continued; use another template")
    return text


def check_prompt(where: str, trained: list[int], sent: list[int], tokenizer: Any) -> None:
    """Raises TrainingError where the trainer's ids of a prompt are not those that inference sends."""
    if trained != sent:
        raise TrainingError(_difference(where, trained, sent, tokenizer))


def _check_completion(number: int, text: str, ids: list[int], tokenizer: Any) -> None:
    """Inference stops at the first token that ends the turn, and takes what came before it, decoded, as the step."""
    where = f"row {number + 1}: the completion "
    if ids[-1] != tokenizer.eos_token_id:
        last = tokenizer.convert_ids_to_tokens(ids[-1])
        raise TrainingError(f"{where}ends with {last!r}, and inference ends a turn with {tokenizer.eos_token!r}")
    if tokenizer.eos_token_id in ids[:-1]:
        raise TrainingError(f"{where}holds {tokenizer.eos_token!r} within its text, where inference would stop")
    decoded = tokenizer.decode(ids[:-1], clean_up_tokenization_spaces=False)
    if decoded != text and decoded != _read_back(text, tokenizer):
        at = _first_difference(decoded, text)
        found, wanted = decoded[at : at + 30], text[at : at + 30]
        raise TrainingError(
            f"{where}is not what was sampled: from character {at + 1} the template makes {found!r} of {wanted!r}"
        )


def _read_back(text: str, tokenizer: Any) -> str:
    """The text after a way there and back, for tokenizers that do not keep every space."""
    return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), clean_up_tokenization_spaces=False)


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    same = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(same, min(len(one), len(other)))


def _difference(where: str, trained: list[int], sent: list[int], tokenizer: Any) -> str:
    at = _first_difference(trained, sent)

    def shown(ids: list[int]) -> str:
        part = ids[max(0, at - SHOWN) : at + SHOWN]
        return " ".join(f"{token!r}={i}" for token, i in zip(tokenizer.convert_ids_to_tokens(part), part, strict=True))

    return (
        f"{where}: the prompt's tokens differ from token {at + 1} on. The trainer sees {shown(trained)} and "
        f"inference sends {shown(sent)}; the chat template or the tokenizer renders a prompt otherwise when a "
        "reply follows: use another template"
    )
