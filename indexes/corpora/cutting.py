"""Blocks of a document as passages of about 100 words, or as a user's own function cuts them.

The process that reads a document cuts it too (`document_worker`), within the same time and memory: it runs this file,
and what is imported of this package is imported where it is needed.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steprag.types import Passage

FORM = 4
"""Of reading and cutting: another number reads every document anew."""
WORDS = 100
"""Words of a passage, as in the dumps of Wikipedia."""
MOST = WORDS * 5 // 4
"""Words of a passage, about: a longer section is cut into equal parts."""
_PREFERRED = WORDS / 5
"""Words that a cut may stand off its place to fall between two paragraphs."""
_NO_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff"
_WORD = re.compile(rf"[{_NO_BLANKS}]{{1,2}}|[^\s{_NO_BLANKS}]+")
"""A word; of scripts without blanks two letters count as one."""
_END = re.compile(r"(?<![.!?…])([.!?…]++[\"'”’)\]]*+)\s++(?=[^a-z\s])|(?<![。！？])[。！？]++[」』”’）]*+")
_SHORT = re.compile(r"\W*+([^\W\d_]|Dr|Mr|Mrs|Ms|Prof|St|No|Nr|Art|Abs|vs|cf|pp|Fig|ca|bzw)\.")
"""What ends with a full stop and ends no sentence."""
_BACK = 40
"""Characters before a full stop in which such a word is looked for."""
Block = tuple[str, int, str]
"""Part of a document: its role ("h" a heading, "p" a paragraph, "r" a row of a table), page (0: none) and text."""
_PART: dict[str, type] = {"text": str, "title": str, "page": int}
LONGEST = 20_000
"""Characters of a text that a user's chunker may make."""


def cut(blocks: Iterable[Block], path: str) -> Iterator[Passage]:
    """A document's blocks as passages, in this process."""
    from steprag.types import Passage

    return (Passage(f"{path}#{made}", *row) for made, row in enumerate(cut_rows(blocks, path), 1))


def cut_rows(blocks: Iterable[Block], path: str) -> Iterator[tuple[str, str]]:
    """Titles and texts of a document's passages, of `MOST` words or a little more. A heading begins a passage, and
    sentences and rows of tables stay whole where they are no longer than one. A heading stands in titles; one over
    another heading, or one that is too long, in the text.
    """
    blocks = list(blocks)
    if all(role == "h" for role, _, _ in blocks):
        blocks = [("p", page, text) for _, page, text in blocks]
    heading, section, above, last = "", list[Block](), list[Block](), list[Block]()
    for role, page, text in [*blocks, ("h", 0, "")]:
        if role != "h":
            section.append((role, page, text))
            continue
        if not section:  # the last heading stands in no title
            above += last
        if section or not text:
            for begins, passage in _equal_parts([*above, *section]):
                yield ", ".join(filter(None, (Path(path).name, f"p. {begins}" if begins else "", heading))), passage
            above = []
        last = [("p", page, text)]
        section, heading = (last, f"{text[:119]}…") if len(text) > 120 else ([], text)


def own_chunker(place: str) -> tuple[Callable[[Iterable[Block], str], Iterator[Passage]], int]:
    """A user's `chunk(blocks, path)` in place of `cut`, and a form of its own by its code: another one reads every
    document anew. It returns rows: a text, or an object with `text` and, where it likes, `title` and `page`.

    Raises ConfigError, also while it cuts, for what it raises and for rows of another shape.
    """
    from steprag.errors import ConfigError, quoted
    from steprag.extras import code_hash, function_at, slips_named
    from steprag.types import Passage

    function = inspect.unwrap(function_at(place, "documents.chunker"))
    form = int(code_hash(place, "documents.chunker")[:12], 16)

    def chunked(blocks: Iterable[Block], path: str) -> Iterator[Passage]:
        with slips_named(place, f"documents.chunker: {path}"):
            rows = [*function([*blocks], path)]
        for number, row in enumerate(rows, 1):
            part: Any = {"text": row} if isinstance(row, str) else row
            typed = isinstance(part, dict) and all(type(value) is _PART.get(key) for key, value in part.items())
            if not typed or not 0 < len(part.get("text", "").strip()) <= LONGEST:
                raise ConfigError(f"documents.chunker: {place} returned {quoted(row)} as row {number} of {path}: give "
                                  f"texts of 1 to {LONGEST:,} characters, or {{text, title, page}}")  # fmt: skip
            page = f"p. {part['page']}" if part.get("page") else ""
            title = ", ".join(filter(None, (Path(path).name, page, part.get("title"))))
            yield Passage(f"{path}#{number}", title, part["text"].strip())

    return chunked, form


def _equal_parts(section: list[tuple[str, int, str]]) -> Iterator[tuple[int, str]]:
    """Page and text of the parts of a section, cut where the fewest words stand between an equal part and a
    paragraph's or sentence's end.
    """
    units: list[tuple[int, str, str]] = []  # page, text, what parts it from the next one
    ends, so_far = list[int](), 0  # words up to a unit's end
    for role, page, text in section:
        pieces = [piece for sentence in ([text] if role == "r" else _sentences(text)) for piece in _short(sentence)]
        for number, piece in enumerate(pieces, 1):
            so_far += len(_WORD.findall(piece))
            ends.append(so_far)
            units.append((page, piece, "\n" if number == len(pieces) else " "))
    parts, start = -(-so_far // MOST), 0
    for part in range(1, parts + 1):
        if start == len(units):
            return
        wanted = so_far * part / parts
        near = bisect_left(ends, wanted, start, len(ends) - 1)
        far = min(abs(ends[at] - wanted) for at in (near, max(near - 1, start))) + _PREFERRED
        around = range(bisect_left(ends, wanted - far, start), bisect_right(ends, wanted + far, start))
        end = min(around,
                  key=lambda at: abs(ends[at] - wanted) - _PREFERRED * (units[at][2] == "\n")) + 1  # fmt: skip
        end = len(units) if part == parts else end
        if end > start:
            yield units[start][0], "".join(f"{text}{after}" for _, text, after in units[start:end]).strip()
        start = end


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for found in _END.finditer(text):
        if not (found[1] == "." and _is_short(text[max(start, found.start() - _BACK) : found.end(1)])):
            yield text[start : found.end()].strip()
            start = found.end()
    if rest := text[start:].strip():
        yield rest


def _is_short(text: str) -> bool:
    """Whether the last word of a text, with its full stop, ends no sentence."""
    words = text.rsplit(None, 1)
    return bool(words) and _SHORT.fullmatch(words[-1]) is not None


def _short(sentence: str) -> Iterator[str]:
    """The sentence, in pieces of `MOST` words where it is longer."""
    begins = [found.start() for found in _WORD.finditer(sentence)][::MOST] or [0]
    for start, end in zip(begins, [*begins[1:], len(sentence)], strict=True):
        yield sentence[start:end].strip()
