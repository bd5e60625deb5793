"""The process that reads documents: a stranger's file in, blocks of text out. Run as a file, by `documents`.

It imports nothing of this package, and takes frames, limits and charsets from `indexes/web/extraction_worker.py`. In
comes one frame a document, {"path", "kind", "name"}; out goes one, the fields of `Read`. A document with a name is cut
here (`cutting.cut_rows`): its passages go out, its blocks do not. A block is [role, page, text]: "h" a heading, "p" a
paragraph, "r" a row of a table or a line of code. Pages count from 1; what has no pages has page 0. A problem is
[kind, page, detail].

What a file holds is in its blocks, or named in `left`: [kind, page, words, letters, count]; `letters` counts what was
seen, and `account` names what is in neither.
"""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import signal
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

_SHARED = runpy.run_path(str(Path(__file__).parents[1] / "web" / "extraction_worker.py"))

LONGEST = 20_000_000
"""Characters of a document's text."""
LARGE = "large", 0, f"holds more than {LONGEST:,} characters: split it"
PIECES = 100
"""Pieces of a document that are named one by one, in as many characters each; of more, each kind is one."""
_ZIP, _OLE = "a ZIP archive", "an old or encrypted Office file"
_MAGIC = {b"%PDF-": "a PDF", b"PK\x03\x04": _ZIP, b"\xd0\xcf\x11\xe0": _OLE, b"{\\rtf": "RTF", b"\x1f\x8b": "gzip",
          b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture", b"\x7fELF": "a program"}  # fmt: skip
_WANTED = {"pdf": "a PDF", "rtf": "RTF", **dict.fromkeys(("docx", "epub", "opendocument", "slides", "workbook"), _ZIP)}
_BROKEN = (ArithmeticError, AttributeError, EOFError, ExpatError, LookupError, OSError, RuntimeError, StopIteration,
           SyntaxError, TypeError, ValueError, zlib.error, zipfile.BadZipFile)  # fmt: skip
"""What the libraries and this file raise for damaged files, whose parts are missing: errors of lxml are SyntaxErrors,
those of PDFium RuntimeErrors, zipfile's for a short member EOFErrors.
"""
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3001-\u30ff\u31a0-\u9fff\uf900-\ufaff\uff00-\uff60" \
           "\U00020000-\U0003ffff"  # fmt: skip
"""Letters and signs of scripts that part no words: where a line ends between two of them, no blank stands."""
_WRAPPED = re.compile(rf"(?<=[{UNSPACED}])[ \t]*\n\s*(?=[{UNSPACED}])")
_LIGATURES = {0xAD: "", 0xFEFF: "", 0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl",
              0xFB05: "st", 0xFB06: "st"}  # fmt: skip
"""What searches for a word would miss; hyphens that show at a line's end alone are nothing."""
_FRONT = re.compile(
    r"\A(?:---[ \t]*\n(?P<yaml>.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)|\+\+\+[ \t]*\n(?P<toml>.*?\n)\+\+\+[ \t]*(?:\n|\Z))",
    re.DOTALL,
)
_LINKS = re.compile(r"\]\((?:[^])\n]++|\](?!\())*+\)|<[^<>\n]*>|^ {0,3}\[[^]\n]+\]:.*$", re.MULTILINE)


_WORKING = ("size", "away")
"""Fields of `Read` that are not handed on."""


class Unreadable(Exception):
    """A document gives no text: the kind of its problem, and what is said of it."""


def length(text: str) -> int:
    """Characters that are no blanks, and part no cells."""
    return len("".join(text.split())) - text.count("|")


def _plain(text: str) -> str:
    if not text.isascii():
        text = _WRAPPED.sub("", text.translate(_LIGATURES))
    return " ".join(text.split())


@dataclass
class Read:
    """What a document holds. `parts` counts by name what else than paragraphs was read of it."""

    pages: int = 0
    blocks: list[tuple[str, int, str]] = field(default_factory=list)
    left: list[tuple[str, int, str, int, int]] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, int, str]] = field(default_factory=list)
    passages: list[tuple[str, str]] = field(default_factory=list)
    letters: int = 0
    size: int = 0
    away: list[str] = field(default_factory=list)

    def add(self, role: str, page: int, text: str) -> None:
        """A block of text, where it has any. Raises Unreadable where the document has too much."""
        if text := _plain(text):
            self.blocks.append((role, page, text))
            self.size += len(text)
            if self.size > LONGEST:
                raise Unreadable("large", LARGE[2])

    def refuse(self, kind: str, said: str) -> None:
        """Ends the reading of the document."""
        raise Unreadable(kind, said)

    def decoded(self, content: bytes) -> str:
        """Text of a file or a part. Raises Unreadable where it is of an unknown encoding."""
        try:
            text = _SHARED["decoded"](content, "")
        except UnicodeError as error:
            raise Unreadable("encoding", str(error)) from None
        if broken := text.count("\ufffd"):
            at = text.index("\ufffd")
            self.leave("broken letters", 0, text[max(0, at - 20) : at + 20], broken, seen=False)
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def row(self, page: int, cells: list[str]) -> None:
        """A row of a table. An empty cell keeps its place; those behind the last text do not."""
        cells = [_plain(cell) for cell in cells]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            self.add("r", page, "|".join(cells))
            self.blocks[-1] = "r", page, " | ".join(cells).strip()

    def leave(self, kind: str, page: int, text: str, count: int = 1, *, seen: bool = True) -> None:
        """Names what is not read. `seen`: it is part of the text, which people see."""
        if not (words := " ".join(text[: 8 * PIECES].split())):
            return
        said = kind, page, words[:PIECES], length(text) * seen, count
        self.away += [text] if seen else []
        same = [at for at, one in enumerate(self.left[PIECES:], PIECES) if one[0] == kind]
        for at in same:
            _, there, first, most, several = self.left[at]
            self.left[at] = kind, there, first, most + said[3], several + count
        self.left += [] if same else [said]

    def account(
        self, pieces: Iterable[tuple[int, str]], since: int = 0, split: Callable[[str], list[str]] = str.splitlines
    ) -> None:
        """Compares what a reader saw, piece by piece with its page, with the blocks from a place on and what was left
        out since the last time; what is in neither is named, in runs of parts (`split`) whose words are missing.
        """
        pieces, there, self.away = list(pieces), [text for _, _, text in self.blocks[since:]] + self.away, []
        seen = length("".join(text for _, text in pieces))
        self.letters += seen
        if not _is_less(length("".join(there)), seen):
            return
        parts = [(page, part, _words(part)) for page, text in pieces for part in split(text)]
        words, run = Counter(_words(" ".join(there))), list[str]()
        if not _is_less(sum(map(len, words.elements())), sum(len(word) for *_, said in parts for word in said)):
            return
        for at, (page, part, said) in enumerate(parts):
            found = sum(min(count, words[word]) for word, count in Counter(said).items())
            words.subtract(said)
            run += [part] if 2 * found < len(said) else []
            if run and (2 * found >= len(said) > 0 or at + 1 == len(parts)):
                self.leave("text", page, "\n".join(run))
                run = []
        self.away = []


