"""What a PDF says, in reading order: lines by the places of their letters, rows of tables, headings, paragraphs.

Part of the process that reads documents (`document_worker`), and like it imports nothing of this package.
"""

from __future__ import annotations

import ctypes
import math
import re
import runpy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

_GRIDS = runpy.run_path(str(Path(__file__).with_name("document_grids.py")))
_FORMS = runpy.run_path(str(Path(__file__).with_name("document_forms.py")))

EDGE = 3
"""Lines at the top and at the bottom of a page that may be its header and footer."""
_BULLET = re.compile(r"([•▪●◦–*-]|\(?(\d[\d.]*|[a-z])[.)]?) ")
_SURE_BULLET = re.compile(r"([•▪●◦–*-]|\(?(\d+|[a-z])\)|[1a]\.) ")  # no sentence goes on so
_DOTTED = re.compile(r"(\. ?){4}")
"""As in a table of contents."""
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50}
PARTED = "\x02"  # PDFium's mark of a hyphen at the end of a line
_PARTED = re.compile(r"\S+")
_UNMARKED = re.compile(r"‐$|(?<=\d)-$")  # at a line's end, and PDFium does not mark them
_ENDED = re.compile(r"[.!?:…。！？][\"'”’)\]]*$")


@dataclass(slots=True)
class Line:
    """A line of a PDF's page; sizes and places in points from the page's lower left corner. `cells`: left end, right
    end and text of what wide gaps part, more than one in a row of a table.
    """

    page: int
    cells: list[tuple[float, float, str]]
    size: float
    bold: bool
    top: float
    bottom: float

    @property
    def text(self) -> str:
        """The whole line."""
        if len(self.cells) == 1:
            return self.cells[0][2].strip()
        return " | ".join(text.strip() for _, _, text in self.cells)


def read_pdf(path: str, out: Any) -> None:
    """Adds what a file holds to `out`, a `Read` of the worker. Raises what PDFium raises for a damaged one."""
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(path)
    except pdfium.PdfiumError as error:
        if error.err_code == pdfium.raw.FPDF_ERR_PASSWORD:
            out.problems.append(("encrypted", 0, "is encrypted: save it without its password first"))
            return
        raise
    document.init_forms()
    out.pages = len(document)
    pages: list[list[Line]] = []
    seen = list[tuple[int, str]]()
    without: dict[str, list[int]] = {"scanned": [], "torn": []}
    for number in range(1, out.pages + 1):
        try:
            page = document[number - 1]
            lines = _in_columns(_in_rows(_ruled(page, list(_lines(page, number, seen)))))
            pages.append(_aligned(_filled(lines, number, _FORMS["beside"](document, page), out)))
            if not pages[-1] and any(True for _ in page.get_objects([pdfium.raw.FPDF_PAGEOBJ_IMAGE], max_depth=3)):
                without["scanned"].append(number)
        except pdfium.PdfiumError:
            without["torn"].append(number)
    for kind, numbers in without.items():
        if numbers:
            what = "pictures without text: read them with OCR first (ocrmypdf)" if kind == "scanned" else "damaged"
            said = f"{len(numbers)} of {out.pages} pages, from p. {numbers[0]} on, are {what}"
            out.problems.append((kind, numbers[0], said))
    _add_lines(_without_edges(pages, out), out)
    _FORMS["leave_others"](document, {word for _, _, text in out.blocks for word in text.casefold().split()}, out)
    out.account(seen)


