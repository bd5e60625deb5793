"""Documents that are archives of XML: Word, slides, workbooks, OpenDocument and EPUB, with all parts that hold text.

Part of the process that reads documents (`document_worker`), and like it imports nothing of this package.
"""

from __future__ import annotations

import re
import runpy
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from typing import Any
from urllib.parse import unquote

_MARKUP = runpy.run_path(str(Path(__file__).with_name("document_markup.py")))
Walker, markup, named, attribute, MOST, MOST_ROWS = (
    _MARKUP[name] for name in ("Walker", "markup", "named", "attribute", "MOST", "MOST_ROWS")
)

MARKUP, PARTS = 256 << 20, 10_000
"""Bytes that the texts of an archive may unpack to, and files in it."""
_RELATED = {"notesSlide": "speaker's notes", "chart": "charts", "chartEx": "charts", "diagramData": "diagrams",
            "comments": "comments", "threadedComment": "comments", "header": "headers and footers",
            "footer": "headers and footers", "footnotes": "notes", "endnotes": "notes",
            "drawing": "drawings"}  # fmt: skip
"""Parts of an Office file that are read, by their relation to the part that leads to them."""
_EMBEDDED = {"package": "embedded files", "oleObject": "embedded files", "aFChunk": "embedded files",
             "vbaProject": "macros"}  # fmt: skip
_NOTES = {"footnotes": "footnotereference", "endnotes": "endnotereference", "comments": "commentreference"}
_FRAME = re.compile(
    r"/(slideLayouts|slideMasters|notesMasters|handoutMasters|theme|glossary|diagrams|charts|styles|settings|fontTable|"
    r"numbering|webSettings|presProps|viewProps|tableStyles|calcChain)\b"
)
"""Parts that hold no text of the document's own, or that of others again."""
_TEXT = re.compile(rb"<(?:\w+:)?t(?: [^<>]*)?>([^<]+)<")
_FORMATS = {1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 37: "#,##0", 38: "#,##0",
            39: "#,##0.00", 40: "#,##0.00", 22: "y-m-d h:s", **dict.fromkeys((14, 15, 16, 17), "y-m-d"),
            **dict.fromkeys((18, 19, 20, 21, 45, 46, 47), "h:s")}  # fmt: skip
"""A workbook's formats of numbers that have no code in it (ECMA-376, part 1, 18.8.30)."""


class Archive:
    """Parts of a ZIP archive by name; archives in it stay closed."""

    def __init__(self, path: str, out: Any) -> None:
        """Refuses what is encrypted, and what unpacks to more than it may."""
        self._zip, self.seen = zipfile.ZipFile(path), set[str]()
        parts = self._zip.infolist()
        self.names = {part.filename for part in parts}
        marked = sum(part.file_size for part in parts if re.search(r"\.(xml|rels|x?html?|opf|ncx)$", part.filename))
        if any(part.flag_bits & 1 for part in parts):
            out.refuse("encrypted", "is encrypted: save it without its password first")
        if len(parts) > PARTS or marked > MARKUP:
            out.refuse("large", f"unpacks to {len(parts):,} files and {marked >> 20:,} MiB of text: too much")

    def read(self, name: str) -> bytes:
        """A part's bytes. Raises KeyError."""
        self.seen.add(name)
        return self._zip.read(name)

    def xml(self, name: str) -> Any:
        """A part as a tree; entities stay as they are written."""
        from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

        return etree.fromstring(self.read(name), etree.XMLParser(resolve_entities=False, no_network=True))

    def links(self, part: str) -> list[tuple[str, str, str]]:
        """Id, kind and part of all that an Office part leads to within the archive, in the order of the ids."""
        name = join(dirname(part), "_rels", f"{basename(part)}.rels")
        found = [] if name not in self.names else [
            (link.get("Id", ""), basename(link.get("Type", "")),
             normpath(join("/", dirname(part), link.get("Target", "")))[1:])
            for link in self.xml(name) if link.get("TargetMode") != "External"]  # fmt: skip
        return sorted(found, key=lambda link: (len(link[0]), link[0]))


def docx(path: str, out: Any) -> None:
    """A Word document: notes and comments behind their paragraphs; then headers, charts and diagrams."""
    archive = Archive(path, out)
    main = next((name for name in sorted(archive.names) if re.fullmatch(r"word/document\d*\.xml", name)), "")
    if not main:
        out.refuse("type", "is no Word document: rename or remove it")
    root, notes, seen = archive.xml(main), dict[Any, Any](), {main}
    for _, kind, part in archive.links(main):
        if kind in _NOTES and part in archive.names:
            seen.add(part)
            for note in archive.xml(part):
                notes[_NOTES[kind], attribute(note, "id")] = note
                out.parts[_RELATED[kind]] += bool("".join(note.itertext()).strip())
    _walked([root, *notes.values()], out, 0, _headings(archive), notes)
    _related(archive, main, out, 0, seen)
    _unread(archive, out)


