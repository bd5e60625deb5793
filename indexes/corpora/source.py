"""The output of every reader of a corpus: passages and problems, each with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from steprag.errors import DataError
from steprag.records.inputs import passage_from_row
from steprag.types import Passage

HUB = "hub:"
Kind = Literal["json", "encoding", "long", "fields", "empty", "duplicate"]


@dataclass(frozen=True)
class Problem:
    """A line or row that is no passage, and why."""

    kind: Kind
    detail: str


Item = tuple[int, int, Passage | Problem]
"""File (its position in `Source.files`), line or row in it (from 1), and what stands there."""


@dataclass(frozen=True)
class Source:
    """A corpus that can be read any number of times, always in the same order.

    `files` name the places of problems; `identity` is a SHA-256 over the content (of a hub data set: over its commit).
    """

    name: str
    files: tuple[str, ...]
    identity: Callable[[], str]
    items: Callable[[], Iterator[Item]]

    def place(self, file: int, line: int) -> str:
        """An item's place as messages name it: FILE:LINE, lines from 1."""
        return f"{self.files[file]}:{line}"


def passage_or_problem(row: Any, path: Path, number: int) -> Passage | Problem:
    """A decoded row as a passage whose text can be written as UTF-8."""
    try:
        passage = passage_from_row(row, path, number)
        f"{passage.id}{passage.title}{passage.text}".encode()
    except UnicodeEncodeError as error:
        return Problem("encoding", f"half of a surrogate pair: {error.object[error.start]!r}")
    except DataError as error:
        has_text = isinstance(row, dict) and "id" in row and any(isinstance(row.get(k), str)
                                                                 for k in ("contents", "text"))  # fmt: skip
        return Problem("empty" if has_text else "fields", error.problem)
    return passage
