"""The fields of one row by our names, and their values as plain texts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from steprag.errors import quoted, shortened
from steprag.records.spellings import (
    ASKED,
    PASSAGE_IDS,
    PASSAGE_NAMES,
    QUESTION_IDS,
    QUESTION_NAMES,
    QUESTIONS,
    TEXTS,
    folded,
)

_KILT = re.compile(r"(?:Section|BULLET)::::-?\s*")
"""Marks of headings and lists in KILT's texts."""


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


def is_talk(value: dict[str, Any]) -> bool:
    """Whether an object is a row with messages of a conversation, in OpenAI's form or ShareGPT's."""
    firsts = [one[0].keys() for one in value.values() if isinstance(one, list) and one and isinstance(one[0], dict)]
    return any({"role", "content"} <= keys or {"from", "value"} <= keys for keys in firsts)
