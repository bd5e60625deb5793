"""What users bring: a row of any spelling as a question with its golden answers, or as a passage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from steprag.console.progress import say
from steprag.errors import DataError, quoted
from steprag.records.fields import first, joined, keys_of, plain, question_fields, spelt
from steprag.records.golden import golden_texts, with_choices
from steprag.records.json_text import literal
from steprag.records.jsonl import existing, from_dict
from steprag.records.question_ids import named
from steprag.records.rows import read_any_rows
from steprag.records.spellings import PASSAGE_IDS, PASSAGE_NAMES, TEXTS, TITLES
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question

CELLS = "put a cell that holds what stands between cells into quotation marks"
"""The remedy for a row that does not fill the columns of its table."""


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
    for number, row in read_any_rows(path):
        question = question_from_row(row, path, number)
        if not question.question.strip():
            raise DataError(path, "the question is empty", line=number)
        if not question.golden_answers:
            remedy = f'give one in "golden_answers", or --columns answer=NAME; keys found: {keys_of(row)}'
            raise DataError(path, f"question {quoted(question.id)} has no golden answer", line=number, remedy=remedy)
        question = named(question, path, dataset)
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


def question_from_row(row: object, path: Path, line: int) -> Question:
    """A question from any spelling, with its choices below it and its golden answers as texts; blank ones are left out.

    Numbers are texts, true and false also yes and no. Raises DataError.
    """
    if isinstance(row, list) and row and all(isinstance(cell, str) for cell in row):
        raise DataError(path, f"does not fill the columns: {quoted(row)}", line=line, remedy=CELLS)
    if not isinstance(row, dict) or not isinstance(row.get("metadata") or {}, dict | str):
        return from_dict(Question, row, path, line)
    fields = question_fields(row, line)
    asked = fields.own.get("question")
    if isinstance(asked, list):
        problem = f"the question is no text, but {quoted(asked)}"
        raise DataError(path, problem, line=line, remedy="name the column of its text: --columns question=NAME")
    if asked is None:
        raise DataError(
            path, f'a question needs "question" and "golden_answers"; keys found: {keys_of(row)}', line=line,
            remedy="name them: --columns question=NAME,answer=NAME",
        )  # fmt: skip
    if fields.choices is None:
        problem = f"question {quoted(fields.own['id'])}: metadata.choices cannot be read"
        raise DataError(path, problem, line=line, remedy="give a list of texts, or letters with texts")
    golden = golden_texts(fields.answers, fields.choices, path, line)
    question = from_dict(Question, {**fields.own, "golden_answers": golden}, path, line)
    return with_choices(question, list(fields.choices.values()))


def read_passages(path: Path) -> Iterator[Passage]:
    """Every passage of a corpus file, streamed."""
    for number, row in read_any_rows(path):
        yield passage_from_row(row, path, number)


def passage_from_row(row: object, path: Path | str, line: int) -> Passage:
    """A passage from any spelling (PASSAGE_IDS, TEXTS, TITLES), whose text may be a list of paragraphs or sentences.

    Without a title of its own, the first line of `contents` is the title (FlashRAG) and a single line is a text without
    a title. Titles lose the quotation marks that FlashRAG's corpora wrap them in. Raises DataError.
    """
    fields = spelt(row, PASSAGE_NAMES) if isinstance(row, dict) else {}
    if beside := fields.get("metadata"):  # LangChain keeps a title, and sometimes the id, there
        inner = literal(beside) if isinstance(beside, str) else beside
        fields = {**spelt(inner, (*PASSAGE_IDS, *TITLES)), **fields} if isinstance(inner, dict) else fields
    name, given = plain(first(fields, PASSAGE_IDS)), first(fields, TEXTS)
    text = joined(given)
    if not (name or "").strip() or text is None:
        needs = '"contents", or "title" and "text"' if text is None and (name or "").strip() else 'an "id"'
        raise DataError(path, f"a passage needs {needs}; keys found: {keys_of(row)}", line=line)
    title = _bare(plain(first(fields, TITLES)) or "")
    if given is fields.get("contents") or isinstance(given, list):
        title, text = _split(title, text)
    if not text.strip():
        raise DataError(path, f"passage {quoted(name)} has no text", line=line, remedy="the first line is the title")
    return Passage(name or "", title, text.strip())


def as_document(passage: Passage) -> dict[str, str]:
    """A passage in both spellings; `contents` is FlashRAG's."""
    title = f'"{passage.title}"' if passage.title else ""
    return {"id": passage.id, "contents": f"{title}\n{passage.text}", "title": passage.title, "text": passage.text}


def _split(title: str, text: str) -> tuple[str, str]:
    """Title and text: the first line is the title where none is given, and goes where it is the one that is given."""
    first, newline, rest = text.partition("\n")
    bare = _bare(first)
    if not newline and (bare == first.strip() or '"' in bare):  # one line, and no title in quotation marks
        return title, text
    return (bare, rest) if title in ("", bare) else (title, text)


def _bare(title: str) -> str:
    title = title.strip()
    return title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title
