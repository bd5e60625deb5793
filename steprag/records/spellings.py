"""One row of a question file or a corpus, in the field names that data sets and index builders use."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from steprag.errors import DataError, quoted, shortened
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import from_dict
from steprag.types import Passage, Question

PASSAGE_IDS = ("id", "_id", "pid", "passage_id", "psg_id", "chunk_id", "docid", "doc_id", "document_id", "docno")
"""Of several names of one field the first that is not null counts. A chunk's own id stands before its document's."""
TEXTS = ("contents", "text", "passage", "segment", "content", "page_content", "body", "passage_text", "paragraph",
         "paragraph_text", "sentences", "chunk", "document", "abstract")  # fmt: skip
TITLES = ("title", "wikipedia_title", "page_title", "doc_title", "article_title")
QUESTION_IDS = ("id", "_id", "qid", "question_id", "query_id")
QUESTIONS = ("question", "query", "input", "problem", "question_stem")
ANSWERS = ("golden_answers", "answers", "answer", "possible_answers", "reference_answer", "reference_answers",
           "gold_answers", "gold_answer", "ground_truth", "answerKey", "output", "target")  # fmt: skip
ALIASES = ("answer_aliases", "aliases")
"""More golden answers beside those of ANSWERS (MuSiQue)."""
CHOICES = ("choices", "options")
_WITHIN = ("text", "value", "aliases", "answer")
"""Where an answer that is an object holds its texts (SQuAD, TriviaQA, KILT)."""
_KILT = re.compile(r"(?:Section|BULLET)::::-?\s*")
"""Marks of headings and lists in KILT's texts."""


def plain(value: object) -> str | None:
    """A text or finite number as text; None for anything else. A whole number has no point: 3.0 is "3"."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def keys_of(row: object) -> str:
    """The keys of a row for a message, or what it is in place of an object."""
    return shortened(", ".join(map(repr, row)), 160) if isinstance(row, dict) else f"none, it is {quoted(row)}"


def passage_from_row(row: object, path: Path | str, line: int) -> Passage:
    """A passage from any spelling (PASSAGE_IDS, TEXTS, TITLES), whose text may be a list of paragraphs or sentences.

    Without a title of its own, the first line of `contents` is the title (FlashRAG) and a single line is a text without
    a title. Titles lose the quotation marks that FlashRAG's corpora wrap them in. Raises DataError.
    """
    fields = row if isinstance(row, dict) else {}
    name, given = plain(_first(fields, PASSAGE_IDS)), _first(fields, TEXTS)
    text = _joined(given)
    if not (name or "").strip() or text is None:
        needs = '"contents", or "title" and "text"' if text is None and (name or "").strip() else 'an "id"'
        raise DataError(path, f"a passage needs {needs}; keys found: {keys_of(row)}", line=line)
    title = _bare(plain(_first(fields, TITLES)) or "")
    if given is fields.get("contents") or isinstance(given, list):
        title, text = _split(title, text)
    if not text.strip():
        raise DataError(path, f"passage {quoted(name)} has no text", line=line, remedy="the first line is the title")
    return Passage(name or "", title, text.strip())


def _split(title: str, text: str) -> tuple[str, str]:
    """Title and text: the first line is the title where none is given, and goes where it is the one that is given."""
    first, newline, rest = text.partition("\n")
    bare = _bare(first)
    if not newline and (bare == first.strip() or '"' in bare):  # one line, and no title in quotation marks
        return title, text
    return (bare, rest) if title in ("", bare) else (title, text)


def _first(fields: dict[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _joined(value: object) -> str | None:
    """A text, or the paragraphs or sentences of a list (of lists) as one; None for anything else."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    parts = [part for one in value for part in (one if isinstance(one, list) else [one])]
    if not all(isinstance(part, str) for part in parts):
        return None
    return "\n".join(filter(None, (_KILT.sub("", part).strip() for part in parts)))


def _bare(title: str) -> str:
    title = title.strip()
    return title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title


