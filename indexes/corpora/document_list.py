"""What is known of people's documents, on disk and in the order of their paths: memory does not grow with them.

`documents.jsonl` in an index folder has a line of each. While an index is built, `read.sqlite` keeps what each gave,
and a build that was killed goes on with it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexes.corpora.cutting import FORM
from indexes.rows.passage_store import DOCUMENTS
from indexes.rows.vector_file import NoRoom, no_room
from steprag.errors import DataError
from steprag.records.json_text import decoded
from steprag.records.jsonl import dump_line, file_hash, from_dict, parse_line, read_records, written_whole
from steprag.types import Passage

READ = "read.sqlite"
KINDS = {".pdf": "pdf", ".docx": "docx", ".pptx": "slides", ".xlsx": "workbook", ".odt": "opendocument",
         ".odp": "opendocument", ".ods": "opendocument", ".epub": "epub", ".rtf": "rtf", ".html": "html",
         ".htm": "html", ".xhtml": "html", ".md": "markdown", ".markdown": "markdown", ".csv": "table",
         ".txt": "text"}  # fmt: skip
"""Kinds of documents by the ending of their file's name."""
Piece = tuple[str, int, str, int, int]
"""What was left out of a document: its kind, page (0: none), first words, letters, and how many of it there are."""
Trouble = tuple[str, int, str]
"""A problem's kind, its page (0: the whole file) and what is said of it."""
_NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_WRITE")
_HELD = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")


@dataclass
class Document:
    """A file, and what it gave: a line of `documents.jsonl`, in the order of the passages. `repeated`: passages that an
    earlier one had. `read`: not taken over from an earlier index.
    """

    path: str
    bytes: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    sha256: str = ""
    form: int = FORM
    pages: int = 0
    passages: int = 0
    repeated: int = 0
    letters: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    left: list[Piece] = field(default_factory=list)
    problems: list[Trouble] = field(default_factory=list)
    read: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def is_as(self, other: Document) -> bool:
        """Whether its size and times are those of a document that was read. No program can set a `ctime`: one that
        writes other bytes of the same length, and gives the file its old time back, is seen.
        """
        here, there = ((one.bytes, one.mtime_ns, one.ctime_ns) for one in (self, other))
        return here == there and self.ctime_ns != 0


