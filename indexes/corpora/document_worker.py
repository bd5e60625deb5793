"""The process that reads documents: a stranger's file in, blocks of text out. Run as a file, by `documents`.

It imports nothing of this package, and takes frames, limits and charsets from `indexes/web/extraction_worker.py`. In
comes one frame a document, {"path", "kind", "name"}; out goes one, {"pages", "blocks", "dropped", "problems",
"passages"}. A document with a name is cut here (`cutting.cut_rows`): its passages go out, its blocks do not. A block is
[role, page, text]: "h" a heading, "p" a paragraph, "r" a row of a table or a line of code. Pages count from 1; what has
no pages has page 0. A problem is [kind, page, detail].
"""

from __future__ import annotations

import json
import re
import runpy
import signal
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote
from xml.parsers.expat import ExpatError

_SHARED = runpy.run_path(str(Path(__file__).parents[1] / "web" / "extraction_worker.py"))

LONGEST = 20_000_000
"""Characters of a document's text."""
LARGE = "large", 0, f"holds more than {LONGEST:,} characters: split it"
MARKUP, PARTS = 256 << 20, 10_000
"""Bytes that the texts of an archive may unpack to, and files in it."""
_ZIP, _OLE = "a ZIP archive", "an old or encrypted Office file"
_MAGIC = {b"%PDF-": "a PDF", b"PK\x03\x04": _ZIP, b"\xd0\xcf\x11\xe0": _OLE, b"{\\rtf": "RTF", b"\x1f\x8b": "gzip",
          b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture", b"\x7fELF": "a program"}  # fmt: skip
_WANTED = {"pdf": "a PDF", "docx": _ZIP, "epub": _ZIP, "opendocument": _ZIP, "slides": _ZIP}
_BROKEN = (ArithmeticError, AttributeError, EOFError, ExpatError, LookupError, OSError, RuntimeError, StopIteration,
           SyntaxError, TypeError, ValueError, zlib.error, zipfile.BadZipFile)  # fmt: skip
"""What the libraries and this file raise for damaged files, whose parts are missing: errors of lxml are SyntaxErrors,
those of PDFium RuntimeErrors, zipfile's for a short member EOFErrors.
"""
_INLINE = {"a", "abbr", "b", "big", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "label", "mark", "q", "r",
           "small", "span", "strong", "sub", "sup", "t", "time", "u", "var"}  # fmt: skip
"""Elements that end no block; all others do. Names are those of HTML, OpenDocument and slides."""
_BLANKS = {"br", "tab", "line-break", "s", "img"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6", "h"}
_ROWS, _CELLS = {"tr", "table-row"}, {"td", "th", "tc", "table-cell"}
_UNSEEN = {"script", "style", "template", "noscript", "iframe", "head", "svg", "select", "button", "tracked-changes",
           "annotation", "sequence-decls"}  # fmt: skip
_MENU = re.compile(r"(?<![a-z])(nav|navbar|navigation|menu|breadcrumbs?|sidebar|toc)(?![a-z])", re.IGNORECASE)
"""Words of a class or id: where most of such an element's text is links, it is navigation."""


class Unreadable(Exception):
    """A document gives no text: the kind of its problem, and what is said of it."""


@dataclass
class Read:
    """What a document holds; `dropped` counts what was left out of it, by name."""

    pages: int = 0
    blocks: list[tuple[str, int, str]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, int, str]] = field(default_factory=list)
    passages: list[tuple[str, str]] = field(default_factory=list)

    def add(self, role: str, page: int, text: str) -> None:
        """A block of text, where it has any."""
        if text := " ".join(text.split()):
            self.blocks.append((role, page, text))


def main() -> None:
    _SHARED["limit"](RLIMIT_AS=int(sys.argv[1]) << 20, RLIMIT_FSIZE=0, RLIMIT_CORE=0, RLIMIT_NPROC=0)
    while (frame := _SHARED["read"](sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_REAL, int(sys.argv[2]))  # whoever asks may have been killed
        text = json.dumps(vars(_cut(**json.loads(frame))), ensure_ascii=False)
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()  # a glyph may be half one
        if len(whole) > _SHARED["FRAME"]:
            whole = json.dumps(vars(Read(problems=[LARGE]))).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        _SHARED["write"](sys.stdout.buffer, whole)


def _cut(path: str, kind: str, name: str | None) -> Read:
    """What a file holds; its passages in place of its blocks, where it has a name."""
    out = read(path, kind)
    if name is not None:
        out.passages, out.blocks = [*_cutting()["cut_rows"](out.blocks, name)], []
    return out


@cache
def _cutting() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name("cutting.py")))


