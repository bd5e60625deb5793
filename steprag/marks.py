"""Pairs that a person marked as wrong: `wrong.jsonl`, which the viewer writes and `steprag pairs` reads as a filter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steprag.errors import DataError
from steprag.files import existing, read_records
from steprag.training_rows import Pair

MARKS = "wrong.jsonl"
"""Its name in a pairs folder."""


@dataclass(frozen=True)
class WrongPair:
    """A preference that is wrong. `preference` names it (`preference_key`); the rest is for people."""

    preference: str
    question_id: str
    chosen: str
    rejected: str
    time: str
    extra: dict[str, Any] = field(default_factory=dict)


def preference_key(pair: Pair) -> str:
    """The name of a preference: 16 hex digits of a hash of prompt, chosen and rejected. Equal preferences of several
    trees have one name; the other way round it is another.
    """
    texts = [[[m["role"], m["content"]] for m in part] for part in (pair.prompt, pair.chosen, pair.rejected)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def read_marks(path: Path | str) -> dict[str, WrongPair]:
    """The marks of a file by the names of their preferences. Raises ConfigError and DataError."""
    file = existing(path, "file of pairs marked as wrong")
    if file.is_dir():
        raise DataError(file, "is a folder", remedy=f"give the file, {file / MARKS}")
    return {mark.preference: mark for mark in read_records(file, WrongPair)}
