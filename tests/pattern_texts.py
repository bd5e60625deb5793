"""Long texts that are hard for a regular expression, found in its own parts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import product
from re import _constants as ops  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

Shape = tuple[str, str, str]
"""How a text begins, what comes again and again, and how it ends."""
ODD = "aA0 \n\t!.,-(<[\"'_é中\0\u0301…"
ENDS = ("", "\0", "a", "!")
_CLASSES = {ops.CATEGORY_SPACE: " \n", ops.CATEGORY_DIGIT: "0", ops.CATEGORY_WORD: "a0", ops.CATEGORY_NOT_SPACE: "a!",
            ops.CATEGORY_NOT_DIGIT: "a!", ops.CATEGORY_NOT_WORD: " !"}  # fmt: skip
_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)


def long(shape: Shape, size: int) -> str:
    """The text of that shape with about so many characters."""
    before, body, end = shape
    return before + body * (size // len(body)) + end


def shapes(pattern: re.Pattern[Any], most: int, seed: int) -> list[Shape]:
    """At most so many shapes: runs of what a pattern mentions and of what it does not, also behind what leads to one of
    its repeats.
    """
    parts = parser.parse(pattern.pattern, pattern.flags)
    own, whole = [*dict.fromkeys(_mentioned(parts))][:40], _example(parts)
    found = [("", run, end) for run, end in product([*own, *ODD], ENDS)]
    for before, body in dict.fromkeys(_repeats(parts)):
        for end in ENDS:
            found += [(before, body, end), ("", before + body, end)]
            found += [(before, body + one, end) for one in own] + [(before + one, body, end) for one in own]
    for one, other in product(own, repeat=2):
        found += [("", one + other, "\0"), (one, other, "\0"), (whole, one, other)]
    found += [("", whole, "\0"), ("", whole[:-1], "\0"), *((whole, one, end) for one, end in product(ODD, ENDS))]
    found = [shape for shape in dict.fromkeys(found) if shape[1]]
    return found if len(found) <= most else random.Random(seed).sample(found, most)


def _inside(op: Any, value: Any) -> list[Any]:
    """The sequences of nodes that a node holds."""
    if op is ops.BRANCH:
        return value[1]
    if op is ops.SUBPATTERN or op in _REPEATS:
        return [value[-1]]
    return [value] if op is ops.ATOMIC_GROUP else [value[1]] if op in (ops.ASSERT, ops.ASSERT_NOT) else []


def _members(items: Sequence[Any]) -> list[str]:
    """Characters of a class: its ends, or three that a negated one leaves."""
    found = list[str]()
    for op, value in items:
        if op is ops.LITERAL:
            found.append(chr(value))
        elif op is ops.RANGE:
            found += map(chr, value)
        elif op is ops.CATEGORY:
            found += _CLASSES[value]
    if items and items[0][0] is ops.NEGATE:
        return [one for one in ODD if one not in found][:3]
    return found


def _example(parts: Any, least: int = 1) -> str:
    """A short text that the nodes match, about. `least`: how often what may be absent stands in it."""
    text = ""
    for op, value in parts:
        if op is ops.LITERAL:
            text += chr(value)
        elif op in (ops.ANY, ops.NOT_LITERAL):
            text += "ab"[value == ord("a")]
        elif op is ops.IN:
            text += "".join(_members(value)[:1])
        elif op not in (ops.ASSERT, ops.ASSERT_NOT) and (inner := _inside(op, value)):
            text += _example(inner[0], least) * (max(value[0], min(least, value[1])) if op in _REPEATS else 1)
    return text


def _mentioned(parts: Any) -> Iterator[str]:
    """Characters and words that the nodes mention."""
    word = ""
    for op, value in [*parts, (None, None)]:
        if op is ops.LITERAL:
            word += chr(value)
            yield chr(value)
            continue
        if len(word) > 1:
            yield word
        word = ""
        yield from [chr(value)] if op is ops.NOT_LITERAL else _members(value) if op is ops.IN else []
        for inner in _inside(op, value):
            yield from _mentioned(inner)


def _repeats(parts: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """For each repeat of the nodes: a text that leads to it, and one that it takes once."""
    for place, (op, value) in enumerate(parts):
        here = before + _example(parts[:place])
        if op in _REPEATS and value[1] > 1:
            yield from ((here, body) for body in {_example(value[2]), _example(value[2], 0), *_mentioned(value[2])})
        for inner in _inside(op, value):
            yield from _repeats(inner, here)
