"""What the worked episodes of Atlas' two tasks hold: the builder writes them, `steprag reproduce stack` words them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """A search and what is made of its passages.

    `need`: what is missing. `keep`: whether the passages held it. `text`: the sentence that is kept, or why nothing is.
    `brief`: the same in a few words, for a summary. `gold`: corpus rows that tell it.
    """

    need: str
    query: str
    keep: bool
    text: str
    brief: str = ""
    gold: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskEpisode:
    """A question of a task and the readings that answer it."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    readings: tuple[Reading, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
