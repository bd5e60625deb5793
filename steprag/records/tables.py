"""Rows of files that others wrote: JSON Lines, one JSON array or object of rows, a table with tabs. The first line
tells which; a format that is not read is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from steprag.errors import DataError
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import read_lines, read_rows, read_value
from steprag.records.packed import NotWhole, line_bytes, lines, open_bytes

BOM = b"\xef\xbb\xbf"
TABLE_FORM = "the first line names the columns, such as id, text and title, with tabs between"
_OTHERS = {
    b"PK\x03\x04": ("a zip archive", "name it .zip"),
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
}
"""First bytes of formats that are not read under this name, with the format and the remedy."""
_TAR = slice(257, 262)
"""Where a tar archive says that it is one."""
_HEADS = frozenset({"id", "_id", "qid", "pid", "docid", "doc_id", "query_id", "question", "query", "text", "contents"})
"""Names of columns; a first line with one of them is a header."""


def rows_of(path: Path) -> Iterator[tuple[int, Any]]:
    """Number (of the line, or of the row) and value of every row of a file. Raises DataError."""
    found = other_rows(path)
    yield from read_rows(path) if found is None else found


def other_rows(path: Path) -> Iterator[tuple[int, Any]] | None:
    """The rows of a file that is no JSON Lines; None where it is, or may be. Raises DataError for a foreign format."""
    first, alone = _first_line(path)
    if first[_TAR] == b"ustar":
        raise DataError(path, "is a tar archive", remedy="unpack it and give its files")
    for magic, (name, remedy) in _OTHERS.items():
        if first.startswith(magic):
            raise DataError(path, f"is {name} by its first bytes", remedy=remedy)
    if first[:1] in (b"[", b"{"):
        rows = _rows_of_value(path, first, alone)
        return None if rows is None else iter(enumerate(rows, 1))
    if b"\t" in first:
        return _table(path)
    if _names(first.decode(errors="replace").split(",")):
        raise DataError(path, "is a table with commas (CSV)", line=1, remedy="write it as JSON Lines, or with tabs")
    return None


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


def _rows_of_value(path: Path, first: bytes, alone: bool) -> list[Any] | None:
    """The rows of one JSON value that fills the file; None where the file has a value a line."""
    try:
        value = decoded(first, finite=False)
    except NotJson:
        if alone or first.endswith(b"}"):  # a line that is damaged
            return None
        value = _whole(path, first)
    else:
        if not alone:
            return None
    return value if isinstance(value, list) else _rows_in(value)


def _whole(path: Path, first: bytes) -> Any:
    """The value of a file over several lines; an object that is none is taken for damaged JSON Lines."""
    try:
        return read_value(path, line_bytes(), "give one JSON object a line", finite=False)
    except DataError:
        if first.startswith(b"["):
            raise
        return {}


def _rows_in(value: dict[str, Any]) -> list[Any] | None:
    """The rows of an object that is no row itself: of its one list of objects, or of {ID: row} with the ID in it."""
    inner = list(value.values())
    lists = [one for one in inner if isinstance(one, list) and one and isinstance(one[0], dict)]
    if not value or _HEADS & value.keys():
        return None
    if all(isinstance(one, dict) for one in inner):
        return [{"id": name, **row} for name, row in value.items()]
    return lists[0] if len(lists) == 1 else None


def _names(cells: list[str]) -> list[str] | None:
    """The cells as names of columns where they are a header."""
    names = [cell.strip().strip('"').lower() for cell in cells]
    return names if len(names) > 1 and _HEADS & set(names) else None


def _table(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows of a table with tabs. Without a header two columns are id and text, three id, text and title, as in the
    passages of MS MARCO and of DPR (psgs_w100.tsv). Raises DataError where the columns have no names.
    """
    names: list[str] | None = None
    for number, line in read_lines(path):
        cells = line.split("\t")
        if names is None:
            header = _names(cells)
            names = header or ["id", "text", "title"][: len(cells)]
            if header:
                continue
            if len(cells) > len(names):
                problem = f"is a table of {len(cells)} columns without names"
                raise DataError(path, problem, line=number, remedy=TABLE_FORM)
        yield number, dict(zip(names, map(_unquoted, cells), strict=True)) if len(cells) == len(names) else cells


def _unquoted(cell: str) -> str:
    """A cell without the quotation marks of CSV: around it, and doubled within."""
    inner = cell[1:-1].replace('""', "")
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner else cell