def read(path: str, kind: str) -> Read:
    """What a file of this kind (`READERS`) holds, or why it gives nothing."""
    out = Read()
    try:
        _check_type(path, kind)
        READERS[kind](path, out)
        if sum(len(text) for _, _, text in out.blocks) > LONGEST:
            return Read(problems=[LARGE])
    except Unreadable as error:
        return Read(problems=[(error.args[0], 0, error.args[1])])
    except _BROKEN as error:
        return Read(problems=[("torn", 0, f"is damaged: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}")])
    return out


def _check_type(path: str, kind: str) -> None:
    """Raises Unreadable where a file begins as another kind of file does."""
    with open(path, "rb") as stream:
        head = stream.read(4096)
    if not head.strip():
        raise Unreadable("empty", "is empty")
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    wanted = _WANTED.get(kind)
    if wanted == _ZIP and found == _OLE:
        raise Unreadable("encrypted", "is encrypted or of an old format: save it anew, without a password")
    if not wanted and b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        found = found or "something other than text"
    if found != wanted and not (kind == "pdf" and b"%PDF-" in head[:1024]):
        raise Unreadable("type", f"is {found or 'something else'}, not what its name says: rename or remove it")


def _decoded(content: bytes) -> str:
    return _SHARED["decoded"](content, "").replace("\r\n", "\n")


def _text(path: str, out: Read) -> None:
    for part in re.split(r"\n\s*\n|\f", _decoded(Path(path).read_bytes())):
        out.add("p", 0, part)


def _markdown(path: str, out: Read) -> None:
    from markdown_it import MarkdownIt

    text = re.sub(r"\A---\n.*?\n(---|\.\.\.)\n", "", _decoded(Path(path).read_bytes()), flags=re.DOTALL)
    _markup(MarkdownIt("commonmark").enable("table").render(text), out)


def _docx(path: str, out: Read) -> None:
    import mammoth

    with _archive(path) as archive, open(path, "rb") as stream:
        if "word/document.xml" not in archive.namelist():
            raise Unreadable("type", "is no Word document: rename or remove it")
        titles = "p[style-name='Title'] => h1:fresh"
        _markup(mammoth.convert_to_html(stream, style_map=titles, convert_image=lambda image: []).value, out)


@cache
def _pdf_reader() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name("document_pdf.py")))


def _epub(path: str, out: Read) -> None:
    with _archive(path) as archive:
        locked = "META-INF/encryption.xml"  # fonts alone may be, in open books too
        if locked in archive.namelist() and re.search(rb"\.x?html?\b", archive.read(locked)):
            raise Unreadable("encrypted", "is encrypted: take its copy protection off first")
        root = next(_xml(archive, "META-INF/container.xml").iter("{*}rootfile")).get("full-path")
        book = _xml(archive, root)
        items = {item.get("id"): item for item in book.iter("{*}item") if item.get("properties") != "nav"}
        for item in (items.get(reference.get("idref")) for reference in book.iter("{*}itemref")):
            if item is not None and "html" in item.get("media-type", ""):
                content = archive.read(normpath(join(dirname(root), unquote(item.get("href")))))
                _markup(_decoded(content), out)


def _opendocument(path: str, out: Read) -> None:
    with _archive(path) as archive:
        _walk(_xml(archive, "content.xml"), 0, out)


def _slides(path: str, out: Read) -> None:
    with _archive(path) as archive:
        targets = {link.get("Id"): link.get("Target") for link in _xml(archive, "ppt/_rels/presentation.xml.rels")}
        for out.pages, shown in enumerate(_xml(archive, "ppt/presentation.xml").iter("{*}sldId"), 1):
            link = next(value for name, value in shown.items() if name.endswith("}id"))
            slide = _xml(archive, normpath(join("ppt", targets[link])))
            for holder in [*slide.iter("{*}ph")]:
                if holder.get("type") in ("title", "ctrTitle"):
                    shape = next(holder.iterancestors("{*}sp"))
                    out.add("h", out.pages, "".join(shape.itertext()))
                    shape.getparent().remove(shape)
            _walk(slide, out.pages, out)