def _walked(roots: list[Any], out: Any, page: int, headings: set[str] | None = None, notes: Any = None) -> None:
    """Adds trees of Office's XML; `notes` are some of them, and those to which nothing refers come last."""
    for old in [old for root in roots for old in root.iter("{*}Fallback")]:
        old.getparent().remove(old)
    since = len(out.blocks)
    pieces = [(page, text.text) for root in roots for text in root.iter("{*}t", "{*}delText", "{*}text") if text.text]
    for root in roots[:1] if notes else roots:
        _take_titles(root, page, out)
        Walker(out, page, headings, notes).walked(root)
    for note in list((notes or {}).values()):
        Walker(out, page).walked(note)
    out.account(pieces, since)


def _take_titles(root: Any, page: int, out: Any) -> None:
    """Adds a slide's title before the others, and takes its number out."""
    for holder in [*root.iter("{*}ph")]:
        shape = next(holder.iterancestors("{*}sp"), None)
        if shape is not None and holder.get("type") in ("title", "ctrTitle", "sldNum"):
            if holder.get("type") != "sldNum":
                out.add("h", page, Walker(out, page).flat(shape))
            shape.getparent().remove(shape)


def _headings(archive: Archive) -> set[str]:
    """Ids of Word's styles of headings and titles, and of those based on one."""
    if "word/styles.xml" not in archive.names:
        return set()
    found, based = set[str](), dict[str, str]()
    for style in archive.xml("word/styles.xml").iter("{*}style"):
        facts, id = {named(inner): attribute(inner, "val") for inner in style.iter()}, attribute(style, "styleId")
        based[id] = facts.get("basedon", "")
        is_named = re.fullmatch(r"heading \d|title", facts.get("name", ""), re.IGNORECASE)
        if is_named or facts.get("outlinelvl", "9") in tuple("012345678"):
            found.add(id)
    for _ in range(10):
        found |= {id for id, base in based.items() if base in found}
    return found


def slides(path: str, out: Any) -> None:
    """A presentation, slide by slide, each with its notes, charts and diagrams."""
    archive, main = Archive(path, out), "ppt/presentation.xml"
    targets = {id: part for id, _, part in archive.links(main)}
    for out.pages, shown in enumerate(archive.xml(main).iter("{*}sldId"), 1):
        part = targets[next(value for name, value in shown.items() if name.endswith("}id"))]
        slide = archive.xml(part)
        out.parts["hidden slides"] += slide.get("show") == "0"
        _walked([slide], out, out.pages)
        _related(archive, part, out, out.pages, {part, main})
    _unread(archive, out)


def _related(archive: Archive, part: str, out: Any, page: int, seen: set[str]) -> None:
    """Reads the parts that a part leads to, and those that these lead to; headers that say the same are one."""
    for _, kind, target in archive.links(part):
        if kind in _EMBEDDED and "/charts/" not in part:
            out.leave(_EMBEDDED[kind], page, basename(target), seen=False)
        if kind not in _RELATED or target in seen or target not in archive.names:
            continue
        root, since = archive.xml(target), len(out.blocks)
        said = f"{kind} {' '.join(root.itertext())}"
        if said not in seen:
            _chart(root, page, out) if kind in ("chart", "chartEx") else _walked([root], out, page)
        seen |= {target, said} if kind in ("header", "footer") else {target}
        out.parts[_RELATED[kind]] += len(out.blocks) > since and kind != "drawing"
        _related(archive, target, out, page, seen)


def _unread(archive: Archive, out: Any) -> None:
    """Names what other parts of an Office file say."""
    for name in sorted(archive.names - archive.seen):
        if name.endswith(".xml") and name.startswith(("word/", "ppt/", "xl/")) and not _FRAME.search(name):
            out.leave("other parts", 0, b" ".join(_TEXT.findall(archive.read(name))).decode("utf-8", "replace"))


def _chart(root: Any, page: int, out: Any) -> None:
    """A chart's title, and its series as columns of a table."""
    series = [*root.iter("{*}ser")]
    for title in root.iter("{*}title") if series else [root]:
        Walker(out, page).walked(title)
    names, columns, labels = [""], list[dict[int, str]](), dict[int, str]()
    for one in series:
        names.append(" ".join("".join(text.itertext()) for text in one.iterfind("{*}tx//{*}v")))
        labels |= {**_points(one, "cat", "xVal"), **labels}
        columns.append(_points(one, "val", "yVal"))
    if series:
        out.row(page, names)
    for at in sorted(set(labels).union(*columns)):
        out.row(page, [labels.get(at, ""), *(column.get(at, "") for column in columns)])