def _is_less(kept: int, seen: int) -> bool:
    return seen - kept > max(20, seen / 50)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.translate(_LIGATURES))


def main() -> None:
    _SHARED["limit"](RLIMIT_AS=int(sys.argv[1]) << 20, RLIMIT_FSIZE=0, RLIMIT_CORE=0, RLIMIT_NPROC=0)
    csv.field_size_limit(LONGEST)
    while (frame := _SHARED["read"](sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_REAL, int(sys.argv[2]))  # whoever asks may have been killed
        told = vars(_cut(**json.loads(frame)))
        text = json.dumps({name: told[name] for name in told if name not in _WORKING}, ensure_ascii=False)
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()  # a glyph may be half one
        if len(whole) > _SHARED["FRAME"]:
            whole = json.dumps(vars(Read(problems=[LARGE]))).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        _SHARED["write"](sys.stdout.buffer, whole)


def _cut(path: str, kind: str, name: str | None) -> Read:
    """What a file holds; its passages in place of its blocks, where it has a name."""
    out = read(path, kind)
    if name is not None:
        out.passages = [*_cutting()["cut_rows"](out.blocks, name)]
        out.left += cut_away(out.blocks, out.passages, name)
        out.blocks = []
    return out


def cut_away(
    blocks: Sequence[tuple[str, int, str]], passages: Sequence[tuple[str, str]], path: str
) -> list[tuple[str, int, str, int, int]]:
    """What of a document's blocks stands neither in the text of its passages nor, of headings, in their titles."""
    name = re.compile(rf"{re.escape(Path(path).name)}(, p\. \d+)?(, )?")
    titles = {name.sub("", title, count=1) for title, _ in passages}
    kept = Read(blocks=[("p", 0, text) for _, text in passages])
    kept.account((page, text) for role, page, text in blocks if role != "h" or text not in titles)
    return kept.left


@cache
def _cutting() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name("cutting.py")))


