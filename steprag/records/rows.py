"""Rows of files that others wrote: JSON Lines, one JSON array or object of rows, a table with tabs or commas, Parquet,
a workbook (XLSX). The first line tells which; a format that is not read is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.json_text import NotJson, as_json, decoded
from steprag.records.jsonl import read_rows, read_value
from steprag.records.left_out import LeftOut
from steprag.records.packed import NotWhole, line_bytes, lines, open_bytes
from steprag.records.spellings import HEADS, folded, has_id, is_passage, is_question, is_talk
from steprag.records.tables import csv_mark, csv_rows, tab_rows
from steprag.records.workbook import workbook_rows

BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"PK\x03\x04": ("a zip archive", "name it .zip; save a spreadsheet as .xlsx"),
    b"\xd0\xcf\x11\xe0": ("an old Office file", "save it as .xlsx, or as CSV"),
    b"\x1f\x8b": ("gzip", "name it .gz"),
    b"BZh": ("bzip2", "name it .bz2"),
    b"\xfd7zXZ\x00": ("xz", "name it .xz"),
    b"\x28\xb5\x2f\xfd": ("zstandard", "name it .zst"),
    b"PAR1": ("Parquet", "name it .parquet"),
    b"%PDF": ("PDF", "write its texts as JSON Lines"),
    b"<": ("XML or HTML", "a Wikipedia dump ends in .xml or .xml.bz2; write other texts as JSON Lines"),
    b"\x80": ("pickle", "such files can run code and are not read; write JSON Lines"),
    b"SQLite format 3": ("an SQLite database", "write its rows as JSON Lines"),
    b"\x93NUMPY": ("a NumPy array", "write texts as JSON Lines"),
    b"ARROW1": ("Arrow", "write it as Parquet"),
    b"\xff\xff\xff\xff": ("Arrow", "write it as Parquet"),
}
"""First bytes of formats that are not read under this name, with the format and the remedy."""
_TAR = slice(257, 262)
"""Where a tar archive says that it is one."""


def read_any_rows(path: Path, gone: list[LeftOut], *, has_header: bool = False) -> Iterator[tuple[int, Any]]:
    """Number (of the line, or of the row) and value of every row of a file. What is not read of it goes into `gone`.
    `has_header`: the first line of a table names its columns, be they unknown. Raises DataError.
    """
    if path.name.endswith(".parquet"):
        yield from ((number, as_json(row)) for number, row in parquet_values(path))
    elif path.suffix.lower() in (".xlsx", ".xlsm"):
        yield from workbook_rows(path, gone)
    else:
        found = non_jsonl_rows(path, has_header=has_header)
        yield from read_rows(path) if found is None else found


def parquet_values(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and values by column of every row of a Parquet file. Raises DataError."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:  # OSError: a page or a footer that does not unpack
        problem = f"cannot be read as Parquet: {str(error).splitlines()[0]}"
        raise DataError(path, problem, line=number + 1, remedy="fetch it again") from None


def non_jsonl_rows(path: Path, *, has_header: bool = False) -> Iterator[tuple[int, Any]] | None:
    """The rows of a file that is no JSON Lines; None where it is, or may be. Raises DataError for a foreign format.

    `has_header`: as in `read_any_rows`; of a file named .csv that is known.
    """
    first, alone = _first_line(path)
    if first[_TAR] == b"ustar":
        raise DataError(path, "is a tar archive", remedy="unpack it and give its files")
    for magic, (name, remedy) in _OTHERS.items():
        if first.startswith(magic):
            raise DataError(path, f"is {name} by its first bytes", remedy=remedy)
    if first[:1] in (b"[", b"{"):
        rows = _rows_of_value(path, first, alone)
        return None if rows is None else _plain_rows(rows, path)
    if b"\t" in first:
        return tab_rows(path, has_header)
    between = csv_mark(first.decode(errors="replace"), has_header or ".csv" in map(str.lower, path.suffixes))
    return csv_rows(path, between) if between else None


def _first_line(path: Path) -> tuple[bytes, bool]:
    """The first line that is not blank, and whether no other follows; nothing where it is too long or no file."""
    if not path.is_file():
        return b"", True  # whoever reads it says what it is
    with open_bytes(path) as stream:
        try:
            full = (line and line.removeprefix(BOM).strip() for _, line in lines(stream))
            first, second = [*islice((line for line in full if line != b""), 2), b"", b""][:2]
            return first or b"", second == b""
        except NotWhole as error:
            raise DataError(path, str(error), line=1, remedy=error.remedy) from None


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
            return _rows_in(value, path) or [value]
    else:
        if not alone:
            return None
    return value if isinstance(value, list) else _rows_in(value, path)


def _whole(path: Path, first: bytes) -> Any:
    """The value of a file over several lines; an object that is none is taken for damaged JSON Lines."""
    try:
        return read_value(path, line_bytes(), "give one JSON object a line", finite=False)
    except DataError:
        if first.startswith(b"["):
            raise
        return {}


def _rows_in(value: dict[str, Any], path: Path) -> list[Any] | None:
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