def _points(series: Any, *names: str) -> dict[int, str]:
    return {int(point.get("idx", 0)): "".join(point.itertext())
            for name in names for point in series.iterfind(f"{{*}}{name}//{{*}}pt")}  # fmt: skip


def workbook(path: str, out: Any) -> None:
    """A workbook, sheet by sheet: a heading, and rows of cells as people see them."""
    archive, main = Archive(path, out), "xl/workbook.xml"
    if main not in archive.names:
        out.refuse("type", "is no workbook: rename or remove it")
    book, parts = archive.xml(main), {id: part for id, _, part in archive.links(main)}
    shared, formats = list[str](), list[str]()
    for part in parts.values():
        if part.endswith("sharedStrings.xml"):
            shared = [_said(item) for item in archive.xml(part).iterchildren("{*}si")]
        elif part.endswith("styles.xml"):
            styles = archive.xml(part)
            codes = {int(attribute(one, "numFmtId")): attribute(one, "formatCode") for one in styles.iter("{*}numFmt")}
            used = [int(one.get("numFmtId", 0)) for group in styles.iter("{*}cellXfs") for one in group]
            formats = [codes.get(number, _FORMATS.get(number, "")) for number in used]
    early = any(one.get("date1904") in ("1", "true") for one in book.iter("{*}workbookPr"))
    for sheet in book.iter("{*}sheet"):
        part = parts[next(value for name, value in sheet.items() if name.endswith("}id"))]
        out.add("h", 0, sheet.get("name", ""))
        out.parts["hidden sheets"] += sheet.get("state", "visible") != "visible"
        if "/worksheets/" in part:
            _sheet(archive.xml(part), shared, formats, early, out)
        _related(archive, part, out, 0, {part})
    _unread(archive, out)


def _said(item: Any) -> str:
    """A string of a workbook, without how it is pronounced."""
    return "".join(text.text or "" for text in item.iter("{*}t") if named(text.getparent()) != "rph")


def _sheet(root: Any, shared: list[str], formats: list[str], early: bool, out: Any) -> None:
    under: dict[int, dict[int, list[str]]] = {}  # rows below a merged cell's first one: columns, and its text
    first: dict[tuple[int, int], list[str]] = {}
    for area in root.iter("{*}mergeCell"):
        (top, left), (bottom, _) = map(_place, (*area.get("ref").split(":"), "A1")[:2])
        first[top, left] = text = [""]
        for row in range(top + 1, min(bottom, top + MOST_ROWS) + 1):
            under.setdefault(row, {})[left] = text
    without = list[str]()
    for row in root.iter("{*}row"):
        cells, number = list[str](), 0
        for cell in row.iterchildren("{*}c"):
            place = cell.get("r")
            number, column = _place(place) if place else (number, len(cells) + 1)
            text = _cell(cell, shared, formats, early)
            if cell.find("{*}f") is not None and not text:
                without.append(cell.get("r", ""))
            cells += [""] * (min(column, MOST) - len(cells))
            cells[column - 1 :] = [text]
            first.get((number, column), [""])[0] = text
        for column, text in under.get(number, {}).items():
            cells += [""] * (column - len(cells))
            cells[column - 1] = cells[column - 1] or text[0]
        out.parts["hidden rows"] += row.get("hidden") in ("1", "true") and any(cells)
        out.row(0, cells)
    out.leave("formulas without a stored value", 0, " ".join(without), len(without), seen=False)
    for text in root.iter("{*}oddHeader", "{*}oddFooter"):
        out.leave("headers and footers", 0, re.sub(r"&(\"[^\"]*\"|\d+|.)", " ", text.text or ""), seen=False)


def _place(reference: str) -> tuple[int, int]:
    """Row and column of a cell such as B7, from 1."""
    found = re.fullmatch(r"\$?([A-Z]{1,3})\$?(\d{1,7})", reference)
    if not found:
        raise ValueError(f"{reference[:20]!r} is no place of a cell")
    column = 0
    for letter in found[1]:
        column = 26 * column + ord(letter) - 64
    return int(found[2]), column


def _cell(cell: Any, shared: list[str], formats: list[str], early: bool) -> str:
    kind, value = cell.get("t", "n"), cell.findtext("{*}v") or ""
    if kind == "inlineStr":
        return _said(cell)
    if kind == "s":
        return shared[int(value)] if value else ""
    if kind == "b":
        return {"1": "TRUE", "0": "FALSE"}.get(value, "")
    if kind != "n" or not value:
        return value
    style = int(cell.get("s", 0))
    return shown(float(value), formats[style] if style < len(formats) else "", early=early)


