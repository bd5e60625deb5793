"""The values that stages exchange. Read this file first.

Everything here is frozen plain data. `steprag.records.jsonl` reads and writes the ones that live in JSON Lines files
(Question, Passage, Tree, Prediction, Failure). Fields that other programs put into such a file are kept in `extra` and
written back. Training rows are in `steprag.records.training_rows`, turns of conversations in `steprag.records.turns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from typing_extensions import TypedDict

OMITTED = "omitted"
"""Key of a dataclass field's metadata: where the field is None, its JSON object lacks it."""
COUNTABLE = 2**53
"""Counts above it are not exact as floats."""
NANO = 1_000_000_000
"""`Usage.charged` of a dollar."""


def omitted() -> Any:
    """The default of a field that is absent from the JSON object where it is None."""
    return field(default=None, metadata={OMITTED: True})


class Message(TypedDict):
    """One chat message, as the OpenAI API and chat templates take it. `role`: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Usage:
    """What requests cost. `cached_tokens` is the part of `prompt_tokens` that the engine says it did not compute
    again. `estimated`: how many of the calls did not report their tokens, which are estimated from the text.
    `charged`: what the endpoint itself says it charged, in billionths of a dollar. Both are None where there is none.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: int | None = omitted()
    charged: int | None = omitted()

    def __add__(self, other: Usage) -> Usage:
        return Usage.total((vars(self).values(), vars(other).values()))

    @classmethod
    def total(cls, usages: Iterable[Iterable[int | None]]) -> Usage:
        """The sum of usages, each given by its fields in their order; those at the end may be absent."""
        told = ([count for count in counts if count is not None] for counts in zip_longest(*usages))
        sums: list[Any] = [sum(counts) if counts else None for counts in told]
        return cls(*sums)

    @property
    def shown(self) -> dict[str, int]:
        """The fields by name, without those that are None."""
        return {name: count for name, count in vars(self).items() if count is not None}


@dataclass(frozen=True)
class Question:
    """A question with every golden answer that counts as right (at least one). FlashRAG's format.

    `id` names the question in all our files. FlashRAG's ids are unique within one file only, so there it is
    `dataset/id` (`steprag.records.inputs.read_questions`). `dataset` is None where nothing names the data set.
    """

    id: str
    question: str
    golden_answers: tuple[str, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    dataset: str | None = omitted()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Passage:
    """A passage of the corpus; `score` is set where a search returned it (greater is better)."""

    id: str
    title: str
    text: str
    score: float | None = None


@dataclass(frozen=True)
class Completion:
    """Text sampled by a policy. `finish` is the engine's word: "stop", or "length" where the token limit cut it; of a
    person's or a document's text "written"; of one that was given and scored "scored", with the log-probability of each
    of its tokens (`Scorer.score`). `reasoning`: what a thinking model wrote before it (`steprag.engines.reasoning`).
    """

    text: str
    finish: str
    logprobs: tuple[float, ...] | None = None
    reasoning: str = ""


@dataclass(frozen=True)
class Sample:
    """The answer to one request: `n` completions and what the request cost."""

    completions: tuple[Completion, ...]
    usage: Usage


@dataclass(frozen=True)
class Step:
    """One completion that follows the grammar: its action, the text as sampled, and what stood between the tags."""

    action: str
    text: str
    content: str


@dataclass(frozen=True)
class State:
    """Where an episode stands. `passages` are those that the last step retrieved, best first; empty after any other
    step. `earlier[i]` are the passages of the state that had i steps.
    """

    question: str
    steps: tuple[Step, ...] = ()
    passages: tuple[Passage, ...] = ()
    earlier: tuple[tuple[Passage, ...], ...] = ()

    @property
    def before(self) -> State:
        """The state that the last step was taken in."""
        return State(self.question, self.steps[:-1], self.earlier[-1], self.earlier[:-1])


@dataclass(frozen=True)
class Episode:
    """One run from question to answer.

    `finish`: "answer", or the reason (`steprag.agent.grammar.FAILURES`) for which the last completion was refused; then
    `refused` holds that completion's text. `retrieved` holds the passages of each query, in order, none where
    it found nothing. `reasoning`: characters that were split off its completions.
    """

    state: State
    finish: str
    usage: Usage
    retrieved: tuple[tuple[Passage, ...], ...] = ()
    refused: str | None = None
    reasoning: int = 0

    @property
    def prediction(self) -> str | None:
        """The answer, or None where the episode ended without one."""
        return self.state.steps[-1].content if self.finish == "answer" else None


@dataclass(frozen=True)
class Found:
    """A passage as a tree keeps it: enough to find it again, without its text."""

    id: str
    title: str
    score: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What an episode answered. `prediction` is None where it ended without one; `passages` by query, best first.

    `metadata` and `dataset` are the question's. `refused`: the text of the completion that broke the grammar and ended
    the episode. Only of best-of-N: `answers` of all N episodes, `chosen`, the place of the one kept, and `searches`,
    how many all N made; `usage` is then that of all N too. `reasoning`: characters of it, which the journal keeps.
    """

    id: str
    question: str
    golden_answers: tuple[str, ...]
    prediction: str | None
    steps: tuple[Step, ...]
    passages: tuple[tuple[Found, ...], ...]
    usage: Usage
    finish: str
    metadata: dict[str, Any] = field(default_factory=dict)
    refused: str | None = omitted()
    answers: tuple[str | None, ...] | None = omitted()
    chosen: int | None = omitted()
    searches: int | None = omitted()
    reasoning: int | None = omitted()
    dataset: str | None = omitted()
    extra: dict[str, Any] = field(default_factory=dict)
