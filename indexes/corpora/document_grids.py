"""Tables of a PDF whose cells are ruled: the lines that were drawn say which words share a cell, in whatever order.

Part of the process that reads documents (`document_worker`), and like it imports nothing of this package.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

MOST_DRAWN, NEAR = 3000, 2.5
"""Objects of a page beyond which it is a drawing; points that two ends of rules may stand apart."""
Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


def grids(page: Any) -> Iterator[tuple[list[float], list[float], list[Box]]]:
    """The tables of a page: where their columns end, from left, and their rows, from the top; and their rules."""
    rules = sorted(_rules(page), key=lambda rule: -rule[3])
    while rules:
        table, low = [rules[0]], rules[0][1]
        for rule in rules[1:]:
            if rule[3] < low - NEAR:
                break
            table, low = [*table, rule], min(low, rule[1])
        rules = rules[len(table) :]
        columns = _apart([rule[0] for rule in table if rule[2] - rule[0] <= NEAR])
        rows = _apart([rule[1] for rule in table if rule[3] - rule[1] <= NEAR])[::-1]
        if len(columns) > 2 and len(rows) > 2:
            yield columns, rows, table


def _rules(page: Any) -> Iterator[Box]:
    """Thin lines and edges of boxes, but for a frame around the page."""
    from pypdfium2 import raw

    count, ends = raw.FPDFPage_CountObjects(page.raw), [ctypes.c_float() for _ in range(4)]
    for index in range(count if count <= MOST_DRAWN else 0):
        drawn = raw.FPDFPage_GetObject(page.raw, index)
        if raw.FPDFPageObj_GetType(drawn) != raw.FPDF_PAGEOBJ_PATH:
            continue
        raw.FPDFPageObj_GetBounds(drawn, *map(ctypes.byref, ends))
        left, bottom, right, top = (end.value for end in ends)
        if right - left <= NEAR or top - bottom <= NEAR:
            yield left, bottom, right, top
        elif top - bottom < 0.7 * page.get_height():
            yield from ((left, bottom, left, top), (right, bottom, right, top))
            yield from ((left, bottom, right, bottom), (left, top, right, top))


def _apart(places: list[float]) -> list[float]:
    found = list[float]()
    for place in sorted(places):
        if not found or place - found[-1] > NEAR:
            found.append(place)
    return found


def cells_of(
    texts: list[tuple[Box, str]], columns: list[float], rows: list[float], rules: list[Box]
) -> list[list[str]]:
    """Texts by row and column. One in a cell that no rule parts from the one above stands in both; of one that none
    parts from its left neighbour the left one has the text.
    """
    found = [["" for _ in columns[1:]] for _ in rows[1:]]
    for (left, bottom, right, top), text in texts:
        across = sum(edge <= (left + right) / 2 for edge in columns[1:-1])
        down = sum(edge >= (bottom + top) / 2 for edge in rows[1:-1])
        while across and not _parted(rules, columns[across], (rows[down] + rows[down + 1]) / 2, upright=True):
            across -= 1
        while down and not _parted(rules, rows[down], (columns[across] + columns[across + 1]) / 2, upright=False):
            down -= 1
        found[down][across] = f"{found[down][across]}\n{text}".lstrip("\n")
    for down in range(1, len(found)):
        for across, text in enumerate(found[down - 1]):
            middle = (columns[across] + columns[across + 1]) / 2
            if text and not found[down][across] and not _parted(rules, rows[down], middle, upright=False):
                found[down][across] = text
    return found


def _parted(rules: list[Box], place: float, at: float, *, upright: bool) -> bool:
    """Whether a rule runs at a place: of upright ones a height, of others a width."""
    for left, bottom, right, top in rules:
        thick, start, low, high = (right - left, left, bottom, top) if upright else (top - bottom, bottom, left, right)
        if thick <= NEAR and abs(start - place) <= NEAR and low <= at <= high:
            return True
    return False
