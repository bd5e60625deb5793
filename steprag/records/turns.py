"""What is kept of a conversation's turns, and of a judge's verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steprag.types import Prediction, Usage, omitted


@dataclass(frozen=True)
class Feedback:
    """What a person said of an answer: whether it is right, and what is."""

    right: bool
    answer: str | None = None


@dataclass(frozen=True)
class Route:
    """What a message was taken for, and why, in a few words. `kind`: "talk" or "question"."""

    kind: str
    why: str


@dataclass(frozen=True)
class Turn(Prediction):
    """One question of a conversation and its episode. Whatever reads predictions reads turns.

    `asked`: the words as typed; `question`: those that the agent saw. `golden_answers`: what a person said is right,
    none where nobody did. `finish`: as in a prediction, or "cancelled", or "failed" with the reason in `error`.
    `given`: how many steps at its start were not played in this turn but taken from `parent`, the last of them written
    by a person. `time`: seconds since 1970 at acceptance; `seconds`: what the play took. `route`: where the mode is
    auto. `history`: the exchanges before it that its prompt showed, of a turn that talks. `source`: what was searched,
    of a conversation with files: "files", "index" or "both".
    """

    conversation: str = ""
    asked: str = ""
    mode: str = ""
    time: float = 0.0
    seconds: float = 0.0
    given: int = 0
    parent: str | None = omitted()
    feedback: Feedback | None = omitted()
    error: str | None = omitted()
    route: Route | None = omitted()
    history: tuple[tuple[str, str], ...] | None = omitted()
    source: str | None = omitted()


@dataclass(frozen=True)
class Verdict:
    """What a judge said of a prediction. `right` is None where its reply (`text`) was neither yes nor no."""

    id: str
    right: bool | None
    text: str
    usage: Usage
    extra: dict[str, Any] = field(default_factory=dict)
