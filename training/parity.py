"""Token parity: what the trainer learns is what inference will send and receive, checked on every row before training.

Two ways to the same ids are compared. The trainer's come from `training.rows`. Inference renders the prompt to text
with the tokenizer's chat template and encodes that text, special tokens as such, which is what vLLM, SGLang and
`transformers serve` do; it then reads tokens until one that ends the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from steprag.engines.templates import NotEncoded
from steprag.engines.tokens import check_reply, prompt_text
from steprag.errors import TrainingError
from steprag.types import Message
from training.rows import Row, TokenRow, tokenised

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 256
SHOWN = 6
"""Tokens shown on either side of a difference."""


def checked_tokens(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, max_length: int, left_out: dict[str, list[int]] | None = None
) -> list[TokenRow]:
    """The rows in tokens, checked (`check_parity`). What is too long or cannot be encoded is left out, never cut:
    `left_out` gets its row numbers, from 1, by the reason.
    """
    kept: list[Row] = []
    made: list[TokenRow] = []
    reasons = {} if left_out is None else left_out
    for number, row in enumerate(rows, 1):
        try:
            tokens = tokenised(row, tokenizer)
            if tokens.length > max_length:
                raise NotEncoded(f"has more than {max_length} tokens; raise max_length to learn it too")
        except NotEncoded as error:
            reasons.setdefault(str(error), []).append(number)
        else:
            kept.append(row)
            made.append(tokens)
    check_parity(kept, made, tokenizer)
    return made


def check_parity(rows: Sequence[Row], tokens: Sequence[TokenRow], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises TrainingError at the first row whose ids differ, and shows the first tokens that do."""
    for start in range(0, len(rows), BATCH):
        sent = sent_tokens([row.prompt for row in rows[start : start + BATCH]], tokenizer)
        for number, ids in enumerate(sent, start):
            row, made = rows[number], tokens[number]
            check_prompt(f"row {number + 1}", made.prompt, ids, tokenizer)
            for reply, completion in zip(row.completions, made.completions, strict=True):
                try:
                    check_reply(row.prompt, reply, completion, tokenizer)
                except NotEncoded as error:
                    raise TrainingError(f"row {number + 1}: the completion {error}") from None


def sent_tokens(prompts: Sequence[Sequence[Message]], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The ids of prompts as inference makes them: rendered to text, and that text encoded. Raises NotEncoded."""
    texts = [prompt_text(prompt, tokenizer) for prompt in prompts]
    encoded: Any = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return encoded


def check_prompt(where: str, trained: list[int], sent: list[int], tokenizer: Any) -> None:
    """Raises TrainingError where the trainer's ids of a prompt are not those that inference sends."""
    if trained == sent:
        return
    at = len(commonprefix([trained, sent]))

    def shown(ids: list[int]) -> str:
        part = ids[max(0, at - SHOWN) : at + SHOWN]
        return " ".join(f"{token!r}={i}" for token, i in zip(tokenizer.convert_ids_to_tokens(part), part, strict=True))

    raise TrainingError(
        f"{where}: the prompt's tokens differ from token {at + 1} on. The trainer sees {shown(trained)} and "
        f"inference sends {shown(sent)}; the chat template or the tokenizer renders a prompt otherwise when a "
        "reply follows: use another template"
    )
