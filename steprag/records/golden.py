"""Which texts are right: golden answers as a row gives them, beside its choices or without; the numbers of choices are
read once all rows of a file are known, for files count from 0 or from 1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.question_fields import LETTER, Choices, QuestionFields, label_of
from steprag.records.spellings import ANSWERS, FROM_ONE, folded, plain
from steprag.scores.metrics import normalise
from steprag.types import Question

UNANSWERED = "questions without an answer"
OFF_CHOICES = "questions whose golden answer is none of their choices"
SEVERAL = "questions with several right choices, which one answer cannot name"
_NO_ANSWER = frozenset({"no answer present", "no answer", "noanswer", "no answer found", "cannotanswer",
                        "cannot answer", "unanswerable", "not answerable"})  # fmt: skip
"""Golden answers, normalised, that say that there is none (MS MARCO, QuAC)."""
_NOT_AVAILABLE = re.compile(r"\s*(#?n/a|n\.a\.)\s*", re.IGNORECASE)
"""The same as spreadsheets have it; "NA" and "none" may be answers."""
_BETWEEN = re.compile(r"\band\b|[\s,;/&+、，]", re.IGNORECASE)
"""What stands between the letters of several choices."""
_RESULT = "\n#### "
"""What stands before the result of a worked solution (GSM8K)."""
_DECIMAL, _TRUTHS = re.compile(r"-?\d+(?:\.\d+)?"), frozenset({"true", "false"})


@dataclass(frozen=True)
class ChoicePlace:
    """A right choice by its number in a column, which counts from 0 or from 1 as its file does: from `first` where no
    row tells. `texts` are all choices.
    """

    column: str
    number: int
    texts: tuple[str, ...]
    first: int

    def text(self, base: int, path: Path, line: int) -> str:
        """The choice, where the column counts from `base`. Raises DataError where there is none."""
        if not 0 <= self.number - base < len(self.texts):
            problem = f"golden answer {self.number} is no choice and no place of one: there are {len(self.texts)}"
            raise DataError(path, f"{problem}, from {base}", line=line)
        return self.texts[self.number - base]

    @property
    def either(self) -> set[str]:
        """The choices that it may mean."""
        return {self.texts[at] for at in (self.number - 1, self.number) if 0 <= at < len(self.texts)}


@dataclass(frozen=True)
class Right:
    """The right answers of a row; or why the row is left out: the kind and its words."""

    answers: tuple[str | ChoicePlace, ...] = ()
    left_out: tuple[str, str] | None = None


def right_answers(fields: QuestionFields, path: Path, line: int) -> Right:
    """The right answers of a row. Raises DataError where they are no texts or numbers, or contradict one another."""
    choices, answers = fields.choices or Choices(), [one for one in fields.answers if str(one).strip()]
    for one in answers:
        if not isinstance(one, bool) and plain(one) is None:
            problem = f"golden_answers: should be a list of texts or numbers, found {quoted(one)}"
            raise DataError(path, f"Question: {problem}", line=line)
    if fields.unanswerable:
        return Right(left_out=(UNANSWERED, fields.unanswerable))
    if not choices.texts:
        kept = [one for one in answers if not _says_none(one)]
        said = (UNANSWERED, quoted(answers[0])) if answers and not kept else None
        return Right(tuple(text for one in kept for text in _texts(one)), said)
    answers = answers or [*choices.right]
    if any(plain(one) in ("-1", "-1.0") for one in answers):  # of a test split whose labels are hidden
        return Right(left_out=(UNANSWERED, f"{fields.column}: -1"))
    meant = [_meant(one, fields.column, choices, path, line) for one in answers]
    found = [*dict.fromkeys(one for one in meant if one is not None)]
    if any(_several(one, choices) for one in answers) or (len(found) > 1 and not fields.ours):
        return Right(left_out=(SEVERAL, ", ".join(map(quoted, answers))))
    if answers and not found:
        return Right(left_out=(OFF_CHOICES, quoted(answers[0])))
    if fields.place and found:
        _check_place(fields.place, found, choices, path, line)
    ordered = (one for answer, choice in zip(answers, meant, strict=True)
               for one in (_texts(answer) if choice is None else (choice,)))  # fmt: skip
    return Right(tuple(dict.fromkeys(ordered)))


def _says_none(answer: Any) -> bool:
    return isinstance(answer, str) and (normalise(answer) in _NO_ANSWER or bool(_NOT_AVAILABLE.fullmatch(answer)))


def _texts(answer: Any) -> tuple[str, ...]:
    """An answer as texts: true is yes and true."""
    if isinstance(answer, bool):
        return ("yes", "true") if answer else ("no", "false")
    return ((plain(answer) or "").rpartition(_RESULT)[2],)


def _meant(answer: Any, column: str, choices: Choices, path: Path, line: int) -> str | ChoicePlace | None:
    """The choice that an answer means: it is its text, its label or letter, its column, or its number. A number is a
    label where the labels are numbers (ARC). None where it means none.
    """
    text, texts = _texts(answer)[0].strip(), tuple(choices.texts.values())
    if isinstance(answer, str) and text in texts:
        return text
    label = label_of(text)
    digits = label.removesuffix(".0")
    number = digits.isdecimal() and (not isinstance(answer, str) or len(digits) < 3)
    if label in choices.texts and not (number and choices.columns):
        return choices.texts[label]
    if folded(text) in choices.columns:
        return choices.columns[folded(text)]
    if number and text in texts and int(digits) >= len(texts):
        return text
    if number and any(map(str.isdecimal, choices.texts)) and not choices.columns:
        problem = f"golden answer {text} is no choice and no place of one: the choices are {', '.join(choices.texts)}"
        raise DataError(path, problem, line=line)
    if number:
        return ChoicePlace(column, int(digits), texts, _first(column, choices))
    marked = re.fullmatch(LETTER % "|".join(map(re.escape, choices.texts)), text, re.IGNORECASE | re.DOTALL)
    if marked and choices.texts.get(marked[1].upper()) == marked[2].strip():
        return marked[2].strip()
    alike = {*map(normalise, _texts(answer))}
    return next((one for one in texts if normalise(one) in alike), None)


def _first(column: str, choices: Choices) -> int:
    """From where the numbers of a column count if no row tells."""
    if column in ANSWERS and choices.columns:  # as the columns do (WinoGrande)
        return int(next(iter(choices.texts))) if next(iter(choices.texts)).isdecimal() else 0
    return int(column in FROM_ONE or "answera" in choices.columns)  # SocialIQA


def _several(answer: Any, choices: Choices) -> bool:
    """Whether an answer is the letters of several choices, such as CD or "A, C"."""
    letters = _BETWEEN.sub("", answer) if isinstance(answer, str) and len(answer) < 80 else ""
    return (1 < len({*letters}) == len(letters) and letters.isupper() and {*letters} <= {*choices.texts}
            and answer not in choices.texts.values())  # fmt: skip


def _check_place(
    place: tuple[str, Any], found: Sequence[str | ChoicePlace], choices: Choices, path: Path, line: int
) -> None:
    """Raises DataError where the column that names the right choice names another one than the answers do."""
    named = _meant(place[1], place[0], choices, path, line)
    sides = [set[str]() if one is None else {one} if isinstance(one, str) else one.either for one in (named, *found)]
    if sides[0] and not sides[0] & set[str]().union(*sides[1:]):
        problem = f"{place[0]} {quoted(place[1])} is another choice than the answer, {quoted(sorted(sides[1])[0])}"
        raise DataError(path, problem, line=line, remedy="name the right column: --columns answer=NAME")


def counted_from(rows: Iterable[tuple[int, Right]], path: Path) -> tuple[dict[str, int], list[str]]:
    """From where each column of places counts in a file, 0 or 1, and what is to be said of it. Raises DataError where
    it does both.
    """
    columns = defaultdict[str, list[tuple[int, ChoicePlace]]](list)
    for line, right in rows:
        for one in right.answers:
            if isinstance(one, ChoicePlace):
                columns[one.column].append((line, one))
    bases, notes = dict[str, int](), list[str]()
    for column, places in columns.items():
        zero = next((line for line, one in places if one.number == 0), None)
        last = next((line for line, one in places if one.number == len(one.texts)), None)
        if zero is not None and last is not None:
            problem = f"{column} counts choices from 0 in line {zero}, and from 1 in line {last}"
            raise DataError(path, problem, line=last, remedy="write the texts of the right choices")
        first = int(column == "cop" and len(places) > 1) or places[0][1].first
        bases[column] = 0 if zero is not None else 1 if last is not None else first
        if bases[column] > places[0][1].first:
            notes.append(f"{path}: {column} counts choices from 1")
        elif zero is None and last is None and not first:
            notes.append(f"{path}: no row tells whether {column} counts choices from 0 or from 1; taken is from 0")
    return bases, notes


def whole_columns(questions: Sequence[Question], path: Path) -> tuple[list[Question], list[str]]:
    """The questions of a file whose answers lost their type in a table: where every answer that is a number has a
    point, as pandas writes them, 1994.0 is 1994; where all are True or False, these are yes and no. And what is to be
    said of it.
    """
    texts = [text for one in questions if "choices" not in one.metadata for text in one.golden_answers]
    numbers = [text for text in texts if _DECIMAL.fullmatch(text)]
    whole = (
        {text: (text[:-2],) for text in numbers if text.endswith(".0")} if all("." in one for one in numbers) else {}
    )
    truths = {text: _texts(text.lower() == "true") for text in texts} if {*map(str.lower, texts)} <= _TRUTHS else {}
    if not whole and not truths:
        return [*questions], []
    said = {**whole, **truths}
    changed = [replace(one, golden_answers=tuple(dict.fromkeys(new for text in one.golden_answers
                                                               for new in said.get(text, (text,)))))
               for one in questions]  # fmt: skip
    count, example = sum(text in whole for text in texts), quoted(next(iter(whole), ""))
    note = f"{path}: {count:,} of {len(texts):,} golden answers end in .0, such as {example}: they are read without it"
    return changed, [note] if whole else []


def with_choices(question: Question, texts: Sequence[str]) -> Question:
    """The question with its choices below it, one a line; as it is where it lists them already, or has none.

    Letters are left out, because normalising would take "A" for an article: an answer is the words of a choice.
    """
    if not texts:
        return question
    below = "".join(f"\n- {' '.join(text.split())}" for text in texts)
    return replace(question, question=question.question.removesuffix(below).rstrip() + below)
