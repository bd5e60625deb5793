"""Rows in one JSON value that fills a file: an array, an object of rows by id, of columns, or with a list of rows
in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.fields import has_id, is_passage, is_question, is_talk
from steprag.records.json_text import NotJson, as_json, decoded
from steprag.records.jsonl import read_value
from steprag.records.packed import line_bytes
from steprag.records.spellings import HEADS, folded


def json_rows(path: Path, first: bytes, alone: bool) -> Iterator[tuple[int, Any]] | None:
    """The rows of a file that begins with the line `first`, by number; None where it has a value a line. `alone`: no
    other line follows. Raises DataError.
    """
    rows = _rows_of_value(path, first, alone)
    return None if rows is None else _plain_rows(rows, path)


def _plain_rows(rows: list[Any], path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of an array with their numbers, without NaN. Raises DataError for one that is nested too deep."""
    for number, row in enumerate(rows, 1):
        try:
            value = as_json(row)
        except RecursionError:
            raise DataError(path, "lists or objects are nested too deep", line=number) from None
        yield number, value


def _rows_of_value(path: Path, first: bytes, alone: bool) -> list[Any] | None:
    """The rows of one JSON value that fills the file; None where the file has a value a line."""
    try:
        value = decoded(first, finite=False)
    except NotJson:
        if alone or first.endswith(b"}"):  # a line that is damaged
            return None
        value = _whole(path, first)
        if isinstance(value, dict) and value:
            return rows_in(value, path) or [value]
    else:
        if not alone:
            return None
    return value if isinstance(value, list) else rows_in(value, path)


def _whole(path: Path, first: bytes) -> Any:
    """The value of a file over several lines; an object that is none is taken for damaged JSON Lines."""
    try:
        return read_value(path, line_bytes(), "give one JSON object a line", finite=False)
    except DataError:
        if first.startswith(b"["):
            raise
        return {}


def rows_in(value: dict[str, Any], path: Path) -> list[Any] | None:
    """The rows of an object that is no row itself: of the one list of rows in it, or of {ID: row} with the ID in it.
    Raises DataError where it has several such lists.
    """
    if not value or is_question(value) or has_id(value) or is_talk(value):
        return None
    if rows := _of_columns(value):
        return rows
    if all(isinstance(one, dict) for one in value.values()):
        return [row for name, one in value.items() for row in (nested_rows(one, path) or [{"id": name, **one}])]
    if found := nested_rows(value, path):
        return found
    lists = [one for one in value.values() if isinstance(one, list) and one and isinstance(one[0], dict)]
    return lists[0] if len(lists) == 1 and not HEADS & set(map(folded, value)) else None


def _of_columns(value: dict[str, Any]) -> list[Any]:
    """The rows of an object of columns, each a list or an object by row number (pandas); none of another object."""
    if any(isinstance(one, list) and one and isinstance(one[0], dict) for one in value.values()):
        return []
    numbers = next((one for one in value.values() if isinstance(one, dict)), {})
    columns = [[*map(one.get, numbers)] if isinstance(one, dict) and all(map(str.isdecimal, one)) else one
               for one in value.values()]  # fmt: skip
    texts = [one for name, one in zip(value, columns, strict=True) if folded(name) in HEADS and isinstance(one, list)]
    if not any(one and isinstance(one[0], str) for one in texts):
        return []
    alike = all(isinstance(one, list) and len(one) == len(texts[0]) for one in columns)
    return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)] if alike else []


def nested_rows(value: dict[str, Any], path: Path, depth: int = 3) -> list[Any]:
    """The rows in the lists of an object that is no row, or of the objects in them (SQuAD: data, paragraphs, qas). In
    one with a text of its own only questions about it are looked for (DROP).
    """
    found: dict[str, list[Any]] = {}
    for name, inner in value.items() if depth and not (is_question(value) or is_talk(value)) else ():
        if not isinstance(inner, list) or not inner or not isinstance(inner[0], dict):
            continue
        if is_question(inner[0]) or (is_passage(inner[0]) and not is_passage(value)):
            found[name] = inner
        elif not is_passage(value):
            found[name] = [row for one in inner if isinstance(one, dict) for row in nested_rows(one, path, depth - 1)]
    named = [name for name, rows in found.items() if rows]
    if len(named) > 1:
        problem = f"holds several lists of rows: {', '.join(map(quoted, named[:4]))}"
        raise DataError(path, problem, remedy="write the one that is meant to a file of its own")
    return found[named[0]] if named else []
