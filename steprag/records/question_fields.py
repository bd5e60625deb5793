"""What a row says of a question: its own fields, its answers, its choices, and what nobody reads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from steprag.errors import quoted
from steprag.records.json_text import literal
from steprag.records.spellings import (
    ALIASES,
    ANSWERS,
    ASKED,
    CHOICES,
    CONTEXTS,
    PLACES,
    QUESTION_IDS,
    QUESTION_NAMES,
    QUESTIONS,
    TURNING,
    UNANSWERABLE,
    WRONG,
    first,
    folded,
    plain,
    spelt,
    text_of,
)

_WITHIN = ("text", "texts", "value", "aliases", "answer", "spans", "number", "date")
"""Where an answer that is an object holds its texts (SQuAD, TriviaQA, KILT, DROP)."""
_DATE = ("day", "month", "year")
_NUMBERED = re.compile(r"answers?\d+")
"""Golden answers in columns of their own, folded (FreshQA)."""
_MARKS = ("supporting_titles", "supporting_ids", "supporting_facts", "facts", "parts", "choices")
"""Lists in the metadata."""
_LISTS = frozenset((*_MARKS, *ANSWERS, *ALIASES, *CHOICES, *WRONG, "metadata"))
"""Fields with a list or an object, which tables have as texts (PopQA's `possible_answers` is one in its own file)."""
_LISTED = re.compile(rf"\s*(\[\s*['\"]|\{{\s*['\"](?:{'|'.join(_WITHIN)})['\"]\s*:)")
"""The begin of a list of texts or of an object of them: an answer "[1, 2]" is a text."""
_LABELS, _LABELLED = ("label", "key", "letter", "id"), ("text", "value", "content", "option", "answer", "choice")
"""Names of a choice's label and of its text, where each choice is an object."""
_FLAGS = ("correct", "is_correct", "is_right", "right", "is_answer", "label")
"""Where such an object says whether it is a right one."""
_PLAIN = ("choices", "options")
"""Names of choices that mean nothing else: a text there is an error."""
_COLUMN = re.compile(r"(option|choice|op|opt|answer|ans|ending|sol|solution|hypothesis|hyp|)([a-j]|\d)")
"""A column of one choice, folded: `opa`, `Option B`, `option1`, or a letter alone."""
_ASKS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""COPA's questions about a `premise`."""
LETTER = r"\s*\(?(%s)[).:]\s*(\S.*)"
"""A choice that is written with its letter: `(A) granite`, `A. granite`."""


@dataclass(frozen=True)
class Choices:
    """Choices by their labels, in the order in which they are asked. `right`: those that are marked as right ones;
    `columns`: the text of each by its column, folded, where each has one.
    """

    texts: dict[str, str] = field(default_factory=dict)
    right: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QuestionFields:
    """What a row says of a question.

    `own`: the fields of `Question`, without golden answers, and unknown ones of a row of our form (`ours`). `answers`:
    texts, numbers and what is neither, from the column `column` and its aliases. `choices`: None for another shape.
    `place`: the column that names the right choice beside the answers, and its value. `unanswerable`: what says that
    there is no answer. `unread`: columns that may turn the row round and that nobody reads.
    """

    own: dict[str, Any]
    ours: bool
    answers: list[Any]
    column: str
    choices: Choices | None
    place: tuple[str, Any] | None = None
    unanswerable: str = ""
    unread: tuple[str, ...] = ()


def question_fields(row: dict[str, Any], line: int) -> QuestionFields:
    """The fields of a row in any spelling; `line` is the id of a row without one."""
    named = _opened(spelt(row, QUESTION_NAMES))
    ours = {"id", "question", "golden_answers"} <= named.keys()
    found = _own(named) if ours else _foreign(named, line)
    if found.own.get("dataset") is None and text_of(found.own["metadata"], "dataset") is None:  # Search-R1, verl
        found.own["dataset"] = text_of(named, "data_source")
    return found


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


def _own(row: dict[str, Any]) -> QuestionFields:
    """A row of our form; choices beside the metadata go into them."""
    given = _choice_field(row)
    fields = {name: value for name, value in row.items() if name not in (given, "golden_answers")}
    metadata = {**row["metadata"], **({"choices": row[given]} if given else {})}
    own, choices = {**fields, "id": plain(row.get("id")), "metadata": metadata}, choices_of(metadata.get("choices"))
    answers, none = _leaves(row["golden_answers"]), _unanswerable(row)
    return QuestionFields(own, True, answers, "golden_answers", choices, None, none, _unread(fields))


def _foreign(row: dict[str, Any], line: int) -> QuestionFields:
    """A row of another data set: its line is the id of one without; what is no field of a question is metadata."""
    rest = {name: value for name, value in row.items() if name not in ("metadata", "dataset")}
    asked = _asked(rest)
    column, answers = _taken(rest, ANSWERS)
    aliases = [rest.pop(name, None) for name in ALIASES]
    place = next(((name, rest[name]) for name in PLACES if _is_place(rest.get(name))), None)
    given, columns, answers = _given_choices(rest, answers, aliases, place)
    given = given or row["metadata"].get("choices")
    if given and not _leaves(answers):
        column, answers = _taken(rest, [place[0]] if place else PLACES)
        place = None
    aliases += [rest.pop(name) for name in [*rest] if _NUMBERED.fullmatch(folded(name))]
    name = _taken(rest, QUESTION_IDS)[1] if rest.keys() & set(QUESTION_IDS) else line
    own = {"id": plain(name), "question": asked, **{name: row[name] for name in ("dataset",) if name in row},
           "metadata": {**row["metadata"], **({"choices": given} if given else {}), **rest}}  # fmt: skip
    leaves = [*{repr(one): one for one in _leaves([answers, *aliases])}.values()]
    none = _unanswerable(row) or (f"{column}: {quoted(answers)}" if _is_empty(answers) and not leaves else "")
    choices = choices_of(given, columns)
    place = place if place and choices and _is_place(place[1], len(choices.texts)) else None
    unread = _unread({name: value for name, value in rest.items() if not (place and name == place[0])})
    unread += tuple(name for name in CONTEXTS if given and (text := text_of(rest, name)) and text not in str(asked))
    return QuestionFields(own, False, leaves, column, choices, place, none, unread)


def _asked(rest: dict[str, Any]) -> Any:
    """The question, taken out of the fields; other fields of one that is an object are put there."""
    asked = _taken(rest, QUESTIONS)[1]
    if isinstance(asked, dict):
        rest |= {name: value for name, value in asked.items() if name not in ASKED}
        return first(asked, ASKED)
    return f"{rest['premise']} {_ASKS[asked]}" if asked in (*_ASKS,) and text_of(rest, "premise") else asked


def _given_choices(
    rest: dict[str, Any], answers: Any, aliases: list[Any], place: tuple[str, Any] | None
) -> tuple[Any, dict[str, str], Any]:
    """Choices, taken out of the fields, with the text of each column that holds one; and the answers that are left.

    They stand in one field; in columns; in the answers, beside the place of the right one (ReClor, QuAIL) or with marks
    (MultiRC); or they are a right answer and wrong ones (SciQ, GPQA).
    """
    if name := _choice_field(rest):
        return rest.pop(name), {}, answers
    if labels := choice_columns(rest, numbered=place is not None):
        columns = {folded(name): plain(rest[name]) or "" for name in labels.values()}
        return {label: rest.pop(name) for label, name in labels.items()}, columns, answers
    if isinstance(answers, list) and len(answers) > 1 and (place or any(_right_marks(answers))):
        return answers, {}, None
    right = _leaves(answers)
    names = [name for name in rest if folded(name).rstrip("0123456789") in WRONG]
    if len(right) == 1 and not any(aliases) and (wrong := _leaves([rest[name] for name in names])):
        for name in names:
            del rest[name]
        return by_hash([*right, *wrong]), {}, answers
    return None, {}, answers


def _choice_field(row: dict[str, Any]) -> str | None:
    """The field with all choices; one whose name may mean something else holds them if it is a list or an object."""
    return next((name for name in CHOICES
                 if row.get(name) and (name in _PLAIN or isinstance(row[name], dict | list))), None)  # fmt: skip


def _taken(fields: dict[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    """The first of the names that is there and not null, and its value, taken out of the fields."""
    found = next((name for name in names if fields.get(name) is not None), None)
    return ("", None) if found is None else (found, fields.pop(found))


def _leaves(value: Any, depth: int = 4) -> list[Any]:
    """The answers in lists and objects of lists, in order; null is none."""
    if isinstance(value, dict) and depth:
        named = spelt(value, (*_WITHIN, *_DATE))
        if date := " ".join(text for name in _DATE if (text := plain(named.get(name)))):
            return [date]
        value = [named[name] for name in _WITHIN if name in named]
    if isinstance(value, list) and depth:
        return [answer for one in value for answer in _leaves(one, depth - 1)]
    return [] if value is None or value == "" else [value]


def _is_empty(value: Any) -> bool:
    """Whether answers are an empty list, or an object of SQuAD's form without any."""
    return isinstance(value, list) or (isinstance(value, dict) and bool(spelt(value, _WITHIN).keys() & {*_WITHIN}))


def _is_place(value: object, count: int = 99) -> bool:
    """Whether a value may be a letter or the number of one of so many choices, from 0 or from 1."""
    label = label_of(value).removesuffix(".0")
    return (len(label) == 1 and label in ascii_uppercase[:count]) or (label.isdecimal() and int(label[:9]) <= count)


def _unanswerable(row: dict[str, Any]) -> str:
    """The field of a row, or of its metadata, that says that the question has no answer; nothing where none does."""
    said = ((name, value) for name, value in (*row["metadata"].items(), *row.items())
            if str(value).strip().lower() in UNANSWERABLE.get(folded(name), ()))  # fmt: skip
    return next((f"{name}: {quoted(value)}" for name, value in said), "")


def _unread(fields: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, value in fields.items() if folded(name) in TURNING and value not in (None, "", [], {}))


def choice_columns(rest: dict[str, Any], *, numbered: bool) -> dict[str, str]:
    """Columns of choices by label (`opa`, `opb`; `option1`, `option2`; `A`, `B`), a letter or a number. Nothing where
    they do not count from A, 0 or 1. `answer1` is one where `numbered`, else an answer.
    """
    found: dict[str, dict[str, str]] = {}
    for key in rest:
        match = _COLUMN.fullmatch(folded(key)) if (plain(rest[key]) or "").strip() else None
        if match and (match[1] or key.isupper()) and (numbered or not _NUMBERED.fullmatch(match[0])):
            found.setdefault(match[1] + ("1" if match[2].isdecimal() else "a"), {})[match[2].upper()] = key
    for columns in found.values():
        labels = "".join(sorted(columns))
        if len(labels) > 1 and (ascii_uppercase.startswith(labels) or labels in "0123456789"[: len(labels) + 1]):
            return {label: columns[label] for label in labels}
    return {}


def choices_of(given: Any, columns: Mapping[str, str] | None = None) -> Choices | None:
    """Choices from a list of texts, letters with texts, labels beside texts (ARC, CommonsenseQA), or texts with marks
    of the right ones (TruthfulQA). Letters that repeat the labels are no part of the texts; blank choices are none.

    None for another shape.
    """
    pairs = [*_choice_pairs(given)] if isinstance(given, dict | list) else [("", None, None)] if given else []
    pairs = [(label, text, right) for label, text, right in pairs if text is not None and text != ""]
    if any(plain(text) is None for _, text, _ in pairs) or (given and not pairs):
        return None
    texts = {label_of(label): (plain(text) or "").strip() for label, text, _ in pairs}
    marks = [re.fullmatch(LETTER % re.escape(label), text, re.IGNORECASE | re.DOTALL) for label, text in texts.items()]
    if all(marks):
        texts = {label: mark[2] for label, mark in zip(texts, marks, strict=True) if mark}
    right = [text for text, (_, _, right) in zip(texts.values(), pairs, strict=False) if right]
    if right and [*texts.values()][: len(right)] == right:  # else the first is always a right one
        texts = dict(zip(texts, by_hash([*texts.values()]), strict=True))
    return Choices(texts, tuple(right), columns or {})


def _choice_pairs(given: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any, bool | None]]:
    """Label, text and whether it is right, where that is marked, of every choice."""
    if isinstance(given, dict):
        labels, texts = first(given, ("label", "labels")), first(given, ("text", "texts", "choices", "options"))
        if not isinstance(labels, list) or not isinstance(texts, list) or len(labels) != len(texts):
            yield from ((label, text, None) for label, text in given.items())
            return
        given = [{"label": label, "text": text} for label, text in zip(labels, texts, strict=True)]
    rights = _right_marks(given)
    for place, (one, right) in enumerate(zip(given, rights or [None] * len(given), strict=True)):
        named = spelt(one, (*_LABELS, *_LABELLED)) if isinstance(one, dict) else {}
        label, text = None if rights else first(named, _LABELS), first(named, _LABELLED)
        letter = ascii_uppercase[place] if place < len(ascii_uppercase) else place
        yield (letter, one, None) if text is None else (letter if label is None else label, text, right)


def _right_marks(given: list[Any]) -> list[bool]:
    """Whether each choice is right, where all of them are objects that say so (MultiRC); else nothing."""
    found = [first(spelt(one, _FLAGS), _FLAGS) if isinstance(one, dict) else None for one in given]
    return [bool(one) for one in found] if all(one in (0, 1) for one in found) else []


def label_of(value: object) -> str:
    """A label as it is compared: "(b)" is B."""
    return str(value).strip(" ().:\r\n\t").upper()


def by_hash(texts: Sequence[Any]) -> list[Any]:
    """The texts in an order that says nothing of which of them is right."""
    return sorted(texts, key=lambda text: hashlib.sha256(str(text).encode()).digest())
