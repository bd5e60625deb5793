"""Rows of files that others wrote: JSON Lines, one JSON array or object of rows, a table with tabs or commas, Parquet,
a workbook (XLSX). The first line tells which; a format that is not read is refused by its name.
"""

from __future__ import annotations

import csv
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import read_lines, read_rows, read_value
from steprag.records.packed import FREE, NotWhole, expansion, line_bytes, lines, open_bytes
from steprag.records.spellings import HEADS, folded, has_id, is_passage, is_question

BOM = b"\xef\xbb\xbf"
TABLE_FORM = "the first line names the columns, such as id, text and title, with tabs between"
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
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, EOFError, OSError, LookupError, ValueError,
            TypeError, AttributeError, ArithmeticError, RuntimeError)  # fmt: skip
"""What zipfile, XML's parser and openpyxl, which builds its objects from whatever the XML says, raise for a workbook
that is damaged, encrypted or odd.
"""
_TAR = slice(257, 262)
"""Where a tar archive says that it is one."""
_LONGEST_HEAD = 80
"""Characters of a column's name."""
_GOES_ON = 200
"""Lines over which a cell in quotation marks may go."""


def rows_of(path: Path, *, headed: bool = False) -> Iterator[tuple[int, Any]]:
    """Number (of the line, or of the row) and value of every row of a file. `headed`: the first line of a table names
    its columns, be they unknown. Raises DataError.
    """
    if path.name.endswith(".parquet"):
        yield from ((number, as_json(row)) for number, row in parquet_values(path))
        return
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        yield from _sheet(path)
        return
    found = other_rows(path, headed=headed)
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


def _sheet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a workbook's first sheet by their number in it; the first that is not blank names the columns. Raises
    DataError, also where its files expand beyond the bound of compressed ones.
    """
    from openpyxl import load_workbook

    names: list[str] = []
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(part.file_size for part in packed.infolist()) > max(FREE, expansion() * path.stat().st_size):
                raise DataError(path, f"expands to more than {expansion()} times its size")
        with closing(load_workbook(path, read_only=True, data_only=True)) as book:
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # some programs write that a sheet is one cell
            for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
                values = [as_json(cell) for cell in cells]
                if not names:
                    names = ["" if value is None else str(value).strip() for value in values]
                    names = names if any(names) else []
                elif any(value is not None for value in values):
                    yield number, {name: value for name, value in zip_longest(names, values) if name}
    except _DAMAGED as error:
        problem = f"cannot be read as a workbook: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise DataError(path, problem, remedy="save it again as .xlsx, or as CSV") from None


def as_json(value: Any) -> Any:
    """A value of Parquet, a workbook, an array or the hub as JSON has it: NaN is null, dates and bytes are text."""
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def other_rows(path: Path, *, headed: bool = False) -> Iterator[tuple[int, Any]] | None:
    """The rows of a file that is no JSON Lines; None where it is, or may be. Raises DataError for a foreign format.

    `headed`: as in `rows_of`; of a file named .csv that is known.
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
        return _table(path, headed)
    line = first.decode(errors="replace")
    between = next((mark for mark in ",;|" if _names(_cells(line, mark))), None)
    if between is None and (headed or ".csv" in map(str.lower, path.suffixes)):
        between = max(",;|", key=line.count) if line else None
    return _separated(path, between) if between else None


