"""Choices of a question: how files write them, and which of them a golden answer is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.spellings import first, folded, literal, plain, spelt
from steprag.types import Question

_LABELS, _LABELLED = ("label", "key", "letter", "id"), ("text", "value", "content", "option", "answer")
"""Names of a choice's label and of its text, where each choice is an object."""
_COLUMN = re.compile(r"(?!answer\d)(option|choice|op|answer|ending|sol|)([a-j]|\d)")
"""A column of one choice, folded: `opa`, `Option B`, `option1`, or a letter alone."""
_MARK = r"\s*\(?(%s)[).:]\s*(\S.*)"
"""A choice that is written with its letter: `(A) granite`, `A. granite`."""


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


def golden_texts(answer: Any, letters: dict[str, str], path: Path, line: int) -> tuple[str, ...]:
    """An answer as texts. Beside choices a number is a label where the labels are numbers (ARC), else the place of a
    choice, from 0 (FlashRAG, MMLU); a letter is its choice. A text that is a choice is that choice.
    """
    if isinstance(answer, bool):
        return ("yes", "true") if answer else ("no", "false")
    text, texts = plain(answer), list(letters.values())
    if text is None:
        problem = f"golden_answers: should be a list of texts or numbers, found {quoted(answer)}"
        raise DataError(path, f"Question: {problem}", line=line)
    if not letters or (isinstance(answer, str) and text in texts):
        return (text,)
    label = text.strip(" ().:").upper()
    if label in letters:
        return (letters[label],)
    counted = label.isdecimal() and len(label) < 9 and not any(map(str.isdecimal, letters))
    if counted and int(label) < len(texts):
        return (texts[int(label)],)
    if text not in texts and (not isinstance(answer, str) or (label.isdecimal() and len(label) < 3)):
        known = f"there are {len(texts)}, from 0" if counted else f"the choices are {', '.join(letters)}"
        raise DataError(path, f"golden answer {text} is no choice and no place of one: {known}", line=line)
    marked = re.fullmatch(_MARK % "|".join(map(re.escape, letters)), text, re.IGNORECASE | re.DOTALL)
    return (marked[2].strip() if marked and letters.get(marked[1].upper()) == marked[2].strip() else text,)


def lettered(given: Any) -> dict[str, str] | None:
    """Labels and texts of choices: a list of texts, letters with texts, or labels beside texts (ARC, CommonsenseQA).
    Marks that repeat the labels are no part of the texts.

    Empty without choices; None for another shape.
    """
    given = literal(given) or given if isinstance(given, str) else given
    pairs = list(_choice_pairs(given)) if isinstance(given, dict | list) else [] if not given else [("", None)]
    found = {str(label).strip(" ().:").upper(): plain(text) for label, text in pairs}
    if None in found.values():
        return None
    texts = {label: text for label, text in found.items() if text is not None}
    marks = [re.fullmatch(_MARK % re.escape(label), text, re.IGNORECASE | re.DOTALL) for label, text in texts.items()]
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


def with_choices(question: Question, texts: Sequence[str]) -> Question:
    """The question with its choices below it, one a line; as it is where it lists them already, or has none.

    Letters are left out, because normalising would take "A" for an article: an answer is the words of a choice.
    """
    if not texts:
        return question
    below = "".join(f"\n- {' '.join(text.split())}" for text in texts)
    return dataclasses.replace(question, question=question.question.removesuffix(below).rstrip() + below)
