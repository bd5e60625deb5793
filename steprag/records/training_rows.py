"""The rows that training learns from, made of trees: Pair, Trajectory, StepLabel and Ranking.

They are frozen plain data in JSON Lines files, as the records of `steprag.types` are; `extra` keeps foreign fields.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from steprag.errors import DataError, quoted, shortened
from steprag.records.jsonl import existing, read_records
from steprag.types import COUNTABLE, Message

PEOPLE = "human"
"""The data set and the source of what people said."""
MARKS = "wrong.jsonl"
"""The pairs of a folder that a person marked as wrong: the viewer writes the file, `steprag pairs` filters by it."""
Whole = Annotated[int, Field(ge=-COUNTABLE, le=COUNTABLE)]
"""A whole number that the columns of every exported format hold."""


@dataclass(frozen=True)
class Pair:
    """A preference: from one prompt, `chosen` is better than `rejected`. TRL's conversational form and where it comes
    from.

    `tree` is the hash of the tree's line in `trees.jsonl` (`steprag.records.jsonl.line_hash`). What an imported file
    does not tell (tree, nodes, rewards, visits) is None. `margin_error` is the standard error of the margin where the
    reward has one; `label_smoothing`, where asked for, the chance that the preference is the other way round, by
    visits.
    """

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    question_id: str
    tree: str | None
    chosen_node: Whole | None
    rejected_node: Whole | None
    action: str
    rejected_action: str
    depth: Whole
    chosen_reward: float | None
    rejected_reward: float | None
    margin: float | None
    chosen_visits: Whole | None
    rejected_visits: Whole | None
    source: str
    golden_answers: tuple[str, ...] = ()
    margin_error: float | None = None
    label_smoothing: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        chosen, rejected = (
            quoted(shortened(one[-1]["content"] if one else "", 60)) for one in (self.chosen, self.rejected)
        )
        return f"Pair({chosen} over {rejected}, margin {self.margin})"


@dataclass(frozen=True)
class Trajectory:
    """One step of a worked or found episode, as supervised training takes it: a prompt and the completion to learn.

    From a tree it carries the same provenance as a pair; `outcome` is what the episode's answer was worth.
    """

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    question_id: str
    action: str
    depth: Whole
    source: str
    tree: str | None = None
    node: Whole | None = None
    outcome: float | None = None
    golden_answers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepLabel:
    """A step and what it was worth, as a critic (process reward model) learns it. `error` is the standard error."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    value: float
    error: float | None
    question_id: str
    tree: str
    node: Whole
    action: str
    depth: Whole
    visits: Whole
    source: str
    golden_answers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranking:
    """All rewarded siblings of one prompt, best first; the lists run in step with one another."""

    prompt: tuple[Message, ...]
    completions: tuple[tuple[Message, ...], ...]
    rewards: tuple[float, ...]
    errors: tuple[float | None, ...]
    question_id: str
    tree: str
    nodes: tuple[Whole, ...]
    actions: tuple[str, ...]
    depth: Whole
    visits: tuple[Whole, ...]
    source: str
    golden_answers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HumanPair:
    """A step that a person wrote in place of the policy's (`preferred.jsonl` of a chat folder).

    `turn`: the turn that goes on from it. `prompt`: what both answer; `step`: how many steps stood before. `rejected`
    may be a completion that was refused; `rejected_action` then is `action`. `web`: the prompt shows passages of the
    web, which a stranger may have written.
    """

    turn: str
    question: str
    step: Whole
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    action: str
    rejected_action: str
    web: bool


@dataclass(frozen=True)
class WrongPair:
    """A preference that a person marked as wrong. `preference` names it (`preference_key`); the rest is for people."""

    preference: str
    question_id: str
    chosen: str
    rejected: str
    time: str
    extra: dict[str, Any] = field(default_factory=dict)


def preference_key(pair: Pair) -> str:
    """The name of a preference: 16 hex digits of a hash of prompt, chosen and rejected. Equal preferences of several
    trees have one name; the other way round it is another.
    """
    texts = [[[m["role"], m["content"]] for m in part] for part in (pair.prompt, pair.chosen, pair.rejected)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def read_marks(path: Path | str) -> dict[str, WrongPair]:
    """The marks of a file by the names of their preferences. Raises ConfigError and DataError."""
    file = existing(path, "file of pairs marked as wrong")
    if file.is_dir():
        raise DataError(file, "is a folder", remedy=f"give the file, {file / MARKS}")
    return {mark.preference: mark for mark in read_records(file, WrongPair)}
