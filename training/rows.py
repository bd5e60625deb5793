"""Training rows: read and checked, turned into tokens.

Tokens are made here and not by TRL, for three reasons: a row must be learnt up to and including the token that ends a
turn and not beyond (TRL also trains the newline that templates put after it); a row that is too long is left out
rather than losing its end; and a reply is learnt as it was sampled, whatever the template does to earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.tokens import check_reply, prompt_tokens, reply_tokens
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import from_dict, read_rows
from steprag.records.training_rows import Pair, StepLabel, Trajectory
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Row:
    """A prompt and the completions to learn from: one for sft and critic, (chosen, rejected) for dpo.

    `question`: its name, "" where the row has none. `smoothing`, of a pair that has one: the chance that the preference
    is the other way round, 0 to 1. `value`, for a critic: what the step was worth, 0 to 1.
    """

    prompt: tuple[Message, ...]
    completions: tuple[Message, ...]
    question: str = ""
    smoothing: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class TokenRow:
    """`Row` in token ids. Every completion ends with the token that ends the turn."""

    prompt: list[int]
    completions: tuple[list[int], ...]
    question: str = ""
    smoothing: float | None = None
    value: float | None = None

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return len(self.prompt) + max(map(len, self.completions))

    @property
    def tokens(self) -> int:
        """Tokens of all its sequences: what a step computes, before padding."""
        return sum(len(self.prompt) + len(completion) for completion in self.completions)


FILES = {
    "sft": ("sft", Trajectory, ("completion",)),
    "dpo": ("pairs", Pair, ("chosen", "rejected")),
    "critic": ("steps", StepLabel, ("completion",)),
}
"""By stage: the product of `steprag pairs` that it reads, the rows there, and their fields that hold completions."""


def data_files(folder: Path, stage: str) -> tuple[Path, Path]:
    """The training and the validation file of a pairs folder; the second need not exist."""
    stem = FILES[stage][0]
    return folder / f"{stem}.train.jsonl", folder / f"{stem}.val.jsonl"


def read_training(path: Path, stage: str) -> list[Row]:
    """All rows of a training file; missing, empty or bad is an error."""
    if not path.is_file():
        products = f"steprag pairs writes it, where --products names {FILES[stage][0]}"
        remedy = products if path.parent.is_dir() else "give a pairs folder with --pairs"
        raise ConfigError(f"training file not found: {path} ({remedy})")
    rows = read_file(path, stage)
    if not rows:
        raise DataError(path, "holds no rows", remedy="the trees gave no pairs or good episodes to learn from")
    return rows


def read_file(path: Path, stage: str) -> list[Row]:
    """The rows of a file, checked; none where there is no such file. Raises DataError with the line."""
    _, kind, fields = FILES[stage]
    rows: list[Row] = []
    for line, found in read_rows(path) if path.is_file() else ():
        row: Any = from_dict(kind, found, path, line)
        if problem := _problem(row, fields):
            raise DataError(path, problem, line=line)
        completions = tuple(getattr(row, name)[0] for name in fields)
        numbers = (getattr(row, name, None) for name in NUMBERS)
        rows.append(Row(row.prompt, completions, row.question_id, *numbers))
    return rows


NUMBERS = ("label_smoothing", "value")
"""Of pairs and of step labels: each from 0 to 1."""


def _problem(row: Any, fields: Sequence[str]) -> str | None:
    """What keeps a row from being learnt: in the messages that it should have, or in its number."""
    for name in fields:
        messages = getattr(row, name)
        if len(messages) != 1 or messages[0]["role"] != "assistant":
            return f"{name}: expected one assistant message, found {len(messages)} messages"
        if not messages[0]["content"].strip():
            return f"{name}: the message is empty"
    if len({getattr(row, name)[0]["content"] for name in fields}) < len(fields):
        return "chosen and rejected are the same text"
    for name in NUMBERS:
        if not 0 <= (getattr(row, name, None) or 0) <= 1:
            return f"{name}: {getattr(row, name)} is not from 0 to 1"
    last = row.prompt[-1] if row.prompt else None
    if last is None or last["role"] not in ("user", "assistant"):
        return "prompt: its last message is neither the user's nor the assistant's"
    if last["role"] == "assistant" and not last["content"].strip():
        return "prompt: the assistant's message that is to be continued is empty"
    return None


def tokenised(row: Row, tokenizer: PreTrainedTokenizerBase) -> TokenRow:
    """A row in tokens. Raises NotEncoded where its chat or its completions cannot be."""
    prompt = prompt_tokens(row.prompt, tokenizer)
    completions = tuple(reply_tokens(row.prompt, reply, tokenizer) for reply in row.completions)
    for reply, ids in zip(row.completions, completions, strict=True):
        check_reply(row.prompt, reply, ids, tokenizer)
    return TokenRow(prompt, completions, row.question, row.smoothing, row.value)
