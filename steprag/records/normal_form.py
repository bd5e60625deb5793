"""Unicode's normal forms in time that is linear in the text."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise
from typing import Literal

MARKS = 64
"""Marks in a row that are put into Unicode's order together; no language writes nearly so many."""


def normal_form(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """As `unicodedata.normalize`, which sorts marks by insertion: of a longer run, each `MARKS` are sorted alone."""
    if text.isascii() or _marks().isdisjoint(text[::MARKS]):  # a longer run holds one of these places
        return unicodedata.normalize(form, text)
    ends = [found.end() for found in _runs().finditer(text)]
    return "".join(unicodedata.normalize(form, text[start:end]) for start, end in pairwise([0, *ends, len(text)]))


@cache
def _marks() -> frozenset[str]:
    """Characters that are marks, or become some."""
    letters = map(chr, range(0x300, 0x1F000))  # Unicode has none beyond
    return frozenset(one for one in letters if unicodedata.combining(unicodedata.normalize("NFKD", one)[0]))


@cache
def _runs() -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(_marks()))}]{{{MARKS}}}")