def read(path: str, kind: str) -> Read:
    """What a file of this kind (`READERS`) holds, or why it gives nothing."""
    out = Read()
    try:
        _check_type(path, kind)
        READERS[kind](path, out)
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
    if not wanted and not found and b"\0" in head and not (_SHARED["encoding_of"](head) or "").startswith("utf-"):
        found = "something other than text"
    if found != wanted and not (kind == "pdf" and b"%PDF-" in head[:1024]):
        raise Unreadable("type", f"is {found or 'something else'}, not what its name says: rename or remove it")


def _text(path: str, out: Read) -> None:
    content = out.decoded(Path(path).read_bytes())
    for part in re.split(r"\n\s*\n|\f", content):
        out.add("p", 0, part)
    out.account([(0, content)])


def _table(path: str, out: Read) -> None:
    content = out.decoded(Path(path).read_bytes())
    first = content.lstrip().partition("\n")[0]
    for cells in csv.reader(io.StringIO(content), delimiter=max(",;\t|", key=first.count)):
        out.row(0, cells)
    out.account([(0, content)])


def _markdown(path: str, out: Read) -> None:
    from markdown_it import MarkdownIt

    content = out.decoded(Path(path).read_bytes())
    text = content[_front_matter(content, out) :]
    since = len(out.blocks)
    noted = re.sub(r"^( {0,3})\[\^", r"\1\[^", text, flags=re.MULTILINE)  # a footnote's text is no link
    _part("document_markup")["markup"](MarkdownIt("commonmark").enable("table").render(noted), out)
    out.letters = 0
    out.account([(0, text)], since, split=lambda text: _LINKS.sub("", text).splitlines())


def _front_matter(content: str, out: Read) -> int:
    """Where the text behind a mapping in YAML, TOML or JSON begins. A title in it is a heading, all else rows."""
    import tomllib

    import yaml

    found, fields, end = _FRONT.match(content), None, 0
    try:
        if content.startswith("{"):
            fields, end = json.JSONDecoder().raw_decode(content)
        elif found:
            toml, end = found["toml"], found.end()
            fields = (
                tomllib.loads(toml) if toml else yaml.load(found["yaml"], getattr(yaml, "CBaseLoader", yaml.BaseLoader))
            )
    except (ValueError, RecursionError, yaml.YAMLError):
        return 0
    if not isinstance(fields, dict) or not fields:
        return 0
    if isinstance(title := fields.get("title"), str):
        out.add("h", 0, title)
    for line in content[:end].splitlines():
        if re.search(r"\w", line) and not re.match(r'\s*"?title"?\s*[:=]', line):
            out.add("r", 0, line)
    return end


def _rtf(path: str, out: Read) -> None:
    from striprtf.striprtf import rtf_to_text

    lines = rtf_to_text(Path(path).read_bytes().decode("latin-1"), errors="replace").splitlines()
    for line in lines:
        out.row(0, line.split("|")) if line.count("|") > 1 else out.add("p", 0, line)
    out.account((0, line.replace("|", " ")) for line in lines)


@cache
def _part(name: str) -> dict[str, Any]:
    """A file beside this one."""
    return runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))


def _by(name: str, function: str) -> Callable[[str, Read], None]:
    return lambda path, out: _part(name)[function](path, out)


READERS: dict[str, Callable[[str, Read], None]] = {
    "pdf": _by("document_pdf", "read_pdf"), "markdown": _markdown, "text": _text, "table": _table, "rtf": _rtf,
    "html": lambda path, out: _part("document_markup")["markup"](out.decoded(Path(path).read_bytes()), out),
    **{kind: _by("document_office", kind) for kind in ("docx", "slides", "workbook", "epub", "opendocument")},
}  # fmt: skip

if __name__ == "__main__":
    main()