def question_from_row(row: object, path: Path, line: int) -> Question:
    """A question from any spelling, with its choices below it and its golden answers as texts; blank ones are left out.

    Numbers are texts, true and false also yes and no. Raises DataError.
    """
    if not isinstance(row, dict) or not isinstance(row.get("metadata") or {}, dict):
        return from_dict(Question, row, path, line)
    fields = _own(row) if "golden_answers" in row else _foreign(row, line)
    if fields.get("question") is None:
        raise DataError(
            path, f'a question needs "question" and "golden_answers"; keys found: {keys_of(row)}', line=line
        )
    choices = fields["metadata"].get("choices")
    letters = _lettered(choices)
    if letters is None:
        problem = f"question {quoted(fields.get('id'))}: metadata.choices cannot be read"
        raise DataError(path, problem, line=line, remedy="give a list of texts, or letters with texts")
    answers = _answers(fields["golden_answers"])
    golden = [text for answer in answers for text in _golden(answer, letters, path, line) if text.strip()]
    question = from_dict(Question, {**fields, "golden_answers": golden}, path, line)
    return _with_choices(question, list(letters.values()))


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """A row of our form; choices beside the metadata go into them."""
    given = [name for name in CHOICES if row.get(name)]
    fields = {name: value for name, value in row.items() if name not in given[:1]}
    metadata = {**(row.get("metadata") or {}), **({"choices": row[given[0]]} if given else {})}
    return {**fields, "id": plain(row.get("id")), "metadata": metadata}


def _foreign(row: dict[str, Any], line: int) -> dict[str, Any]:
    """A row of another data set: its line is the id of one without; what is no field of a question is metadata."""
    rest = {name: value for name, value in row.items() if name not in ("metadata", "dataset")}
    answers = [_taken(rest, ANSWERS), *(rest.pop(name, None) for name in ALIASES)]
    name = _taken(rest, QUESTION_IDS) if rest.keys() & set(QUESTION_IDS) else line
    own = {"id": plain(name), "question": _taken(rest, QUESTIONS), "golden_answers": answers}
    choices = _taken(rest, CHOICES)
    metadata = {**(row.get("metadata") or {}), **({"choices": choices} if choices else {}), **rest}
    return {**own, "metadata": metadata, **({"dataset": row["dataset"]} if "dataset" in row else {})}


def _taken(fields: dict[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of the names that is there and not null, taken out of the fields."""
    found = next((name for name in names if fields.get(name) is not None), None)
    return None if found is None else fields.pop(found)


def _answers(value: Any, depth: int = 4) -> list[Any]:
    """The answers in lists and objects of lists, in order; null is none. PopQA writes its list as a text."""
    if isinstance(value, str) and value.startswith('["'):
        with suppress(NotJson):
            value = decoded(value)
    if isinstance(value, dict) and depth:
        value = [value[name] for name in _WITHIN if name in value]
    if isinstance(value, list) and depth:
        return [answer for one in value for answer in _answers(one, depth - 1)]
    return [] if value is None else [value]


def _golden(answer: Any, letters: dict[str, str], path: Path, line: int) -> tuple[str, ...]:
    """An answer as texts. Beside choices a number is the place of one, from 0 (FlashRAG), and a letter its text."""
    if isinstance(answer, bool):
        return ("yes", "true") if answer else ("no", "false")
    text, texts = plain(answer), list(letters.values())
    if text is None:
        problem = f"golden_answers: should be a list of texts or numbers, found {quoted(answer)}"
        raise DataError(path, f"Question: {problem}", line=line)
    if letters and not isinstance(answer, str):
        if text.isdecimal() and int(text) < len(texts):
            return (texts[int(text)],)
        if text not in texts:
            problem = f"golden answer {text} is no choice and no place of one: there are {len(texts)}, from 0"
            raise DataError(path, problem, line=line)
    return (text if text in texts else letters.get(text.strip(" ().:").upper(), text),)


def _lettered(given: Any) -> dict[str, str] | None:
    """Letters and texts of choices: a list of texts, letters with texts, or labels beside texts (ARC, CommonsenseQA).

    Empty without choices; None for another shape.
    """
    pairs = list(_choice_pairs(given)) if isinstance(given, dict | list) else [] if not given else [("", None)]
    texts = [plain(text) for _, text in pairs]
    if None in texts:
        return None
    return {
        str(letter).strip().upper(): text for (letter, _), text in zip(pairs, texts, strict=True) if text is not None
    }


def _choice_pairs(given: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    if isinstance(given, dict):
        labels, texts = given.get("label"), given.get("text")
        if isinstance(labels, list) and isinstance(texts, list) and len(labels) == len(texts):
            yield from zip(labels, texts, strict=True)
        else:
            yield from given.items()
        return
    for place, one in enumerate(given):
        labelled = isinstance(one, dict) and {"label", "text"} <= one.keys()
        letter = ascii_uppercase[place] if place < len(ascii_uppercase) else place
        yield (one["label"], one["text"]) if labelled else (letter, one)


def _with_choices(question: Question, texts: Sequence[str]) -> Question:
    """The question with its choices below it, one a line; as it is where it lists them already, or has none.

    Letters are left out, because normalising would take "A" for an article: an answer is the words of a choice.
    """
    if not texts:
        return question
    below = "".join(f"\n- {' '.join(text.split())}" for text in texts)
    return dataclasses.replace(question, question=question.question.removesuffix(below).rstrip() + below)
