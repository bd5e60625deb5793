"""What a PDF says, in reading order: lines by the places of their letters, rows of tables, headings, paragraphs.

Part of the process that reads documents (`document_worker`), and like it imports nothing of this package.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

EDGE = 3
"""Lines at the top and at the bottom of a page that may be its header and footer."""
_BULLET = re.compile(r"([•▪●◦–*-]|\(?(\d[\d.]*|[a-z])[.)]?) ")
_SURE_BULLET = re.compile(r"([•▪●◦–*-]|\(?(\d+|[a-z])\)|[1a]\.) ")  # no sentence goes on so
_DOTTED = re.compile(r"(\. ?){4}")
"""As in a table of contents."""
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
    out.pages = len(document)
    pages: list[list[Line]] = []
    without: dict[str, list[int]] = {"scanned": [], "torn": []}
    for number in range(1, out.pages + 1):
        try:
            page = document[number - 1]
            pages.append(_in_columns(_in_rows(list(_lines(page, number)))))
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


def _lines(page: Any, number: int) -> Iterator[Line]:
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
        return line

    for index, said, between, left, right, top, bottom in _words(textpage):
        if line and _is_over(line, left, top, bottom, text, index, broken=between == "\n"):
            yield ended(line)
            line, sizes = None, []
        size = top - bottom
        sizes += [size] * len(said)
        line, last = line or Line(number, [], size, is_bold(index), top, bottom), index + len(said) - 1
        begin, end, before = line.cells[-1] if line.cells else (left, -1e9, "")
        gap = left - end
        if gap > 0.9 * line.size and not (before and _BULLET.fullmatch(f"{before.strip()} ")):
            line.cells.append((left, right, f" {said}" if between == " " else said))
        else:
            blank = " " if between == " " or (between and gap > 0.15 * line.size) else ""
            line.cells[-1] = (begin, right, f"{before}{blank}{said}")
    if line:
        yield ended(line)


def _words(textpage: Any) -> Iterator[tuple[int, str, str, float, float, float, float]]:
    """Place among the page's letters, letters, what parts them from those before ("\n", " " or nothing), and left,
    right, top and bottom. A word whose letters do not stand on one line, side by side, comes letter by letter.
    """
    from pypdfium2 import raw

    text, box, count = textpage.raw, raw.FS_RECTF(), textpage.count_chars()
    place, ask = ctypes.byref(box), raw.FPDFText_GetLooseCharBox
    chars = textpage.get_text_range().replace("\ufffe", PARTED)
    if len(chars) != count or "\ufffd" in chars:  # some letters have no text there
        chars = "".join(chr(raw.FPDFText_GetUnicode(text, index)) for index in range(count))
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
            if said:
                ends = min(line.cells[0][0] for line in said), max(line.cells[0][1] for line in said)
                cells.append((*ends, " ".join(line.text for line in said)))
        yield replace(head, cells=cells)


def _without_edges(pages: list[list[Line]], out: Any) -> list[Line]:
    """All lines but headers and footers: lines at an edge that three pages and two fifths have, numbers aside."""
    edges = [sorted(lines, key=lambda line: line.top) for lines in pages]
    keys = [{_numberless(line) for line in (*lines[:EDGE], *lines[-EDGE:])} for lines in edges]
    seen = Counter(each for found in keys for each in found)
    often = {each for each, count in seen.items() if count >= max(3, 0.4 * len(pages))}
    kept = list[Line]()
    for lines, found in zip(pages, keys, strict=True):
        gone = often & found
        kept += [line for line in lines if _numberless(line) not in gone] if gone else lines
    if dropped := sum(map(len, pages)) - len(kept):
        out.dropped["header and footer lines"] = dropped
    return kept


def _numberless(line: Line) -> str:
    return re.sub(r"\d+|(?<![a-z])[ivxl]+(?![a-z])", "#", line.text.lower())


def _add_lines(lines: list[Line], out: Any) -> None:
    """Joins lines to headings, paragraphs and rows, by size, weight, distance and how the line before ends."""
    sizes, bold = Counter[float](), Counter[bool]()
    for line in lines:
        sizes[round(line.size, 1)] += len(line.text)
        bold[line.bold] += len(line.text)
    body, before, was = max(sizes, key=lambda size: sizes[size], default=0.0), None, ""
    for line in lines:
        text, strong = line.text, line.bold and bold[False] > bold[True] and not line.text.endswith((".", ",", ";"))
        named = len(text) <= 120 and re.search(r"[^\W\d]", text) and not _DOTTED.search(text)
        named = named and (strong or line.size >= 1.15 * body)
        role = "r" if len(line.cells) > 1 else "h" if named else "p"
        if before is not None and role == was != "r" and _goes_on(before, line, role, out.blocks[-1][2]):
            _, page, said = out.blocks.pop()
            out.blocks.append((role, page, f"{said[:-2]}{_UNMARKED.sub(PARTED, said[-2:])} {text}"))
        else:
            out.add(role, line.page, text)
        before, was = line, role
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


def _goes_on(before: Line, line: Line, role: str, said: str) -> bool:
    """Whether a line belongs to the block of the line before."""
    gap = before.bottom - line.top
    near = line.page == before.page and -line.size < gap < 0.6 * line.size
    if abs(line.size - before.size) > 0.1 * line.size or _begins_item(before, line, said):
        return False
    turned = line.page != before.page or gap < -line.size
    return near or (role == "p" and turned and not _ENDED.search(said))


def _begins_item(before: Line, line: Line, said: str) -> bool:
    """Whether a line is an item of a list. A number or letter may also go on a sentence ("about / 10 feet"), but not
    where one has ended, where an item of its kind goes before, or where it had room on the line before.
    """
    mark, other = _BULLET.match(line.text), _BULLET.match(said)
    if mark is None or _SURE_BULLET.match(line.text) or _ENDED.search(said):
        return mark is not None
    if other and (other[1][-1] in ".)") == (mark[1][-1] in ".)"):
        return True
    left, right, text = line.cells[0]
    room = line.cells[-1][1] - before.cells[-1][1]
    return line.page == before.page and room > (mark.end() + 1) * (right - left) / len(text)
