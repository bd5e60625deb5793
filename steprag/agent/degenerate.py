"""Text that no longer says anything: a model that repeats itself, or writes the marks of its chat template as words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_LETTERS = re.compile(r"[^\W\d_]{12,}")
"""Runs of letters as long as the shortest repetition that counts: six letters twice."""
_ROLES = re.compile(
    r"(?:\b(?:system|user|assistant|im_start|im_end|endoftext|eos|bos|pad|unk)\b[\W_]*){4,}", re.IGNORECASE
)
"""Four names of a chat template in a row. Three may be a list of them."""
_BASES = frozenset("ACGTUN")
"""What DNA is written in, which repeats itself."""
LOOKED_AT = 20_000
"""Characters of a text."""
LONGEST = 24
"""Letters, or words, of a unit whose repetition is looked for."""
WRITTEN_TOGETHER = {1: 40, 2: 20, 3: 14}
"""How often a unit of so many letters must stand in a row without a blank; one of more letters, four times. In upper
case twice, if it has six: a model that may not write a control token repeats a word in its place.
"""
APART, SHORT, LISTED = 6, 10, 20
"""How often a unit of words must stand in a row; one of three letters at most; and where marks stand between its words,
as in lists, tables and code.
"""


def degenerate(text: str) -> str | None:
    """The unit that a text repeats where no person would, or the names that it has in a row; else None. Digits and
    marks may repeat. Time and memory are linear in the text.
    """
    looked_at = text[:LOOKED_AT]
    if roles := _ROLES.search(looked_at):
        return roles.group()
    together = map(_together, _LETTERS.findall(looked_at))
    return next(filter(None, together), None) or _apart(looked_at.split())


def _together(letters: str) -> str | None:
    for size in _sizes(letters, 4 if letters.islower() else 2):
        start, repeats = _longest(letters, size)
        unit = letters[start : start + size]
        doubled = repeats >= 2 and size > 5 and unit.isupper()
        if (doubled or repeats >= WRITTEN_TOGETHER.get(size, 4)) and not {*unit} <= _BASES:
            return unit
    return None


def _apart(words: Sequence[str]) -> str | None:
    for size in _sizes(words, APART):
        start, repeats = _longest(words, size)
        unit = words[start : start + size]
        letters = sum(map(str.isalpha, "".join(unit)))
        prose = all(word.strip(".,;:!?…").isalpha() for word in unit)
        least = LISTED if not prose else SHORT if letters <= 3 else APART
        if letters > 1 and repeats >= least:
            return " ".join(unit)
    return None


def _sizes(units: Sequence[str], least: int) -> range:
    """How many units may be repeated `least` times in a row: every repetition brings as many that stood before."""
    return range(1, min(LONGEST, (len(units) - len({*units})) // (least - 1)) + 1)


def _longest(units: Sequence[str], size: int) -> tuple[int, int]:
    """Where the longest run of repetitions of `size` units begins, and how often the first of them stands there."""
    breaks = [place for place in range(len(units) - size) if units[place] != units[place + size]]
    ends = [-1, *breaks, max(len(units) - size, 0)]
    start, end = max(pairwise(ends), key=lambda run: run[1] - run[0])
    return start + 1, 1 + (end - start - 1) // size
