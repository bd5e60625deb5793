"""What users bring: a row of any spelling as a question with its golden answers, or as a passage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steprag.console.progress import say
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.golden import Right, counted_from, right_answers, whole_columns, with_choices
from steprag.records.json_text import literal
from steprag.records.jsonl import existing, from_dict
from steprag.records.left_out import LeftOut, columns_not_read, merged, say_left_out
from steprag.records.question_fields import QuestionFields, question_fields
from steprag.records.question_ids import named
from steprag.records.rows import read_any_rows
from steprag.records.spellings import PASSAGE_IDS, PASSAGE_NAMES, TEXTS, TITLES, first, joined, keys_of, plain, spelt
from steprag.scores.gold import GOLD, facts_of, gold_of, parts_of
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question

CELLS = "put a cell that holds what stands between cells into quotation marks"
"""The remedy for a row that does not fill the columns of its table."""


@dataclass(frozen=True)
class _Row:
    """A row of a question file: its fields, its question without golden answers, and what is right."""

    line: int
    keys: str
    fields: QuestionFields
    question: Question
    right: Right


def read_questions(path: Path | str, dataset: str | None = None, gone: list[LeftOut] | None = None) -> list[Question]:
    """All questions of a file, checked: ids unique, each with text and golden answers; blank answers are left out.

    Rows may have other data sets' field names (`steprag.records.spellings`). FlashRAG's ids are unique per file only,
    so `train_12` becomes `hotpotqa/train_12`. The data set is `dataset` if given, else what the row says (`dataset`,
    `metadata.dataset`), else the folder of a file `NAME/SPLIT.jsonl`. Other ids stay as they are. Golden answers
    without words are counted and said; so are rows without a right answer, which are left out, and columns that may
    turn a row round and that nobody reads: these go into `gone` too.

    Raises ConfigError and DataError.
    """
    path = existing(path, "question file")
    left: list[LeftOut] = []
    rows = [_row(row, path, number) for number, row in read_any_rows(path, left)]
    bases, notes = counted_from(((one.line, one.right) for one in rows), path)
    kept = [row for row in rows if row.right.left_out is None]
    questions = [named(_answered(row, bases, path), path, dataset) for row in kept]
    _check(kept, questions, path)
    left += merged(LeftOut(kind, f"{path}:{row.line}", words) for row in rows if row.right.left_out
                   for kind, words in [row.right.left_out])  # fmt: skip
    left += columns_not_read({name: row.line for row in reversed(rows) for name in row.fields.unread}, path)
    if not questions:
        why = "; ".join(f"{one.kind}: {one.count:,}, the first {one.words} ({one.place})" for one in left)
        raise DataError(path, f"holds no questions{' that can be asked; ' if rows else ''}{why}")
    questions, more = whole_columns(questions, path)
    for note in (*notes, *more):
        say(note)
    say_left_out(left)
    if gone is not None:
        gone += left
    _say_wordless(questions, path)
    return questions


def _check(rows: Sequence[_Row], questions: Sequence[Question], path: Path) -> None:
    """Raises DataError for a question without a text or an answer, and for an id that stands twice."""
    seen: dict[str, int] = {}
    for row, question in zip(rows, questions, strict=True):
        if not row.question.question.strip():
            raise DataError(path, "the question is empty", line=row.line)
        if not question.golden_answers:
            remedy = f'give one in "golden_answers", or --columns answer=NAME; keys found: {row.keys}'
            raise DataError(path, f"question {quoted(question.id)} has no golden answer", line=row.line, remedy=remedy)
        if question.id in seen:
            problem = f"id {quoted(question.id)} stands in line {seen[question.id]} already"
            raise DataError(path, problem, line=row.line)
        seen[question.id] = row.line


def _say_wordless(questions: Sequence[Question], path: Path) -> None:
    wordless = [(q.id, gold) for q in questions for gold in q.golden_answers if not normalise(gold)]
    if wordless:
        name, gold = wordless[0]
        say(f"{path}: golden answers without words once normalised: {len(wordless)}, the first {quoted(gold)} of "
            f"question {quoted(name)}; any other answer without words scores EM 1 there")  # fmt: skip


def question_from_row(row: object, path: Path, line: int) -> Question:
    """A question from any spelling, with its choices below it and its golden answers as texts, blank ones left out;
    without golden answers where nothing is right. Numbers are texts, true and false also yes and no. Raises DataError.
    """
    one = _row(row, path, line)
    return _answered(one, counted_from([(line, one.right)], path)[0], path)


def _row(row: object, path: Path, line: int) -> _Row:
    if isinstance(row, list) and row and all(isinstance(cell, str) for cell in row):
        raise DataError(path, f"does not fill the columns: {quoted(row)}", line=line, remedy=CELLS)
    if not isinstance(row, dict) or not isinstance(row.get("metadata") or {}, dict | str):
        from_dict(Question, row, path, line)
        raise DataError(path, f"metadata: expected an object, found {quoted(row)}", line=line)
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
    question = _with_marks(
        from_dict(Question, {**fields.own, "golden_answers": []}, path, line), fields.ours, path, line
    )
    return _Row(line, keys_of(row), fields, question, right_answers(fields, path, line))


def _answered(row: _Row, bases: dict[str, int], path: Path) -> Question:
    """The question of a row with its golden answers, and with its choices below it."""
    texts = [one if isinstance(one, str) else one.text(bases[one.column], path, row.line) for one in row.right.answers]
    question = dataclasses.replace(row.question, golden_answers=tuple(dict.fromkeys(texts)))
    return with_choices(question, list(row.fields.choices.texts.values()) if row.fields.choices else [])


def _with_marks(question: Question, ours: bool, path: Path, line: int) -> Question:
    """The question whose marks of gold passages, facts and parts can be read (`steprag.scores.gold`). Those of another
    data set that cannot be stay plain, beside the metadata. Raises DataError for those of a row of our form.
    """
    for names, read in ((GOLD, gold_of), (("facts",), facts_of), (("parts",), parts_of)):
        try:
            read(question)
        except ConfigError as error:
            if ours:
                raise DataError(path, str(error), line=line) from None
            plain_ones = {name: question.metadata[name] for name in names if name in question.metadata}
            metadata = {name: value for name, value in question.metadata.items() if name not in plain_ones}
            question = dataclasses.replace(question, metadata=metadata, extra={**question.extra, **plain_ones})
    return question


def read_passages(path: Path) -> Iterator[Passage]:
    """Every passage of a corpus file, streamed."""
    gone: list[LeftOut] = []
    for number, row in read_any_rows(path, gone):
        yield passage_from_row(row, path, number)
    say_left_out(gone)


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