def _lines(page: Any, number: int, seen: list[tuple[int, str]]) -> Iterator[Line]:
    """A page's lines, in the order in which PDFium gives them. Heights say where one ends: of a page with few words
    PDFium may believe that it is written downwards, and end a line behind every letter or none.
    """
    from pypdfium2 import raw

    textpage, font = page.get_textpage(), ctypes.create_string_buffer(128)
    text, line, sizes, last = textpage.raw, None, list[float](), 0

    def is_bold(at: int) -> bool:
        raw.FPDFText_GetFontInfo(text, at, font, len(font), None)
        return raw.FPDFText_GetFontWeight(text, at) >= 600 or b"bold" in font.value.lower()

    def ended(line: Line) -> Line:
        line.size, line.bold = sorted(sizes)[len(sizes) // 2], line.bold and is_bold(last)
        line.cells = _itemised(line) if len(line.cells) > 1 else line.cells
        return line

    chars = _chars(textpage)
    seen += [(number, said) for said in chars.replace(PARTED, "").splitlines()]
    for index, said, between, left, right, top, bottom in _words(textpage, chars):
        if line and _is_over(line, left, top, bottom, text, index, broken=between == "\n"):
            yield ended(line)
            line, sizes = None, []
        size = top - bottom
        sizes += [size] * len(said)
        line, last = line or Line(number, [], size, is_bold(index), top, bottom), index + len(said) - 1
        begin, end, before = line.cells[-1] if line.cells else (left, -1e9, "")
        gap = left - end
        if gap > 0.9 * line.size:
            line.cells.append((left, right, f" {said}" if between == " " else said))
        else:
            blank = " " if between == " " or (between and gap > 0.15 * line.size) else ""
            line.cells[-1] = (begin, right, f"{before}{blank}{said}")
    if line:
        yield ended(line)


def _itemised(line: Line) -> list[tuple[float, float, str]]:
    """A line's cells, with marks of items before their text. A number or letter is one in no row of a table: where
    nothing else stands beside its text, and it ends in a full stop or a bracket or stands near.
    """
    cells = list[tuple[float, float, str]]()
    for left, right, text in line.cells:
        begin, end, mark = cells[-1] if cells else (left, right, "")
        found = _BULLET.fullmatch(f"{mark.strip()} ")
        alone = len(line.cells) == 2 and (mark.strip().endswith((".", ")")) or left - end < 2.5 * line.size)
        if found and (alone or not found[1][-1:].isalnum() and not found[1].endswith((".", ")"))):
            cells[-1] = begin, right, f"{mark.strip()} {text.strip()}"
        else:
            cells.append((left, right, text))
    return cells


def _chars(textpage: Any) -> str:
    """All letters of a page."""
    from pypdfium2.raw import FPDFText_GetUnicode

    chars, count = textpage.get_text_range().replace("\ufffe", PARTED), textpage.count_chars()
    if len(chars) != count or "\ufffd" in chars:  # some letters have no text there
        chars = "".join(chr(FPDFText_GetUnicode(textpage.raw, index)) for index in range(count))
    return chars


def _words(textpage: Any, chars: str) -> Iterator[tuple[int, str, str, float, float, float, float]]:
    """Place among the page's letters, letters, what parts them from those before ("\n", " " or nothing), and left,
    right, top and bottom. A word whose letters do not stand on one line, side by side, comes letter by letter.
    """
    from pypdfium2 import raw

    text, box = textpage.raw, raw.FS_RECTF()
    place, ask = ctypes.byref(box), raw.FPDFText_GetLooseCharBox
    end = 0
    for found in _PARTED.finditer(chars):
        parted, said = chars[end : found.start()], found.group()
        start, end = found.span()
        between = parted if parted in ("", " ") else "\n" if "\n" in parted or "\r" in parted else " "
        ask(text, start, place)
        left, right, top, bottom = box.left, box.right, box.top, box.bottom
        if end - start > 1:
            ask(text, end - 1, place)
            right = box.right
        size = top - bottom
        if abs(box.top - top) + abs(box.bottom - bottom) < 0.1 * size and right - left <= (end - start) * size:
            yield start, said, between, left, right, top, bottom
            continue
        for index in range(start, end):
            ask(text, index, place)
            yield index, chars[index], between, box.left, box.right, box.top, box.bottom
            between = ""


def _is_over(line: Line, left: float, top: float, bottom: float, text: Any, at: int, *, broken: bool) -> bool:
    """Whether a letter (`at`) begins another line: one that stands upright, above or below the line; or where PDFium
    says so (`broken`) one that does not stand to its right.
    """
    from pypdfium2.raw import FPDFText_GetCharAngle

    if broken:
        level = abs(top + bottom - line.top - line.bottom) < 0.4 * line.size
        if not (level and left > line.cells[-1][1] - 0.1 * line.size):
            return True
    apart = top <= line.bottom or bottom >= line.top
    return apart and abs(math.sin(FPDFText_GetCharAngle(text, at))) <= 0.1


def _ruled(page: Any, lines: list[Line]) -> list[Line]:
    """The lines; those in a table whose cells are ruled as its rows."""
    for columns, rows, rules in _GRIDS["grids"](page):
        inside = [line for line in lines if rows[-1] < (line.top + line.bottom) / 2 < rows[0]
                  and columns[0] < (line.cells[0][0] + line.cells[-1][1]) / 2 < columns[-1]]  # fmt: skip
        if not inside:
            continue
        texts = [((left, line.bottom, right, line.top), text.strip()) for line in inside
                 for left, right, text in line.cells]  # fmt: skip
        found, at = _GRIDS["cells_of"](texts, columns, rows, rules), lines.index(inside[0])
        made = [
            replace(
                inside[0], cells=[*zip(columns, columns[1:], row, strict=False)], bold=False, top=top, bottom=bottom
            )
            for top, bottom, row in zip(rows, rows[1:], found, strict=False)
        ]
        there = set(map(id, inside))
        lines[at:at] = made
        lines = [line for line in lines if id(line) not in there]
    return lines


def _in_columns(lines: list[Line]) -> list[Line]:
    """The lines; where two columns of prose stand side by side in the file, one column after the other. Such are five
    lines or more with one common gap and four words or more on a side on average, as cells of tables have not.
    """
    done, at = list[Line](), 0
    while at < len(lines):
        end, left, right = at, 0.0, 1e9
        while end < len(lines) and len(lines[end].cells) == 2:
            left, right = max(left, lines[end].cells[0][1]), min(right, lines[end].cells[1][0])
            if left >= right:
                break
            end += 1
        run, at = lines[at : max(end, at + 1)], max(end, at + 1)
        if len(run) >= 5 and sum(len(line.text.split()) - 1 for line in run) >= 8 * len(run):
            run = [replace(line, cells=line.cells[side : side + 1]) for side in (0, 1) for line in run]
        done += run
    return done


def _in_rows(lines: list[Line]) -> list[Line]:
    """The lines; where a table was drawn one column after the other, its rows. Such columns stand to the right of one
    another on the same heights, have three rows or more, and in one of them most lines have three words or fewer.
    """
    falls: list[list[Line]] = []
    for line in lines:  # from one line to those below it
        if falls and line.top < falls[-1][-1].top + 0.5 * line.size:
            falls[-1].append(line)
        else:
            falls.append([line])
    done, at = list[Line](), 0
    while at < len(falls):
        columns, rest, end = _columns(falls, at)
        if len(columns) > 1:
            done += [*falls[at][: -len(columns[0])], *_rows(columns)]
            falls[end] = rest
            at = end if rest else end + 1
        else:
            done += falls[at]
            at += 1
    return done


def _columns(falls: list[list[Line]], at: int) -> tuple[list[list[Line]], list[Line], int]:
    """The columns of a table whose first one ends the fall `at`, what follows the last one in its fall, and where that
    fall stands. Fewer than two columns: there is no table.
    """
    if at + 1 == len(falls):
        return [], [], at
    first = [line for line in falls[at] if line.top < falls[at + 1][0].top + 0.5 * line.size]
    columns, rest, end = [first], list[Line](), at
    while end + 1 < len(falls) and not rest:
        edge = max(line.cells[-1][1] for line in columns[-1])
        fall = falls[end + 1]
        inside = next((place for place, line in enumerate(fall) if line.cells[0][0] < edge), len(fall))
        column, after = fall[:inside], fall[inside:]
        level = sum(any(_is_level(line, head) for line in column) for head in first)
        if level < max(3, 0.6 * len(first)):
            break
        columns, rest, end = [*columns, column], after, end + 1
    every = [line for column in columns for line in column]
    prose = all(2 * sum(len(line.text.split()) > 3 for line in column) >= len(column) for column in columns)
    bullets = sum(_BULLET.match(line.text) is not None for line in every) > 0.5 * len(every)
    if prose or bullets or any(len(line.cells) > 1 for line in every):
        return [], [], at
    return columns, rest, end


def _is_level(one: Line, other: Line) -> bool:
    return abs(one.top + one.bottom - other.top - other.bottom) < 0.6 * other.size


def _rows(columns: list[list[Line]]) -> Iterator[Line]:
    """Rows of columns, one for each line of the first; a line between two rows goes on in the cell of the upper one."""
    heads = columns[0]
    for place, head in enumerate(heads):
        under = heads[place + 1].top if place + 1 < len(heads) else -1e9
        cells = [head.cells[0]]
        for column in columns[1:]:
            said = [line for line in column if under + 0.3 * head.size < line.top <= head.top + 0.3 * head.size]
            ends = [line.cells[0] for line in said or column]
            text = " ".join(line.text for line in said)
            cells.append((min(end[0] for end in ends), max(end[1] for end in ends), text))
        yield replace(head, cells=cells)


def _filled(lines: list[Line], number: int, placed: Iterable[Any], out: Any) -> list[Line]:
    """The lines, with what stands in fields beside them: behind the label that ends left of it, before one that a tick
    box stands left of, or as a cell of its own in a row. What no line stands beside, and what notes say, follows.
    """
    beside: dict[int, list[Any]] = {}
    placed = [*placed]
    out.parts["pages with form fields"] += any(field[5] for field in placed)
    for field in placed:
        _, _, top, bottom, text, name = field
        out.parts["form fields" if name else "notes"] += 1
        level = (at for at, line in enumerate(lines) if name and line.bottom < (top + bottom) / 2 < line.top)
        beside.setdefault(next(level, -1), []).append(field)
    for at, fields in beside.items():
        cells = lines[at].cells if at >= 0 else []
        alone = len(cells) == len(fields) == 1
        for left, right, top, bottom, text, name in fields:
            if at < 0:
                said = f"{name}: {text}" if name and not text.startswith("[") else text
                lines.append(Line(number, [(left, right, said)], 0.0, False, top, bottom))
                continue
            place = sum(cell[0] < left for cell in cells)
            begin, end, label = cells[place - 1] if place else cells[0]
            if place and (alone or label.rstrip().endswith(":")):
                cells[place - 1] = begin, right, f"{label.rstrip()} {text}"
            elif alone:
                cells[0] = left, end, f"{text} {label.lstrip()}"
            else:
                cells.insert(place, (left, right, text))
    return lines


def _aligned(lines: list[Line]) -> list[Line]:
    """The lines; rows of a table with a cell for each of its columns, those that a row lacks empty."""
    done, rows = list[Line](), list[Line]()
    for at, line in enumerate(lines):
        after = lines[at + 1] if at + 1 < len(lines) else None
        if len(line.cells) == 1:
            done.append(line)
            continue
        rows.append(line)
        if after is not None and len(after.cells) > 1 and abs(line.bottom - after.top) < 4 * line.size:
            continue
        most = max(len(line.cells) for line in rows)
        full = [line for line in rows if len(line.cells) == most]
        for group in (full, full[:1]):
            columns = [(min(line.cells[n][0] for line in group), max(line.cells[n][1] for line in group))
                       for n in range(most)]  # fmt: skip
            if all(one[1] <= other[0] for one, other in pairwise(columns)):
                break
        done += [_in_places(line, columns) for line in rows]
        rows = []
    return done


def _in_places(line: Line, columns: list[tuple[float, float]]) -> Line:
    """A row whose cells stand in the columns that they are nearest to; as it was, where two are nearest to one."""
    if len(line.cells) == len(columns):
        return line
    cells = [(left, left, "") for left, _ in columns]
    for left, right, text in line.cells:
        at = min(range(len(columns)), key=lambda at: max(columns[at][0], left) - min(columns[at][1], right))
        if cells[at][2]:
            return line
        cells[at] = left, right, text
    return replace(line, cells=cells)


def _without_edges(pages: list[list[Line]], out: Any) -> list[Line]:
    """All lines but headers and footers: lines set apart at a page's edge that three pages and two fifths have, with
    the same words and numbers, but for one that counts the pages.
    """
    edges = [_edges(lines) for lines in pages]
    seen = Counter(key for lines in edges for key in {key for line in lines for key in _keys(line)})
    often = {key for key, count in seen.items() if count >= max(3, 0.4 * len(pages))}
    gone = [line for lines in edges for line in lines if not often.isdisjoint(_keys(line))]
    if gone:
        said = "\n".join(line.text for line in gone)
        out.leave("header and footer lines", gone[0].page, said, len(gone), seen=False)
        out.away.append(said)
    there = set(map(id, gone))
    return [line for lines in pages for line in lines if id(line) not in there]


def _edges(lines: list[Line]) -> list[Line]:
    """Lines at the top and the bottom of a page that a gap parts from the others; rows of a table are none."""
    found, falling = list[Line](), sorted(lines, key=lambda line: -line.top)
    apart = sorted(one.top - other.top for one, other in pairwise(falling) if one.top - other.top > 0.5 * one.size)
    usual = apart[len(apart) // 2] if len(apart) > 5 else 0.0
    for side in (falling, falling[::-1]):
        for most in range(1, min(EDGE, len(side) - 1) + 1):
            last, after = side[most - 1], side[most]
            in_table = len(last.cells) > 1 and len(after.cells) > 1
            if not in_table and abs(last.top - after.top) > 1.4 * (usual or 1.5 * last.size):
                found += side[:most]
                break
    return found


def _keys(line: Line) -> Iterator[str]:
    """What a line says; and, for each of its numbers, the same with how far that is from the page's own number."""
    text = line.text.lower()
    yield text
    for found in islice(re.finditer(r"\d{1,9}|(?<![a-z])[ivxl]{1,9}(?![a-z])", text), 0 if line.bold else 4):
        said, value = found[0], 0
        if not said.isdigit():
            worth = [_ROMAN[letter] for letter in said]
            value = sum(-one if one < max(worth[at:]) else one for at, one in enumerate(worth))
        yield f"{text[: found.start()]}#{(value or int(said)) - line.page}{text[found.end() :]}"


def _add_lines(lines: list[Line], out: Any) -> None:
    """Joins lines to headings, paragraphs and rows, by size, weight, distance and how the line before ends."""
    sizes, bold = Counter[float](), Counter[bool]()
    for line in lines:
        sizes[round(line.size, 1)] += len(line.text) if line.size else 0  # what stands in fields has none
        bold[line.bold] += len(line.text)
    body, before, was = max(sizes, key=lambda size: sizes[size], default=0.0), None, ""
    said = list[str]()  # lines of a block

    def end() -> None:
        if said and before is not None and was != "r":
            out.add(was, page, "\n".join(said))
        said.clear()

    page = 0
    for line in lines:
        text, strong = line.text, line.bold and bold[False] > bold[True] and not line.text.endswith((".", ",", ";"))
        named = len(text) <= 120 and re.search(r"[^\W\d]", text) and not _DOTTED.search(text)
        named = named and (strong or line.size >= 1.15 * body)
        role = "r" if len(line.cells) > 1 else "h" if named else "p"
        if before is not None and role == was != "r" and _goes_on(before, line, role, said):
            said[-1] = f"{said[-1][:-2]}{_UNMARKED.sub(PARTED, said[-1][-2:])}"
        else:
            end()
            page = line.page
        if role == "r":
            out.row(line.page, [cell for _, _, cell in line.cells])
            out.parts["tables"] += was != "r"
        else:
            said.append(text)
        before, was = line, role
    end()
    if any(PARTED in text for _, _, text in out.blocks):
        _mend_words(out.blocks)


def _mend_words(blocks: list[tuple[str, int, str]]) -> None:
    """Takes out hyphens where lines ended within a word. One stays beside a digit, beside a single letter, where
    capitals begin or end there ("Timor-Leste", "USB-stick"), and in words that have it elsewhere in the file.
    """
    written = {word.lower() for _, _, text in blocks if "-" in text for word in re.findall(r"\b\w++(?:-\w+)+", text)}

    def joined(found: re.Match[str]) -> str:
        left, right = found.groups()
        last, first = left[-1:], right[:1]
        kept = last.isupper() != first.isupper() or (last.isupper() and right[1:2].islower())
        kept = kept or last.isdigit() or first.isdigit() or len(left) == 1 or f"{left}-{right}".lower() in written
        return f"{left}-" if kept else left

    for at, (role, page, text) in enumerate(blocks):
        if PARTED in text:
            text = re.sub(rf"(?<![\w-])([\w-]*){PARTED} (?=([\w-]*))", joined, text).replace(PARTED, "-")
            blocks[at] = role, page, text


def _goes_on(before: Line, line: Line, role: str, said: list[str]) -> bool:
    """Whether a line belongs to the block of the line before."""
    gap = before.bottom - line.top
    near = line.page == before.page and -line.size < gap < 0.6 * line.size
    if not line.size or abs(line.size - before.size) > 0.1 * line.size or _begins_item(before, line, said):
        return False
    turned = line.page != before.page or gap < -line.size
    return near or (role == "p" and turned and not _ENDED.search(said[-1]))


def _begins_item(before: Line, line: Line, said: list[str]) -> bool:
    """Whether a line is an item of a list. A number or letter may also go on a sentence ("about / 10 feet"), but not
    where one has ended, where an item of its kind goes before, or where it had room on the line before.
    """
    mark, other = _BULLET.match(line.text), _BULLET.match(said[0])
    if mark is None or _SURE_BULLET.match(line.text) or _ENDED.search(said[-1]):
        return mark is not None
    if other and (other[1][-1] in ".)") == (mark[1][-1] in ".)"):
        return True
    left, right, text = line.cells[0]
    room = line.cells[-1][1] - before.cells[-1][1]
    return line.page == before.page and room > (mark.end() + 1) * (right - left) / len(text)
