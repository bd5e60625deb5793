"""Which texts are right: golden answers as a row gives them, beside its choices or without."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.fields import LETTER, plain
from steprag.types import Question


def golden_texts(answers: Sequence[Any], letters: dict[str, str], path: Path, line: int) -> list[str]:
    """The answers as texts, blank ones left out. `letters`: labels and texts of the choices. Raises DataError."""
    return [text for answer in answers for text in _texts(answer, letters, path, line) if text.strip()]


def _texts(answer: Any, letters: dict[str, str], path: Path, line: int) -> tuple[str, ...]:
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
    marked = re.fullmatch(LETTER % "|".join(map(re.escape, letters)), text, re.IGNORECASE | re.DOTALL)
    return (marked[2].strip() if marked and letters.get(marked[1].upper()) == marked[2].strip() else text,)


def with_choices(question: Question, texts: Sequence[str]) -> Question:
    """The question with its choices below it, one a line; as it is where it lists them already, or has none.

    Letters are left out, because normalising would take "A" for an article: an answer is the words of a choice.
    """
    if not texts:
        return question
    below = "".join(f"\n- {' '.join(text.split())}" for text in texts)
    return dataclasses.replace(question, question=question.question.removesuffix(below).rstrip() + below)
