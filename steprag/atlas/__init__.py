"""Atlas: the embedded question-answering world of StepRAG.

Short passages, questions with gold passage ids, and worked episodes, all derived from open data packages (SOURCES.md).
The JSON Lines files are committed; SOURCES.md names the commit whose scripts write them again, byte for byte.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent
FACTS = DATA / "facts.tsv"
"""Atlas' facts as lines of subject, relation and object, with tabs between."""
NAMES = ("corpus", "train", "dev", "test", "warmstart")
TASKS = ("ledger.dev", "ledger.test", "forks.dev", "forks.test", "worked.train", "worked.dev", "choices.test")
"""Questions that try an agent's memory, and worked episodes of them; questions in MedQA's form."""


def path(name: str) -> Path:
    """The JSON Lines file of one part of Atlas; raises ValueError where `name` is not one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"Atlas has no part named {name!r}; the parts are {', '.join(NAMES)}")
    return DATA / f"{name}.jsonl"


def task(name: str) -> Path:
    """The JSON Lines file of one part of the tasks; raises ValueError where `name` is not one of `TASKS`."""
    if name not in TASKS:
        raise ValueError(f"Atlas has no task named {name!r}; they are {', '.join(TASKS)}")
    return DATA / "tasks" / f"{name}.jsonl"


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
