"""What users bring: questions with their golden answers, and passages, in the spellings that the field's files use."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from steprag.console.progress import say
from steprag.errors import DataError, quoted
from steprag.records.jsonl import existing
from steprag.records.spellings import keys_of, passage_from_row, question_from_row
from steprag.records.tables import rows_of
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question

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


def read_questions(path: Path | str, dataset: str | None = None) -> list[Question]:
    """All questions of a file, checked: ids unique, each with text and golden answers; blank answers are left out.

    Rows may have other data sets' field names (`steprag.records.spellings`). FlashRAG's ids are unique per file only,
    so `train_12` becomes `hotpotqa/train_12`. The data set is `dataset` if given, else what the row says (`dataset`,
    `metadata.dataset`), else the folder of a file `NAME/SPLIT.jsonl`. Other ids stay as they are. Golden answers
    without words are counted and said.

    Raises ConfigError and DataError.
    """
    path = existing(path, "question file")
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, row in rows_of(path):
        question = question_from_row(row, path, number)
        if not question.question.strip():
            raise DataError(path, "the question is empty", line=number)
        if not question.golden_answers:
            remedy = f'give at least one in "golden_answers"; keys found: {keys_of(row)}'
            raise DataError(path, f"question {quoted(question.id)} has no golden answer", line=number, remedy=remedy)
        question = _named(question, path, dataset)
        if question.id in seen:
            raise DataError(path, f"id {quoted(question.id)} stands in line {seen[question.id]} already", line=number)
        seen[question.id] = number
        questions.append(question)
    if not questions:
        raise DataError(path, "holds no questions")
    _say_wordless(questions, path)
    return questions


def _say_wordless(questions: Sequence[Question], path: Path) -> None:
    wordless = [(q.id, gold) for q in questions for gold in q.golden_answers if not normalise(gold)]
    if wordless:
        name, gold = wordless[0]
        say(f"{path}: golden answers without words once normalised: {len(wordless)}, the first {quoted(gold)} of "
            f"question {quoted(name)}; any other answer without words scores EM 1 there")  # fmt: skip


def _named(question: Question, path: Path, dataset: str | None) -> Question:
    """The question with its data set, and with the data set in an id that is unique within one file only."""
    name = dataset or question.dataset or _said(question.metadata, "dataset")
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
    if name := asked.dataset or _said(asked.metadata, "dataset") or _said(asked.metadata, "source"):
        return name
    word = None if is_per_file(asked.id) else _FIRST_WORD.match(asked.id)
    return word.group() if word else None


def _said(metadata: dict[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _folder_name(path: Path) -> str | None:
    """The data set of a file in FlashRAG's layout, `NAME/SPLIT.jsonl` or `NAME/SPLIT.jsonl.gz`; None elsewhere."""
    return path.absolute().parent.name or None if path.name.partition(".")[0] in SPLITS else None


def read_passages(path: Path) -> Iterator[Passage]:
    """Every passage of a corpus file, streamed."""
    for number, row in rows_of(path):
        yield passage_from_row(row, path, number)