def _archive(path: str) -> zipfile.ZipFile:
    """Opens an archive; archives in it stay closed. Raises Unreadable where it unpacks to more than it may."""
    archive = zipfile.ZipFile(path)
    parts = archive.infolist()
    marked = sum(part.file_size for part in parts if re.search(r"\.(xml|rels|x?html?|opf|ncx)$", part.filename))
    if any(part.flag_bits & 1 for part in parts):
        raise Unreadable("encrypted", "is encrypted: save it without its password first")
    if len(parts) > PARTS or marked > MARKUP:
        raise Unreadable("large", f"unpacks to {len(parts):,} files and {marked >> 20:,} MiB of text: too much")
    return archive


def _xml(archive: zipfile.ZipFile, name: str) -> Any:
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    return etree.fromstring(archive.read(name), etree.XMLParser(resolve_entities=False, no_network=True))


def _markup(text: str, out: Read) -> None:
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    root = etree.fromstring(text.encode("utf-8", "replace"), etree.HTMLParser(encoding="utf-8"))
    if root is not None:
        _walk(root, 0, out)


def _walk(root: Any, page: int, out: Read) -> None:
    """Adds the blocks of a tree of HTML, OpenDocument or a slide in reading order, without navigation."""
    parts: list[str] = []

    def end(role: str = "p") -> None:
        out.add(role, page, "".join(parts))
        parts.clear()

    def walk(node: Any) -> None:
        name = _named(node)
        if _is_left_out(node, name, out):
            return
        if name not in _INLINE | _BLANKS:
            end()
        if name in _ROWS and not any(_named(inner) in _ROWS | _HEADINGS for inner in node.iterdescendants()):
            cells = [_flat(cell).strip() for cell in node if _named(cell) in _CELLS]
            out.add("r", page, " | ".join(filter(None, cells)))
        elif name == "pre":
            for line in "".join(node.itertext()).splitlines():
                out.add("r", page, line)
        else:
            parts.append(node.text or (" " if name in _BLANKS else ""))  # HTML's <s> is struck out, and has a text
            for inner in node:
                walk(inner)
                parts.append(inner.tail or "")
            if name not in _INLINE | _BLANKS:
                end("h" if name in _HEADINGS else "p")

    walk(root)
    end()


def _flat(node: Any) -> str:
    """All text in a cell, with blanks where its blocks end."""
    name = _named(node)
    inner = "".join(f"{_flat(child)}{child.tail or ''}" for child in node)
    return f"{node.text or ''}{inner}" if name in _INLINE else f" {node.text or ''}{inner} " if name else ""


def _named(node: Any) -> str:
    """An element's name without its namespace; nothing for comments."""
    return node.tag.rpartition("}")[2].lower() if isinstance(node.tag, str) else ""


def _is_left_out(node: Any, name: str, out: Read) -> bool:
    """Whether an element is not read; navigation is counted."""
    if not name or name in _UNSEEN or "hidden" in node.attrib or node.get("aria-hidden") == "true":
        return True
    menu = name in ("nav", "footer") or node.get("role") in ("navigation", "banner", "contentinfo", "search")
    if not menu and _MENU.search(f"{node.get('class', '')} {node.get('id', '')}"):
        menu = sum(len("".join(link.itertext())) for link in node.iter("a")) > len("".join(node.itertext())) / 2
    if menu and "".join(node.itertext()).strip():
        out.dropped["blocks of navigation"] += 1
    return menu


READERS: dict[str, Callable[[str, Read], None]] = {
    "pdf": lambda path, out: _pdf_reader()["read_pdf"](path, out), "markdown": _markdown,
    "text": _text, "docx": _docx, "epub": _epub, "slides": _slides,
    "opendocument": _opendocument, "html": lambda path, out: _markup(_decoded(Path(path).read_bytes()), out),
}  # fmt: skip

if __name__ == "__main__":
    main()
