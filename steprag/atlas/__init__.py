"""Atlas: the embedded question-answering world of StepRAG.

Short passages, questions with gold passage ids, and worked episodes, all derived from open data packages (SOURCES.md).
The JSON Lines files are committed; ``python -m benchmarks.atlas.build`` writes them again, byte for byte.
"""

from pathlib import Path

DATA = Path(__file__).parent
NAMES = ("corpus", "train", "dev", "test", "warmstart")
TASKS = ("ledger.dev", "ledger.test", "forks.dev", "forks.test", "worked.train", "worked.dev", "choices.test")
"""Questions that try an agent's memory, and worked episodes of them (`benchmarks.atlas.tasks`); questions in
MedQA's form.
"""


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
