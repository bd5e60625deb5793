"""What users bring: questions with their golden answers, and passages, in the spellings that the field's files use."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from steprag.console.progress import say
from steprag.errors import DataError, quoted
from steprag.records.choices import choice_columns, golden_texts, lettered, with_choices
from steprag.records.jsonl import existing, from_dict
from steprag.records.spellings import (
    ALIASES,
    ANSWERS,
    ASKED,
    CHOICES,
    PLACES,
    QUESTION_IDS,
    QUESTION_NAMES,
    QUESTIONS,
    first,
    folded,
    keys_of,
    literal,
    passage_from_row,
    plain,
    spelt,
)
from steprag.records.tables import rows_of
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question

SPLITS = ("train", "dev", "test", "validation", "val")
_PER_FILE = re.compile(rf"(?:(?:{'|'.join(SPLITS)})[-_])?\d+")
"""Ids that FlashRAG gives within one file: `train_12`, `dev_3`, or the number alone."""
_FIRST_WORD = re.compile(r"[A-Za-z]\w*?(?=[-_])")
_WITHIN = ("text", "value", "aliases", "answer", "spans")
"""Where an answer that is an object holds its texts (SQuAD, TriviaQA, KILT, DROP)."""
_NUMBERED = re.compile(r"answers?\d+")
"""Golden answers in columns of their own, folded (FreshQA)."""


_MARKS = ("supporting_titles", "supporting_ids", "supporting_facts", "facts", "parts")
"""Lists in the metadata, which a table has as texts."""
CELLS = "put a cell that holds what stands between cells into quotation marks"
"""The remedy for a row that does not fill the columns of its table."""


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
            remedy = f'give one in "golden_answers", or --columns answer=NAME; keys found: {keys_of(row)}'
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


def question_from_row(row: object, path: Path, line: int) -> Question:
    """A question from any spelling, with its choices below it and its golden answers as texts; blank ones are left out.

    Numbers are texts, true and false also yes and no. Raises DataError.
    """
    if isinstance(row, list) and row and all(isinstance(cell, str) for cell in row):
        raise DataError(path, f"does not fill the columns: {quoted(row)}", line=line, remedy=CELLS)
    if not isinstance(row, dict) or not isinstance(row.get("metadata") or {}, dict | str):
        return from_dict(Question, row, path, line)
    named = spelt(row, QUESTION_NAMES)
    fields = _own(named) if {"id", "question", "golden_answers"} <= named.keys() else _foreign(named, line)
    if isinstance(fields.get("question"), list):
        problem = f"the question is no text, but {quoted(fields['question'])}"
        raise DataError(path, problem, line=line, remedy="name the column of its text: --columns question=NAME")
    if fields.get("question") is None:
        raise DataError(
            path, f'a question needs "question" and "golden_answers"; keys found: {keys_of(row)}', line=line,
            remedy="name them: --columns question=NAME,answer=NAME",
        )  # fmt: skip
    if fields.get("dataset") is None and _said(fields["metadata"], "dataset") is None:  # Search-R1, verl
        fields = {**fields, "dataset": _said(row, "data_source")}
    marks = {name: literal(mark) for name in _MARKS if isinstance(mark := fields["metadata"].get(name), str)}
    given = {name: mark for name, mark in marks.items() if mark is not None}
    fields = {**fields, "metadata": {**fields["metadata"], **given}}
    choices = fields["metadata"].get("choices")
    letters = lettered(choices)
    if letters is None:
        problem = f"question {quoted(fields.get('id'))}: metadata.choices cannot be read"
        raise DataError(path, problem, line=line, remedy="give a list of texts, or letters with texts")
    answers = _answers(fields["golden_answers"])
    golden = [text for answer in answers for text in golden_texts(answer, letters, path, line) if text.strip()]
    question = from_dict(Question, {**fields, "golden_answers": golden}, path, line)
    return with_choices(question, list(letters.values()))


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """A row of our form; choices beside the metadata go into them."""
    given = [name for name in CHOICES if row.get(name)]
    fields = {name: value for name, value in row.items() if name not in given[:1]}
    metadata = {**_metadata(row), **({"choices": row[given[0]]} if given else {})}
    return {**fields, "id": plain(row.get("id")), "metadata": metadata}


def _foreign(row: dict[str, Any], line: int) -> dict[str, Any]:
    """A row of another data set: its line is the id of one without; what is no field of a question is metadata."""
    rest = {name: value for name, value in row.items() if name not in ("metadata", "dataset")}
    if isinstance(asked := _taken(rest, QUESTIONS), dict):
        rest |= {name: value for name, value in asked.items() if name not in ASKED}
        asked = first(asked, ASKED)
    choices = _taken(rest, CHOICES) or choice_columns(rest)
    numbered = [name for name in rest if _NUMBERED.fullmatch(folded(name))]
    answers = [_taken(rest, ANSWERS), *(rest.pop(name, None) for name in (*ALIASES, *numbered))]
    if choices and answers[0] is None:
        answers[0] = _taken(rest, PLACES)
    name = _taken(rest, QUESTION_IDS) if rest.keys() & set(QUESTION_IDS) else line
    own = {"id": plain(name), "question": asked, "golden_answers": answers}
    metadata = {**_metadata(row), **({"choices": choices} if choices else {}), **rest}
    return {**own, "metadata": metadata, **({"dataset": row["dataset"]} if "dataset" in row else {})}


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    """A row's metadata; those that are a text are the object in it, or stay a text under their name (SimpleQA)."""
    given = row.get("metadata") or {}
    if not isinstance(given, str):
        return given
    found = literal(given)
    return found if isinstance(found, dict) else {"metadata": given} if given.strip() else {}


def _taken(fields: dict[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of the names that is there and not null, taken out of the fields."""
    found = next((name for name in names if fields.get(name) is not None), None)
    return None if found is None else fields.pop(found)


def _answers(value: Any, depth: int = 4) -> list[Any]:
    """The answers in lists and objects of lists, in order; null is none. A list may be written as a text (PopQA)."""
    if isinstance(value, str) and re.match(r"\s*\[\s*['\"]", value):
        found = literal(value)
        value = found if isinstance(found, list) else value
    if isinstance(value, dict) and depth:
        named = spelt(value, _WITHIN)
        value = [named[name] for name in _WITHIN if name in named]
    if isinstance(value, list) and depth:
        return [answer for one in value for answer in _answers(one, depth - 1)]
    return [] if value is None else [value]