class DocumentSpool:
    """Documents in a file that goes with this process."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - as long as this object

    def add(self, one: Document) -> None:
        """Behind those that are there."""
        self._file.write(f"{dump_line(one)}\n")

    def __iter__(self) -> Iterator[Document]:
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            yield from_dict(Document, decoded(line), Path(DOCUMENTS), number)

    def write(self, path: Path) -> None:
        """All of them into a file of their own."""
        self._file.seek(0)
        with written_whole(path) as stream:
            shutil.copyfileobj(self._file, stream)


class FormerDocuments:
    """The documents of an index folder, each with the row of its first passage. They are asked for by path, in the
    order of paths.
    """

    def __init__(self, folder: Path | None) -> None:
        file = folder and folder / DOCUMENTS
        self._ahead = read_records(file, Document) if file and file.is_file() else iter(())
        self._next, self._row = next(self._ahead, None), 0
        self.any = self._next is not None

    def get(self, path: str) -> tuple[Document, int] | None:
        """The document at a path that does not stand before the last one asked for."""
        while self._next and self._next.path < path:
            self._row += self._next.passages
            self._next = next(self._ahead, None)
        return (self._next, self._row) if self._next and self._next.path == path else None


class Readings(AbstractContextManager["Readings"]):
    """What documents gave, in a file that a killed build leaves to the next one; and which texts passages had."""

    def __init__(self, path: Path | None) -> None:
        """None: a file that goes with this process. A damaged file is begun anew."""
        self._path, self._seen = path, sqlite3.connect("", isolation_level=None)
        table = "CREATE TABLE seen(key BLOB PRIMARY KEY, id TEXT) WITHOUT ROWID"
        self._seen.executescript(f"PRAGMA journal_mode=OFF; {table}; BEGIN")
        with self._said():
            try:
                self._db = self._opened()
            except sqlite3.DatabaseError as error:
                if path is None or isinstance(error, sqlite3.OperationalError):  # no damage
                    raise
                path.unlink()
                self._db = self._opened()

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path or "", isolation_level=None)
        table = "CREATE TABLE IF NOT EXISTS given(path TEXT PRIMARY KEY, document TEXT, passages BLOB)"
        ways = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL")
        db.executescript(f"{''.join(f'PRAGMA {way};' for way in ways)}{table}")
        return db

    def get(self, path: str) -> tuple[Document, list[Passage]] | None:
        """What the document at this path was and gave. Raises DataError where the file is damaged."""
        with self._said():
            row = self._db.execute("SELECT document, passages FROM given WHERE path = ?", (path,)).fetchone()
            if row is None:
                return None
            given = decoded(row[1].decode("utf-8", "surrogatepass"))
            return from_dict(Document, decoded(row[0]), self._path or Path(READ), 1), [Passage(*one) for one in given]

    def put(self, one: Document, passages: list[Passage]) -> None:
        """Keeps what a document gave. Raises ConfigError for a full disk."""
        given = json.dumps([(passage.id, passage.title, passage.text) for passage in passages], ensure_ascii=False)
        row = one.path, dump_line(one), given.encode("utf-8", "surrogatepass")
        with self._said():
            self._db.execute("INSERT OR REPLACE INTO given VALUES(?, ?, ?)", row)

    def first(self, passage: Passage) -> str:
        """The id of the first passage that was asked for and has the same words: its own, or another's."""
        words = " ".join(passage.text.casefold().split()).encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(words, digest_size=16).digest()
        with self._said():
            if self._seen.execute("INSERT OR IGNORE INTO seen VALUES(?, ?)", (key, passage.id)).rowcount:
                return passage.id
            return self._seen.execute("SELECT id FROM seen WHERE key = ?", (key,)).fetchone()[0]

    @contextmanager
    def _said(self) -> Iterator[None]:
        path = self._path or Path(tempfile.gettempdir(), READ)
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError) as error:
            if getattr(error, "sqlite_errorname", "") in _NO_ROOM:
                raise no_room(path, 0) from None
            if getattr(error, "sqlite_errorname", "").startswith(_HELD):  # what stands there is kept
                raise NoRoom(f"{path}: {error}; end what holds it, or make room, and run the command again") from None
            raise DataError(path, f"is damaged: {error}", remedy="run the command again") from None

    def __exit__(self, *_: object) -> None:
        self._seen.close()
        self._db.close()


class Originals:
    """The documents that an index folder was built of, as far as they stand where they stood."""

    def __init__(self, folder: Path, corpus: str) -> None:
        path, self._file = Path(corpus), folder / DOCUMENTS
        self._root, self._lines = path if path.is_dir() else path.parent, None
        if self._file.is_file() and self._file.stat().st_size:
            with self._file.open("rb") as stream:
                self._lines = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def _known(self, path: str) -> Document | None:
        """The document at a path, searched for among lines in the order of paths: nothing else of them is read."""
        lines = self._lines
        low, high = 0, len(lines or b"")  # it begins there
        while lines and low < high:
            middle = (low + high) // 2
            start = lines.find(b"\n", middle - 1, high - 1) + 1 if middle else 0
            if middle and not start:  # no line begins between middle and high
                high = middle
                continue
            end = lines.find(b"\n", start) + 1 or len(lines)
            one = from_dict(Document, parse_line(lines[start:end], self._file, 1), self._file, 1)
            if one.path == path:
                return one
            low, high = (end, high) if one.path < path else (low, middle)
        return None

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """As `steprag.agent.retriever.Documented`: a stranger's index leads to no file whose hash it does not have."""
        name = passage_id.rpartition("#")[0]
        known, path = self._known(name) if name else None, self._root / name
        kind = path.suffix.lower() in KINDS
        if known is None or not known.passages or not known.sha256 or not kind or not path.is_file():
            return None
        facts = path.stat()
        if facts.st_size != known.bytes or not path.resolve().is_relative_to(self._root.resolve()):
            return None
        times = (facts.st_mtime_ns, facts.st_ctime_ns) == (known.mtime_ns, known.ctime_ns)
        same = not checked or times or file_hash(path) == known.sha256
        return path if same else None
