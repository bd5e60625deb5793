"""Rows of a workbook (XLSX), with values as people see them in its cells."""

from __future__ import annotations

import datetime
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted
from steprag.records.json_text import as_json
from steprag.records.left_out import LeftOut, merged
from steprag.records.number_formats import shown
from steprag.records.packed import FREE, expansion

_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, EOFError, OSError, LookupError, ValueError,
            TypeError, AttributeError, ArithmeticError, RuntimeError)  # fmt: skip
"""What zipfile, XML's parser and openpyxl, which builds its objects from whatever the XML says, raise for a workbook
that is damaged, encrypted or odd.
"""


def workbook_rows(path: Path, left_out: list[LeftOut]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of the first visible sheet that holds something, by their number in it; the first row that is not blank
    names the columns. Further sheets, and cells whose format is not read, go into `left_out`. Raises DataError, also
    for a formula without its value, and where the file expands beyond the bound of compressed ones.
    """
    from openpyxl import load_workbook

    try:
        with zipfile.ZipFile(path) as packed:
            if sum(part.file_size for part in packed.infolist()) > max(FREE, expansion() * path.stat().st_size):
                raise DataError(path, f"expands to more than {expansion()} times its size")
        with ExitStack() as stack:
            values, formulas = (stack.enter_context(closing(load_workbook(path, read_only=True, data_only=data_only)))
                                for data_only in (True, False))  # fmt: skip
            filled = [sheet for sheet in values.worksheets if _is_filled(sheet)]
            for sheet in sorted(filled, key=lambda sheet: sheet.sheet_state != "visible")[:1]:
                formulas[sheet.title].reset_dimensions()
                yield from _sheet_rows(path, sheet.iter_rows(), formulas[sheet.title].iter_rows(), left_out)
                others = [one for one in filled if one is not sheet]
                hidden = {"hidden": " (hidden)", "veryHidden": " (hidden)"}
                names = ", ".join(quoted(one.title) + hidden.get(one.sheet_state, "") for one in others)
                left_out += [LeftOut("sheets not read", str(path), names, len(others))] if others else []
    except _DAMAGED as error:
        problem = f"cannot be read as a workbook: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise DataError(path, problem, remedy="save it again as .xlsx, or as CSV") from None


def _is_filled(sheet: Any) -> bool:
    sheet.reset_dimensions()  # some programs write that a sheet is one cell
    return any(value is not None for row in sheet.iter_rows(values_only=True) for value in row)


def _sheet_rows(
    path: Path, rows: Iterator[Any], formulas: Iterator[Any], left_out: list[LeftOut]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """`formulas`: the same rows, with formulas in place of their values."""
    names: list[str] = []
    odd: list[LeftOut] = []
    for number, (cells, sources) in enumerate(zip(rows, formulas, strict=True), 1):
        if not names:
            names = ["" if cell.value is None else str(cell.value).strip() for cell in cells]
            names = names if any(names) else []
            continue
        row = dict[str, Any].fromkeys(filter(None, names))
        for name, cell, source in zip(names, cells, sources, strict=False):
            if name and cell.value is None and source.data_type == "f":
                problem = f"column {quoted(name)} holds a formula without its value"
                raise DataError(path, problem, line=number, remedy="open it in a spreadsheet and save it")
            if name and cell.value is not None:
                row[name], why = _value(cell)
                odd += (
                    [LeftOut(why, f"{path}:{number}, column {quoted(name)}", quoted(cell.number_format))] if why else []
                )
        if any(value is not None for value in row.values()):
            yield number, row
    left_out += merged(odd)


def _value(cell: Any) -> tuple[Any, str]:
    """A cell's value as people see it, and what is to be said of it."""
    if cell.data_type == "e":
        return None, "cells that show an error"
    if (text := shown(cell.value, cell.number_format)) is not None:
        return text, ""
    midnight = isinstance(cell.value, datetime.datetime) and cell.value.time() == datetime.time()
    return as_json(cell.value.date() if midnight else cell.value), "cells whose number format is not read"
