"""What users bring: questions with their golden answers, and passages, in the spellings that the field's files use."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Protocol

from steprag.errors import DataError, quoted
from steprag.records.jsonl import existing, from_dict, read_rows
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

    A question with choices gets them appended to its text; rows of MedQA's own files are read too. FlashRAG's ids are
    unique per file only, so `train_12` becomes `hotpotqa/train_12`. The data set is `dataset` if given, else what the
    row says (`dataset`, `metadata.dataset`), else the folder of a file `NAME/SPLIT.jsonl`. Other ids stay as they are.

    Raises ConfigError and DataError.
    """
    path = existing(path, "question file")
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        question = from_dict(Question, _medqa(row, number), path, number)
        if not question.question.strip():
            raise DataError(path, "the question is empty", line=number)
        golden = tuple(answer for answer in question.golden_answers if answer.strip())
        if not golden:
            remedy = 'give at least one in "golden_answers"'
            raise DataError(path, f"question {quoted(question.id)} has no golden answer", line=number, remedy=remedy)
        question = _named(dataclasses.replace(question, golden_answers=golden), path, dataset)
        if question.id in seen:
            raise DataError(path, f"id {quoted(question.id)} stands in line {seen[question.id]} already", line=number)
        seen[question.id] = number
        questions.append(_with_choices(question, path, number))
    if not questions:
        raise DataError(path, "holds no questions")
    return questions


def _medqa(row: Any, line: int) -> Any:
    """A row of MedQA's own files (`question`, `options`, `answer`, no id) as one of ours, named by its line."""
    if not isinstance(row, dict) or "golden_answers" in row or not {"options", "answer"} <= row.keys():
        return row
    rest = {key: value for key, value in row.items() if key not in ("id", "question", "answer", "options")}
    return {
        "id": str(row.get("id", line)),
        "question": row.get("question"),
        "golden_answers": [row["answer"]],
        "metadata": {"choices": row["options"], **rest},
    }


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


def _with_choices(question: Question, path: Path, line: int) -> Question:
    """The question with its choices below it, one a line: `metadata.choices`, a list of texts, or letters with texts.

    Letters are left out, because normalising would take "A" for an article: an answer is the words of a choice, and
    golden letters become these words. A question that lists its choices already is unchanged. Raises DataError.
    """
    given = question.metadata.get("choices")
    if not given:
        return question
    texts = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        remedy = "give a list of texts, or letters with texts"
        raise DataError(
            path, f"question {quoted(question.id)}: metadata.choices cannot be read", line=line, remedy=remedy
        )
    below = "".join(f"\n- {' '.join(text.split())}" for text in texts)
    lettered = given if isinstance(given, dict) else dict(zip(ascii_uppercase, texts, strict=False))
    golden = tuple(answer if answer in texts else lettered.get(answer, answer) for answer in question.golden_answers)
    asked = question.question.removesuffix(below).rstrip() + below
    return dataclasses.replace(question, question=asked, golden_answers=golden)


def passage_from_row(row: object, path: Path | str, line: int) -> Passage:
    """A passage from either spelling: {"id","contents"} with the title in the first line, or {"id","title","text"}.

    Titles lose the quotation marks that FlashRAG's corpora wrap them in. Raises DataError.
    """
    if not isinstance(row, dict) or "id" not in row:
        raise DataError(path, 'a passage needs an "id"', line=line)
    if isinstance(row.get("contents"), str):
        title, _, text = row["contents"].partition("\n")
    elif isinstance(row.get("text"), str):
        title, text = str(row.get("title") or ""), row["text"]
    else:
        raise DataError(path, 'a passage needs "contents", or "title" and "text"', line=line)
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    if not text.strip():
        raise DataError(
            path, f"passage {quoted(row['id'])} has no text", line=line, remedy="the first line is the title"
        )
    return Passage(str(row["id"]), title, text.strip())


def read_passages(path: Path) -> Iterator[Passage]:
    """Every passage of a corpus file, streamed."""
    for number, row in read_rows(path):
        yield passage_from_row(row, path, number)
