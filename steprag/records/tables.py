"""Rows of tables with tabs (TSV) or commas (CSV)."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from steprag.errors import DataError
from steprag.records.jsonl import read_lines
from steprag.records.spellings import HEADS, folded

TABLE_FORM = "the first line names the columns, such as id, text and title, with tabs between"
_LONGEST_HEAD = 80
"""Characters of a column's name."""
_LOOK_AHEAD = 200
"""Lines over which a cell in quotation marks may go."""


def tab_rows(path: Path, has_header: bool = False) -> Iterator[tuple[int, Any]]:
    """Rows of a table with tabs. Without a header two columns are id and text, three id, text and title, as in the
    passages of MS MARCO and of DPR (psgs_w100.tsv); a question and a list of answers where the second is one (DPR's
    qas files). Raises DataError where the columns have no names.
    """
    names: list[str] | None = None
    lines, ahead = read_lines(path), deque[tuple[int, str]]()
    while (given := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = given
        cells = line.split("\t")
        if names is None:
            header = _heads(cells) if has_header else _names(cells)
            listed = len(cells) == 2 and _unquoted(cells[1]).startswith(("['", '["'))
            names = header or (["question", "answers"] if listed else ["id", "text", "title"][: len(cells)])
            if header:
                continue
            if len(cells) > len(names):
                problem = f"is a table of {len(cells)} columns without names"
                raise DataError(path, problem, line=number, remedy=TABLE_FORM)
        if len(cells) < len(names) and has_unclosed_quote(cells[-1]):
            cells = _continued(cells, len(names), ahead, lines)
        yield number, _row(names, list(map(_unquoted, cells))) if len(cells) == len(names) else cells


def has_unclosed_quote(cell: str) -> bool:
    """Whether a cell opens a quotation mark of CSV and does not close it."""
    return cell.startswith('"') and cell.count('"') % 2 == 1


def _continued(
    cells: list[str], width: int, ahead: deque[tuple[int, str]], lines: Iterator[tuple[int, str]]
) -> list[str]:
    """The cells of a row whose last cell goes on over further lines, which are taken from `ahead` and `lines`; its
    cells as they are where the further lines do not make a row: these then stay in `ahead`.
    """
    whole = [*cells]
    for count in range(1, _LOOK_AHEAD + 1):
        if len(ahead) < count:
            ahead.extend(islice(lines, 1))
        if len(ahead) < count:
            break
        more, *others = ahead[count - 1][1].split("\t")
        whole[-1] += f"\n{more}"
        whole += others
        if len(whole) == width and not any(map(has_unclosed_quote, whole)):
            for _ in range(count):
                ahead.popleft()
            return whole
        if len(whole) > width:
            break
    return cells


def csv_mark(line: str, known: bool) -> str | None:
    """What stands between the cells of a table's first line: a comma, a semicolon or a bar; None where it is no header.
    `known`: the line is a header, be its names unknown.
    """
    between = next((mark for mark in ",;|" if _names(_cells(line, mark))), None)
    return max(",;|", key=line.count) if between is None and known and line else between


def _cells(line: str, between: str) -> list[str]:
    """A line as cells; none where it is no line of a table."""
    try:
        return next(csv.reader([line], delimiter=between), [])
    except csv.Error:
        return []


def csv_rows(path: Path, between: str) -> Iterator[tuple[int, Any]]:
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


def _heads(cells: list[str]) -> list[str]:
    return [cell.strip().strip('"') for cell in cells]


def _names(cells: list[str]) -> list[str] | None:
    """The cells as names of columns where they are a header: short, none a number, one known (`HEADS`)."""
    names = _heads(cells)
    if len(names) < 2 or any(len(name) > _LONGEST_HEAD or name.isdecimal() for name in names):
        return None
    return names if HEADS & set(map(folded, names)) else None


def _row(names: list[str], cells: list[str]) -> dict[str, str]:
    """A row by the names of its columns; the number that pandas writes before it has none."""
    return {name: cell for name, cell in zip(names, cells, strict=True) if name}


def _unquoted(cell: str) -> str:
    """A cell without the quotation marks of CSV: around it, and doubled within."""
    inner = cell[1:-1].replace('""', "")
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner else cell
