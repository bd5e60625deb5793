"""Blocks of whatever is marked up: HTML, and the XML of Word, slides, workbooks and OpenDocument, told by local names.

Part of the process that reads documents (`document_worker`), and like it imports nothing of this package. One rule
holds for tables of every format: a row keeps its columns. A cell that is merged over rows stands in each of them; of
one merged over columns the others stay empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_INLINE = {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "bookmark", "cite", "code", "data", "del", "dfn", "em",
           "font", "i", "ins", "kbd", "label", "mark", "nobr", "output", "q", "r", "rb", "rp", "rt", "ruby", "samp",
           "slot", "small", "span", "strike", "strong", "sub", "sup", "t", "time", "tspan", "tt", "u", "var",
           "wbr"}  # fmt: skip
"""Elements that end no block; all others do. Names are in lower case, without namespaces."""
_OFFICE_TEXTS = {"t", "text"}
_OFFICE_BLOCKS = {"p", "tbl", "tr", "tc", "text", "txbxcontent", "txbody", "comment", "footnote", "endnote"}
"""Elements of Office's own namespaces that hold text, and those that end a block; all others do neither."""
_BLANKS = {"br", "cr", "tab", "ptab", "line-break", "s"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6", "h"}
_ROWS, _CELLS = {"tr", "table-row"}, {"td", "th", "tc", "table-cell"}
_TABLES = {"table", "tbl"}
_APART = {"txbxcontent": "text boxes", "textbox": "text boxes", "note-body": "notes", "annotation": "comments"}
"""What stands within a paragraph and is read behind it; so are notes that a Word document refers to."""
_NO_TEXT = {"head", "script", "style", "fallback", "sequence-decls", "note-citation"}
"""No text that anybody sees, or seen twice."""
_LEFT = {"template": "templates", "noscript": "texts for browsers without scripts", "tracked-changes": "deleted text",
         "deltext": "deleted text", "movefrom": "deleted text", "nav": "blocks of navigation",
         "footer": "blocks of navigation"}  # fmt: skip
"""What is named and not read."""
_MENU = re.compile(r"(?<![a-z])(nav|navbar|navigation|menu|breadcrumbs?|sidebar|toc)(?![a-z])", re.IGNORECASE)
"""Words of a class or id: where most of such an element's text is links, it is navigation."""
_FORMULAS = {"mfrac": "({})/({})", "f": "({})/({})", "msup": "{}^({})", "ssup": "{}^({})", "msub": "{}_({})",
             "ssub": "{}_({})", "msubsup": "{}_({})^({})", "ssubsup": "{}_({})^({})", "mroot": "({0})^(1/({1}))",
             "msqrt": "√({})", "rad": "({})√({})", "nary": "_({})^({}) {}", "d": "({})"}  # fmt: skip
"""How parts of MathML and Word's formulas are written in a line."""
MOST, MOST_ROWS = 1000, 65_534
"""Columns and repeated cells; rows that a merged cell covers."""


def markup(text: str, out: Any, *, chapter: bool = False) -> None:
    """Adds a page of HTML to `out`, a `Read` of the worker. Its title is a heading, where it has no such one; that of a
    book's `chapter` where it has none at all.
    """
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    root = etree.fromstring(text.encode("utf-8", "replace"), etree.HTMLParser(encoding="utf-8"))
    if root is None:
        return
    since = len(out.blocks)
    titles = {_plain("".join(one.itertext())) for one in root.iter("h1", "h2")}
    for node in [*root.iter("script", "style", "meta", "title")]:
        if named(node) == "title" and named(node.getparent()) == "head":
            if _plain(node.text or "") not in titles and not (chapter and titles):
                out.add("h", 0, node.text or "")
        elif "json" in node.get("type", ""):
            out.leave("JSON-LD", 0, node.text or "", seen=False)
        elif node.get("name", "").lower() in ("description", "author", "keywords"):
            out.leave("descriptions", 0, node.get("content", ""), seen=False)
    for node in [*root.iter("script", "style", "head")]:
        node.clear()
    Walker(out, 0).walked(root)
    out.account(((0, text) for text in root.itertext()), since)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


class Walker:
    """Adds the blocks of a tree in reading order, without navigation. `headings`: Word's styles of such. `notes`: what
    a reference leads to, by the reference's name and id.
    """

    def __init__(
        self, out: Any, page: int, headings: set[str] | None = None, notes: dict[Any, Any] | None = None
    ) -> None:
        self._out, self._page, self._headings, self._notes = out, page, headings or set(), notes or {}
        self._parts: list[str] = []
        self._later: list[Any] = []
        self._tables: list[dict[int, tuple[int, str]]] = []
        self._in_cell = 0

    def walked(self, root: Any, role: str = "p") -> None:
        """Adds a whole tree."""
        self._walk(root)
        self._end(role)

    def _end(self, role: str = "p") -> None:
        if self._in_cell:
            self._parts.append(" ")
            return
        text = "".join(self._parts)
        self._parts.clear()
        self._out.add(role, self._page, text)
        later, self._later = self._later, []
        for node in later:
            self._inside(node)
            self._end()

    def _walk(self, node: Any) -> None:
        name = named(node)
        if name in _NO_TEXT or self._is_left(node, name):
            return
        if name in _APART:
            self._out.parts[_APART[name]] += 1
        if name in _APART and (self._parts or self._in_cell):
            self._later.append(node)
        elif (special := _SPECIAL.get(name)) and special(self, node):
            return
        elif _is_inline(node, name):
            self._inside(node, " " if name in _BLANKS else "")  # HTML's <s> is struck out, and has a text
        else:
            self._end()
            self._inside(node)
            self._end(self._role(node, name))

    def _inside(self, node: Any, otherwise: str = "") -> None:
        self._parts.append((not _is_office(node) or named(node) in _OFFICE_TEXTS) and node.text or otherwise)
        for inner in node:
            self._walk(inner)
            self._parts.append(inner.tail or "")

    def _role(self, node: Any, name: str) -> str:
        if name in _HEADINGS:
            return "h"
        style = node.find("{*}pPr/{*}pStyle") if name == "p" and self._headings else None
        return "h" if style is not None and attribute(style, "val") in self._headings else "p"

    def _is_left(self, node: Any, name: str) -> bool:
        """Whether an element is not read; what of it has words is named."""
        if not name:
            if str(node).startswith("<!--") and re.search(r"\w{3}", node.text):
                self._out.leave("comments in the markup", self._page, node.text, seen=False)
            return True
        kind = _LEFT.get(name, "")
        if node.get("role") in ("navigation", "banner", "contentinfo", "search"):
            kind = "blocks of navigation"
        if not kind and node.get("aria-hidden") == "true" and name in _INLINE:
            kind = "signs hidden from readers"
        if not kind and _MENU.search(f"{node.get('class', '')} {node.get('id', '')}"):
            menu = sum(len("".join(link.itertext())) for link in node.iter("a")) > len("".join(node.itertext())) / 2
            kind = "blocks of navigation" if menu else ""
        if kind:
            self._out.leave(kind, self._page, " ".join(node.itertext()))
        elif "hidden" in node.attrib:
            self._out.parts["hidden panels"] += 1
        return bool(kind)

    # Elements of a way of their own: whether nothing else is to be done.

    def _table(self, node: Any) -> bool:
        self._end()
        self._tables.append({})
        self._inside(node)
        self._end()
        self._out.parts["tables"] += bool(self._tables.pop())
        return True

    def _row(self, node: Any) -> bool:
        inner = [name for name in map(named, node.iterdescendants()) if name in _ROWS or name in _HEADINGS]
        if any(name in _HEADINGS for name in inner) or (inner and len("".join(node.itertext())) > 1000):
            return False  # a table that lays out a page
        self._end()
        cells = self._cells(node, self._tables[-1] if self._tables else {})
        if self._in_cell:
            self._parts.append(f"{', '.join(filter(None, map(str.strip, cells)))}; ")
            return True
        for _ in range(min(_number(node, "number-rows-repeated"), MOST) if any(map(str.strip, cells)) else 0):
            self._out.row(self._page, cells)
        self._end()
        return True

    def _cells(self, row: Any, spans: dict[int, tuple[int, str]]) -> list[str]:
        """Texts of a row by its columns. `spans`, of a table: rows that a column's cell still covers, and its text."""
        cells = [""] * sum(min(_number(before, "val"), MOST) for before in row.iterfind("{*}trPr/{*}gridBefore"))

        def covered() -> None:
            while (rest := spans.get(len(cells), (0, "")))[0] > 0:
                spans[len(cells)] = rest[0] - 1, rest[1]
                cells.append(rest[1])

        for cell in _cells_of(row):
            if _is_covered(cell) or len(cells) >= MOST:
                continue
            covered()
            merged, at = cell.find("{*}tcPr/{*}vMerge"), len(cells)
            if merged is not None and attribute(merged, "val") != "restart":
                text, down = spans.get(at, (0, ""))[1], 1
            else:
                text, down = self.flat(cell), _number(cell, "rowspan", "rowSpan", "number-rows-spanned")
            grid = cell.find("{*}tcPr/{*}gridSpan")
            across = _number(cell if grid is None else grid, "colspan", "gridSpan", "number-columns-spanned", "val")
            cells += [text] * min(_number(cell, "number-columns-repeated"), MOST) + [""] * (min(across, MOST) - 1)
            for column in range(at, len(cells)):
                spans[column] = down - 1, text if column == at else ""
        covered()
        return cells

    def flat(self, cell: Any) -> str:
        """All text in a cell, with blanks where its blocks end."""
        outer, self._parts = self._parts, []
        self._in_cell += 1
        self._inside(cell)
        while self._later:
            self._parts.append(" ")
            self._inside(self._later.pop(0))
        self._in_cell -= 1
        text, self._parts = "".join(self._parts).strip().removesuffix(";"), outer
        return text

    def _code(self, node: Any) -> bool:
        self._end()
        for line in "".join(node.itertext()).splitlines():
            self._out.add("r", self._page, line)
        return True

    def _formula(self, node: Any) -> bool:
        self._out.parts["formulas"] += 1
        self._parts.append(f" {formula(node)} ")
        return True

    def _ruby(self, node: Any) -> bool:
        """The whole word, and behind it how it is read."""
        above = [one for one in node.iter() if named(one) in ("rt", "rp")]
        read = "".join("".join(one.itertext()) for one in above if named(one) == "rt")
        for one in above:
            one.clear(keep_tail=True)
        self._inside(node)
        self._parts.append(f" ({read})" if read.strip() else "")
        return True

    def _picture(self, node: Any) -> bool:
        """What is said of a picture."""
        if (said := node.get("alt") or node.get("descr") or "").strip():
            self._parts.append(f" {said} ")
            self._out.parts["descriptions of pictures"] += 1
        return named(node) == "img"

    def _field(self, node: Any) -> bool:
        """What a form says: the value of a field, a tick, the choice that was taken."""
        kind = node.get("type", "text" if named(node) == "input" else named(node))
        if kind == "select":
            taken = {one: "selected" in one.attrib for one in node.iter("option")}
            said, rest = (
                ", ".join("".join(one.itertext()) for one in taken if taken[one] is which) for which in (True, False)
            )
            self._out.leave("choices not taken", self._page, rest)
        elif kind in ("checkbox", "radio"):
            on = [node] if "checked" in node.attrib else [*node.iterfind("{*}checked"), *node.iterfind("{*}default")]
            said = "[x]" if on and attribute(on[0], "val") not in ("0", "false") else "[ ]"
        else:
            said = "" if kind in ("hidden", "password", "submit", "button", "image", "file") else node.get("value", "")
        self._out.parts["form fields"] += bool(said)
        self._parts.append(f" {said} ")
        return True

    def _hyphen(self, node: Any) -> bool:
        self._parts.append("-")
        return True

    def _frame(self, node: Any) -> bool:
        self._out.leave("embedded pages", self._page, re.sub("<[^<>]*>", " ", node.get("srcdoc", "")), seen=False)
        return True

    def _reference(self, node: Any) -> bool:
        note = self._notes.pop((named(node), attribute(node, "id")), None)
        if note is not None:
            self._later.append(note)
        return True


def _cells_of(row: Any) -> Iterator[Any]:
    """Cells of a row, also those that Word wraps."""
    for inner in row:
        if named(inner) in _CELLS | {"covered-table-cell"}:
            yield inner
        elif named(inner) in ("sdt", "sdtcontent", "ins", "customxml"):
            yield from _cells_of(inner)


def _is_covered(cell: Any) -> bool:
    """Whether a cell of OpenDocument or a slide lies under a merged one."""
    return named(cell) == "covered-table-cell" or cell.get("hMerge") == "1" or cell.get("vMerge") == "1"


def _is_office(node: Any) -> bool:
    return "openxmlformats" in node.tag or "microsoft" in node.tag


def _is_inline(node: Any, name: str) -> bool:
    """Whether an element ends no block."""
    if _is_office(node):
        return name not in _OFFICE_BLOCKS
    return name in _INLINE or name in _BLANKS


def attribute(node: Any, name: str) -> str:
    """The value of an attribute, whatever its namespace; else nothing."""
    return next((value for key, value in node.items() if key.rpartition("}")[2] == name), "")


def _number(node: Any, *names: str) -> int:
    """A count among an element's attributes, 1 where it has none. Rows that are 0 are all that follow."""
    for key, value in node.items():
        if key.rpartition("}")[2] in names and value[:9].isdecimal():
            return int(value[:9]) or (MOST_ROWS if key == "rowspan" else 1)
    return 1


def formula(node: Any) -> str:
    """A formula in a line: (a)/(b), x^(2)."""
    name = named(node)
    parts = [formula(inner) for inner in node if named(inner) and not named(inner).endswith("pr")
             and not named(inner).startswith("annotation")]  # fmt: skip
    wanted = _FORMULAS.get(name)
    sign = ""
    if name == "nary":
        found = node.find("{*}naryPr/{*}chr")
        sign = attribute(found, "val") if found is not None else "∫"
    if wanted and len(parts) == wanted.count("{"):
        text = wanted.format(*parts)
        return sign + re.sub(r"\((\w)\)", r"\1", text).replace("()√", "√") if name != "d" else text
    return sign + (node.text or "").strip() + "".join(parts)


def named(node: Any) -> str:
    """An element's name without its namespace, in lower case; nothing for comments."""
    return node.tag.rpartition("}")[2].lower() if isinstance(node.tag, str) else ""


_SPECIAL: dict[str, Callable[[Walker, Any], bool]] = {
    **dict.fromkeys(_TABLES, Walker._table), **dict.fromkeys(_ROWS, Walker._row), "pre": Walker._code,
    "iframe": Walker._frame, "math": Walker._formula, "omath": Walker._formula, "ruby": Walker._ruby,
    "img": Walker._picture,
    "docpr": Walker._picture, "cnvpr": Walker._picture, "input": Walker._field, "select": Walker._field,
    "footnotereference": Walker._reference, "endnotereference": Walker._reference,
    "commentreference": Walker._reference, "nobreakhyphen": Walker._hyphen, "checkbox": Walker._field,
}  # fmt: skip