def shown(number: float, code: str, *, early: bool = False) -> str:
    """A number as its format shows it: 9%, 02134, 1,234.50 €; dates and times as ISO 8601 has them. `early`: days count
    from 1904.
    """
    code = re.sub(r"_.|\*.|\[(?!\$)[^][]*\]", "", code.partition(";")[0])
    bare = re.sub(r'"[^"]*"|\\.|\[[^][]*\]', "", code).lower()
    if re.search(r"[ymdhs]", bare) and "general" not in bare:
        at = datetime(1904, 1, 1) if early else datetime(1899, 12, 30) + timedelta(days=number < 61)
        at += timedelta(seconds=round(number * 86400))
        day, hour = re.search(r"[yd]|^m+$|mmm", bare), re.search(r"[hs]", bare)
        return at.strftime(" ".join(["%Y-%m-%d"] * bool(day) + ["%H:%M:%S" if "s" in bare else "%H:%M"] * bool(hour)))
    digits = re.search(r"[#0?][#0?,]*(?:\.([0#?]*))?", code)
    if not digits or "general" in bare or re.search(r"e[+-]|/|@", bare):
        return f"{number:.15g}"
    places, fixed = digits[1] or "", (digits[1] or "").count("0")
    whole = digits[0].partition(".")[0]
    text = f"{abs(number) * (100 if '%' in bare else 1):{',' * (',' in whole)}.{min(len(places), 30)}f}"
    head, _, tail = text.partition(".")
    tail = tail[:fixed] + tail[fixed:].rstrip("0")
    text = head.zfill(whole.count("0")) if "," not in whole else head
    around = [
        re.sub(r'"([^"]*)"|\\(.)|\[\$([^][-]*+)[^][]*+\]', r"\1\2\3", part)
        for part in (code[: digits.start()], code[digits.end() :])
    ]
    return f"{'-' * (number < 0)}{around[0]}{text}{'.' * bool(tail)}{tail}{around[1]}".strip()


def opendocument(path: str, out: Any) -> None:
    """Text, slides or sheets of OpenDocument; then headers and footers, charts and formulas."""
    archive = Archive(path, out)
    root = archive.xml("content.xml")
    body = next(root.iter("{*}body"), root)
    for part in [*body.iter("{*}page")] or [*body.iterfind("{*}spreadsheet/{*}table")] or [body]:
        if named(part) == "page":
            out.pages += 1
        elif named(part) == "table":
            out.add("h", 0, attribute(part, "name"))
        _open(part, out.pages, out)
        out.parts["tables"] *= named(part) != "table"  # a sheet is one
    if "styles.xml" in archive.names:
        said = {"".join(one.itertext()): one for one in archive.xml("styles.xml").iter("{*}header", "{*}footer")}
        for text, one in said.items():
            _open(one, 0, out)
            out.parts["headers and footers"] += bool(text.strip())
    for name in sorted(archive.names):
        if re.fullmatch(r"(.+/)?Object [^/]+/content\.xml", name):
            root = archive.xml(name)
            _open(next(root.iter("{*}body"), root), 0, out)
            out.parts["charts"] += named(root) != "math"


def _open(root: Any, page: int, out: Any) -> None:
    since = len(out.blocks)
    pieces = [(page, text) for text in root.itertext()]
    for frame in [*root.iter("{*}frame")]:
        if attribute(frame, "class") == "title" and not next(frame.iterancestors("{*}notes"), None):
            out.add("h", page, Walker(out, page).flat(frame))
            frame.clear()
    out.parts["speaker's notes"] += any("".join(notes.itertext()).strip() for notes in root.iter("{*}notes"))
    Walker(out, page).walked(root)
    out.account(pieces, since)


def epub(path: str, out: Any) -> None:
    """A book: its title and authors, and its chapters in reading order."""
    archive = Archive(path, out)
    locked = "META-INF/encryption.xml"  # fonts alone may be, in open books too
    if locked in archive.names and re.search(rb"\.x?html?\b", archive.read(locked)):
        out.refuse("encrypted", "is encrypted: take its copy protection off first")
    root = next(archive.xml("META-INF/container.xml").iter("{*}rootfile")).get("full-path")
    book = archive.xml(root)
    for role, name in (("h", "title"), ("p", "creator"), ("p", "description")):
        for fact in book.iterfind(f"{{*}}metadata/{{*}}{name}"):
            out.add(role, 0, fact.text or "")
    items = {item.get("id"): item for item in book.iter("{*}item") if "html" in item.get("media-type", "")
             and "nav" not in item.get("properties", "").split()}  # fmt: skip
    spine = [reference.get("idref") for reference in book.iter("{*}itemref")]
    for id in spine:
        if id in items:
            markup(
                out.decoded(archive.read(normpath(join(dirname(root), unquote(items[id].get("href")))))),
                out,
                chapter=True,
            )
    for id, item in items.items():
        if id not in spine:
            out.leave("chapters that the book's order leaves out", 0, item.get("href", ""), seen=False)
