"""Rows of a workbook (XLSX)."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from steprag.errors import DataError
from steprag.records.json_text import as_json
from steprag.records.packed import FREE, expansion

_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, EOFError, OSError, LookupError, ValueError,
            TypeError, AttributeError, ArithmeticError, RuntimeError)  # fmt: skip
"""What zipfile, XML's parser and openpyxl, which builds its objects from whatever the XML says, raise for a workbook
that is damaged, encrypted or odd.
"""


def workbook_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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
