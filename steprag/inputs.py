"""What users bring: questions with their golden answers, and passages, in the spellings that the field's files use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase

from steprag.errors import DataError
from steprag.files import existing, from_dict, read_rows
from steprag.types import Passage, Question


def read_questions(path: Path | str) -> list[Question]:
    """All questions of a file, checked: ids unique, every question with text and at least one golden answer. Those with
    choices are as they are asked, with the choices below them.
    """
    path = existing(path, "question file")
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        question = from_dict(Question, row, path, number)
        if not question.question.strip():
            raise DataError(path, "the question is empty", line=number)
        if not any(answer.strip() for answer in question.golden_answers):
            remedy = 'give at least one in "golden_answers"'
            raise DataError(path, f"question {question.id!r} has no golden answer", line=number, remedy=remedy)
        if question.id in seen:
            raise DataError(path, f"id {question.id!r} stands in line {seen[question.id]} already", line=number)
        seen[question.id] = number
        questions.append(_with_choices(question, path, number))
    if not questions:
        raise DataError(path, "holds no questions")
    return questions


def _with_choices(question: Question, path: Path, line: int) -> Question:
    """The question with its choices below it, one a line: `metadata.choices`, a list of texts, or letters with texts.

    Without the letters: an answer is a choice's words, for normalising would take the letter "A" for an article; golden
    answers that are letters become the words. A question that was written with its choices stays as it is. Raises
    DataError.
    """
    given = question.metadata.get("choices")
    if not given:
        return question
    texts = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        remedy = "give a list of texts, or letters with texts"
        raise DataError(path, f"question {question.id!r}: metadata.choices cannot be read", line=line, remedy=remedy)
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
        raise DataError(path, f"passage {row['id']!r} has no text", line=line, remedy="the first line is the title")
    return Passage(str(row["id"]), title, text.strip())


def read_passages(path: Path) -> Iterator[Passage]:
    """Every passage of a corpus file, streamed."""
    for number, row in read_rows(path):
        yield passage_from_row(row, path, number)
