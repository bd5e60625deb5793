"""The fields of one row, by our names and as plain values: what a question's own are, its answers and its choices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_uppercase
from typing import Any

from steprag.errors import quoted, shortened
from steprag.records.json_text import literal
from steprag.records.spellings import (
    ALIASES,
    ANSWERS,
    ASKED,
    CHOICES,
    PASSAGE_IDS,
    PASSAGE_NAMES,
    PLACES,
    QUESTION_IDS,
    QUESTION_NAMES,
    QUESTIONS,
    TEXTS,
    folded,
)

_WITHIN = ("text", "value", "aliases", "answer", "spans")
"""Where an answer that is an object holds its texts (SQuAD, TriviaQA, KILT, DROP)."""
_NUMBERED = re.compile(r"answers?\d+")
"""Golden answers in columns of their own, folded (FreshQA)."""
_MARKS = ("supporting_titles", "supporting_ids", "supporting_facts", "facts", "parts", "choices")
"""Lists in the metadata."""
_LISTS = frozenset((*_MARKS, *ANSWERS, *CHOICES, "metadata"))
"""Fields with a list or an object, which tables have as texts (PopQA's `possible_answers` is one in its own file)."""
_LISTED = re.compile(r"\s*\[\s*['\"]")
"""The begin of a list of texts: an answer "[1, 2]" is a text."""
_LABELS, _LABELLED = ("label", "key", "letter", "id"), ("text", "value", "content", "option", "answer")
"""Names of a choice's label and of its text, where each choice is an object."""
_COLUMN = re.compile(r"(?!answer\d)(option|choice|op|answer|ending|sol|)([a-j]|\d)")
"""A column of one choice, folded: `opa`, `Option B`, `option1`, or a letter alone."""
LETTER = r"\s*\(?(%s)[).:]\s*(\S.*)"
"""A choice that is written with its letter: `(A) granite`, `A. granite`."""
_KILT = re.compile(r"(?:Section|BULLET)::::-?\s*")
"""Marks of headings and lists in KILT's texts."""


@dataclass(frozen=True)
class QuestionFields:
    """What a row says of a question. `own`: the fields of `Question`, without golden answers, and unknown ones of a row
    of our form. `answers`: texts, numbers and what is neither. `choices`: labels and texts, None for another shape.
    """

    own: dict[str, Any]
    answers: list[Any]
    choices: dict[str, str] | None


def question_fields(row: dict[str, Any], line: int) -> QuestionFields:
    """The fields of a row in any spelling; `line` is the id of a row without one."""
    named = _opened(spelt(row, QUESTION_NAMES))
    own = _own(named) if {"id", "question", "golden_answers"} <= named.keys() else _foreign(named, line)
    if own.get("dataset") is None and text_of(own["metadata"], "dataset") is None:  # Search-R1, verl
        own["dataset"] = text_of(named, "data_source")
    return QuestionFields(own, _answers(own.pop("golden_answers")), lettered(own["metadata"].get("choices")))


def _opened(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its metadata as an object, and lists that a table or Python has as texts as lists. Metadata that are
    no object stay a text under their name (SimpleQA).
    """
    texts = {name: value for name, value in row.items() if isinstance(value, str) and value.lstrip()[:1] in ("[", "{")}
    found = {name: given for name in texts.keys() & _LISTS if (given := literal(texts[name])) is not None}
    found = {name: given for name, given in found.items() if name not in ANSWERS or _LISTED.match(texts[name])}
    metadata = found.get("metadata", row.get("metadata")) or {}
    if not isinstance(metadata, dict):
        metadata = {"metadata": row["metadata"]} if row["metadata"].strip() else {}
    marks = {name: given for name in _MARKS if isinstance(mark := metadata.get(name), str)
             and (given := literal(mark)) is not None}  # fmt: skip
    return {**row, **found, "metadata": {**metadata, **marks}}


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """A row of our form; choices beside the metadata go into them."""
    given = [name for name in CHOICES if row.get(name)]
    fields = {name: value for name, value in row.items() if name not in given[:1]}
    metadata = {**row["metadata"], **({"choices": row[given[0]]} if given else {})}
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
    metadata = {**row["metadata"], **({"choices": choices} if choices else {}), **rest}
    return {**own, "metadata": metadata, **({"dataset": row["dataset"]} if "dataset" in row else {})}


def _taken(fields: dict[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of the names that is there and not null, taken out of the fields."""
    found = next((name for name in names if fields.get(name) is not None), None)
    return None if found is None else fields.pop(found)


def _answers(value: Any, depth: int = 4) -> list[Any]:
    """The answers in lists and objects of lists, in order; null is none."""
    if isinstance(value, dict) and depth:
        named = spelt(value, _WITHIN)
        value = [named[name] for name in _WITHIN if name in named]
    if isinstance(value, list) and depth:
        return [answer for one in value for answer in _answers(one, depth - 1)]
    return [] if value is None else [value]


def choice_columns(rest: dict[str, Any]) -> dict[str, Any]:
    """Choices in columns of their own (`opa`, `opb`; `option1`, `option2`; `A`, `B`), by letter or number, taken out of
    the fields. Nothing where they do not count from A, 0 or 1.
    """
    found: dict[str, dict[str, str]] = {}
    for key in rest:
        match = _COLUMN.fullmatch(folded(key))
        if match and (match[1] or key.isupper()) and plain(rest[key]) is not None:
            found.setdefault(match[1] + ("1" if match[2].isdecimal() else "a"), {})[match[2].upper()] = key
    for columns in found.values():
        labels = "".join(sorted(columns))
        if len(labels) > 1 and (ascii_uppercase.startswith(labels) or labels in "0123456789"[: len(labels) + 1]):
            return {label: rest.pop(columns[label]) for label in labels}
    return {}


def lettered(given: Any) -> dict[str, str] | None:
    """Labels and texts of choices: a list of texts, letters with texts, or labels beside texts (ARC, CommonsenseQA).
    Marks that repeat the labels are no part of the texts.

    Empty without choices; None for another shape.
    """
    pairs = list(_choice_pairs(given)) if isinstance(given, dict | list) else [] if not given else [("", None)]
    found = {str(label).strip(" ().:").upper(): plain(text) for label, text in pairs}
    if None in found.values():
        return None
    texts = {label: text for label, text in found.items() if text is not None}
    marks = [re.fullmatch(LETTER % re.escape(label), text, re.IGNORECASE | re.DOTALL) for label, text in texts.items()]
    return {label: mark[2] if mark and all(marks) else texts[label] for label, mark in zip(texts, marks, strict=True)}


def _choice_pairs(given: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    if isinstance(given, dict):
        labels, texts = given.get("label"), given.get("text")
        if isinstance(labels, list) and isinstance(texts, list) and len(labels) == len(texts):
            yield from zip(labels, texts, strict=True)
        else:
            yield from given.items()
        return
    for place, one in enumerate(given):
        named = spelt(one, (*_LABELS, *_LABELLED)) if isinstance(one, dict) else {}
        label, text = first(named, _LABELS), first(named, _LABELLED)
        letter = ascii_uppercase[place] if place < len(ascii_uppercase) else place
        yield (letter, one) if label is None or text is None else (label, text)


def text_of(metadata: dict[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None


def plain(value: object) -> str | None:
    """A text or finite number as text; None for anything else. A whole number has no point: 3.0 is "3"."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def keys_of(row: object) -> str:
    """The keys of a row for a message, or what it is in place of an object."""
    return shortened(", ".join(map(repr, row)), 160) if isinstance(row, dict) else f"none, it is {quoted(row)}"


def joined(value: object) -> str | None:
    """A text, or the paragraphs or sentences of a list (of lists) as one; None for anything else."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    parts = [part for one in value for part in (one if isinstance(one, list) else [one])]
    if not all(isinstance(part, str) for part in parts):
        return None
    return "\n".join(filter(None, (_KILT.sub("", part).strip() for part in parts)))


@lru_cache(maxsize=256)
def _respelt(keys: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """Keys of a row that are a name in another case or with other joints, and that name; of two keys the first."""
    free = {folded(name): name for name in reversed(names) if name not in keys}
    found = {key: free.pop(folded(key), "") for key in keys if key not in names}
    return {key: name for key, name in found.items() if name}


def spelt(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The row with the names of a table as the table spells them."""
    known = _respelt(tuple(row), names)
    return {known.get(key, key): value for key, value in row.items()} if known else row


def first(fields: dict[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def has_id(value: dict[str, Any]) -> bool:
    """Whether an object has an id of its own, as no envelope around rows has."""
    names = (*PASSAGE_IDS, *QUESTION_IDS)
    return plain(first(spelt(value, names), names)) is not None


def is_question(value: object) -> bool:
    """Whether a JSON value is a row with a question."""
    asked = first(spelt(value, QUESTION_NAMES), QUESTIONS) if isinstance(value, dict) else None
    return isinstance(asked, str) or (isinstance(asked, dict) and bool(asked.keys() & {*ASKED}))


def is_passage(value: object) -> bool:
    """Whether a JSON value is a row with a text, be it without an id."""
    return isinstance(value, dict) and joined(first(spelt(value, PASSAGE_NAMES), TEXTS)) is not None
