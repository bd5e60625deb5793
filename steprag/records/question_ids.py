"""What a question is called in our files: its data set and its id in the file that it came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from steprag.records.spellings import text_of
from steprag.types import Question

SPLITS = ("train", "dev", "test", "validation", "val")
_PER_FILE = re.compile(rf"(?:(?:{'|'.join(SPLITS)})[-_])?\d+")
"""Ids that FlashRAG gives within one file: `train_12`, `dev_3`, or the number alone."""
_FIRST_WORD = re.compile(r"[A-Za-z]\w*?(?=[-_])")


class WithId(Protocol):
    """A question, or a record that carries a question's own fields: what tells its data set and its gold passages."""

    @property
    def id(self) -> str:
        """The question's name."""
        ...

    @property
    def dataset(self) -> str | None:
        """Its data set, where one is noted."""
        ...

    @property
    def metadata(self) -> dict[str, Any]:
        """What came with it."""
        ...


def named(question: Question, path: Path, dataset: str | None) -> Question:
    """The question with its data set, and with the data set in an id that is unique within one file only."""
    name = dataset or question.dataset or text_of(question.metadata, "dataset")
    if not is_per_file(question.id):
        return dataclasses.replace(question, dataset=name)
    name = name or _folder_name(path)
    return dataclasses.replace(question, id=f"{name}/{question.id}", dataset=name) if name else question


def is_per_file(question_id: str) -> bool:
    """Whether an id is unique within one file only, so that other data sets may have it too."""
    return _PER_FILE.fullmatch(question_id) is not None


def ids_identity(questions: Iterable[Question]) -> dict[str, Any]:
    """The data sets that stand in ids, for a run's identity: another name makes other questions. Empty where no id has
    one.
    """
    names = sorted({q.dataset for q in questions if q.dataset and q.id.startswith(f"{q.dataset}/")})
    return {"datasets": names} if names else {}


def dataset_of(asked: WithId) -> str | None:
    """The data set of a question: as `read_questions` noted it, else as the metadata says (`dataset`, `source`), else
    the word before the first hyphen of an id like `atlas-train-0001`. None where nothing tells.
    """
    if name := asked.dataset or text_of(asked.metadata, "dataset") or text_of(asked.metadata, "source"):
        return name
    word = None if is_per_file(asked.id) else _FIRST_WORD.match(asked.id)
    return word.group() if word else None


def _folder_name(path: Path) -> str | None:
    """The data set of a file in FlashRAG's layout, `NAME/SPLIT.jsonl` or `NAME/SPLIT.jsonl.gz`; None elsewhere."""
    return path.absolute().parent.name or None if path.name.partition(".")[0] in SPLITS else None