def _plain_rows(rows: list[Any], path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of an array with their numbers, without NaN. Raises DataError for one that is nested too deep."""
    for number, row in enumerate(rows, 1):
        try:
            value = as_json(row)
        except RecursionError:
            raise DataError(path, "lists or objects are nested too deep", line=number) from None
        yield number, value


def _cells(line: str, between: str) -> list[str]:
    """A line as cells; none where it is no line of a table."""
    try:
        return next(csv.reader([line], delimiter=between), [])
    except csv.Error:
        return []


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
    if not value or is_question(value) or has_id(value):
        return None
    if rows := _of_columns(value):
        return rows
    if all(isinstance(one, dict) for one in value.values()):
        return [row for name, one in value.items() for row in (_below(one, path) or [{"id": name, **one}])]
    if found := _below(value, path):
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


def _below(value: dict[str, Any], path: Path, depth: int = 3) -> list[Any]:
    """The rows in the lists of an object that is no row, or of the objects in them (SQuAD: data, paragraphs, qas). In
    one with a text of its own only questions about it are looked for (DROP).
    """
    found: dict[str, list[Any]] = {}
    for name, inner in value.items() if depth and not is_question(value) else ():
        if not isinstance(inner, list) or not inner or not isinstance(inner[0], dict):
            continue
        if is_question(inner[0]) or (is_passage(inner[0]) and not is_passage(value)):
            found[name] = inner
        elif not is_passage(value):
            found[name] = [row for one in inner if isinstance(one, dict) for row in _below(one, path, depth - 1)]
    named = [name for name, rows in found.items() if rows]
    if len(named) > 1:
        problem = f"holds several lists of rows: {', '.join(map(quoted, named[:4]))}"
        raise DataError(path, problem, remedy="write the one that is meant to a file of its own")
    return found[named[0]] if named else []


def _heads(cells: list[str]) -> list[str]:
    return [cell.strip().strip('"') for cell in cells]


def _names(cells: list[str]) -> list[str] | None:
    """The cells as names of columns where they are a header: short, none a number, one known (`HEADS`)."""
    names = _heads(cells)
    if len(names) < 2 or any(len(name) > _LONGEST_HEAD or name.isdecimal() for name in names):
        return None
    return names if HEADS & set(map(folded, names)) else None


def _table(path: Path, headed: bool = False) -> Iterator[tuple[int, Any]]:
    """Rows of a table with tabs. Without a header two columns are id and text, three id, text and title, as in the
    passages of MS MARCO and of DPR (psgs_w100.tsv); a question and a list of answers where the second is one (DPR's
    qas files). Raises DataError where the columns have no names.
    """
    names: list[str] | None = None
    rest = read_lines(path)
    while (given := next(rest, None)) is not None:
        number, line = given
        cells = line.split("\t")
        if names is None:
            header = _heads(cells) if headed else _names(cells)
            listed = len(cells) == 2 and _unquoted(cells[1]).startswith(("['", '["'))
            names = header or (["question", "answers"] if listed else ["id", "text", "title"][: len(cells)])
            if header:
                continue
            if len(cells) > len(names):
                problem = f"is a table of {len(cells)} columns without names"
                raise DataError(path, problem, line=number, remedy=TABLE_FORM)
        if len(cells) < len(names) and _open(cells[-1]):
            cells, rest = _continued(line, len(names), rest)
        yield number, _row(names, list(map(_unquoted, cells))) if len(cells) == len(names) else cells


def _open(cell: str) -> bool:
    """Whether a cell opens a quotation mark of CSV and does not close it."""
    return cell.startswith('"') and cell.count('"') % 2 == 1


def _continued(line: str, width: int, rest: Iterator[tuple[int, str]]) -> tuple[list[str], Iterator[tuple[int, str]]]:
    """The cells of a row whose last cell goes on over further lines, and the lines behind them; the cells of its one
    line where the further ones do not make a row.
    """
    taken: list[tuple[int, str]] = []
    whole = line
    for number, more in islice(rest, _GOES_ON):
        taken.append((number, more))
        whole = f"{whole}\n{more}"
        cells = whole.split("\t")
        if len(cells) == width and not any(map(_open, cells)):
            return cells, rest
        if len(cells) > width:
            break
    return line.split("\t"), chain(taken, rest)


def _separated(path: Path, between: str) -> Iterator[tuple[int, Any]]:
    """Rows of a table with commas or the like (CSV), by the line that they begin in; its first row names the columns.
    Raises DataError for a cell whose quotation marks do not close.
    """
    begun = 0

    def texts() -> Iterator[str]:
        nonlocal begun
        for number, line in read_lines(path):
            begun = begun or number
            yield line + "\n"

    names: list[str] | None = None
    try:
        for cells in csv.reader(texts(), delimiter=between):
            number, begun = begun, 0
            if names is None:
                names = _heads(cells) if cells[:1] != ["sep="] else None  # a line for Excel alone
            elif any(map(str.strip, cells)):
                cells = cells if any(cells[len(names) :]) else cells[: len(names)]
                yield number, _row(names, cells) if len(cells) == len(names) else cells
    except csv.Error as error:
        problem = f"no table with {between!r} between: {error}"
        longer = (
            f"close its quotation marks; cells of more than {csv.field_size_limit():,} characters go into JSON Lines"
        )
        remedy = "save it as UTF-8, with line breaks of Unix or Windows" if "new-line" in str(error) else longer
        raise DataError(path, problem, line=begun or 1, remedy=remedy) from None


def _row(names: list[str], cells: list[str]) -> dict[str, str]:
    """A row by the names of its columns; the number that pandas writes before it has none."""
    return {name: cell for name, cell in zip(names, cells, strict=True) if name}


def _unquoted(cell: str) -> str:
    """A cell without the quotation marks of CSV: around it, and doubled within."""
    inner = cell[1:-1].replace('""', "")
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner else cell
