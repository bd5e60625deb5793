"""The web on disk: results of searches, and the texts of their pages, from which searches replay.

One SQLite file in the snapshot's folder. What is kept is never changed: the first answer to a query stays its answer.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from indexes.web.extraction import Page
from indexes.web.providers import WebResult
from steprag.batch.database import FAULTS
from steprag.errors import ConfigError, DataError, JournalError, quoted
from steprag.records.json_text import decoded

FILE = "web.sqlite"
MEMORY = ":memory:"
LIVE = "live"
"""The name of a snapshot without a file, which ends with the process."""
HELD = 64
"""Searches that memory holds; then it is emptied, so that a service that runs for weeks neither grows nor grows old."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS searches(
    settings TEXT, query TEXT, found TEXT, at TEXT, PRIMARY KEY(settings, query)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts(hash TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pages(url TEXT PRIMARY KEY, hash TEXT, at TEXT) WITHOUT ROWID;
"""
_FOUND = TypeAdapter(list[tuple[str, str, str, str | None, str]])


@dataclass(frozen=True)
class SeenPage:
    """A result and what became of its page: its text, or None and why there is none (`lost`)."""

    result: WebResult
    page: Page | None
    lost: str = ""


class Snapshot:
    """The open file, or memory alone. Used by one event loop; processes that share a file wait for one another."""

    def __init__(self, folder: Path | None, *, frozen: bool = False) -> None:
        """Opens or makes the file. Raises ConfigError where that cannot be done, or there is nothing to freeze."""
        self._path = folder / FILE if folder is not None else Path(MEMORY)
        if frozen and not self._path.is_file():
            raise ConfigError(f"{folder} holds no snapshot of the web; run once without web.frozen")
        try:
            if folder is not None and not frozen:
                folder.mkdir(parents=True, exist_ok=True)
            source = f"{self._path.absolute().as_uri()}?mode=ro" if frozen else str(self._path)
            self._file = sqlite3.connect(source, timeout=30, isolation_level=None, uri=frozen, check_same_thread=False)
            if not frozen:
                self._file.executescript(_SCHEMA)
                self._file.execute("INSERT OR IGNORE INTO facts VALUES ('id', ?)", (uuid.uuid4().hex[:12],))
            self.id = self._id()
        except (*FAULTS, OSError) as error:
            raise ConfigError(f"web.snapshot {folder} cannot be opened: {error}") from None

    def _id(self) -> str:
        """Names the snapshot wherever it lies; what is searched without a file has no lasting name."""
        if str(self._path) == MEMORY:
            return LIVE
        row = self._file.execute("SELECT value FROM facts WHERE name = 'id'").fetchone()
        if row is None:
            raise ConfigError(f"{self._path} is no snapshot of the web: it has no name")
        return str(row[0])

    def search(self, settings: str, query: str) -> tuple[SeenPage, ...] | None:
        """What a search saw, or None where it was never made. Raises DataError for a damaged file."""
        row = self._rows("SELECT found FROM searches WHERE settings = ? AND query = ?", settings, query)
        if not row:
            return None
        try:
            return tuple(self._seen(*each) for each in _FOUND.validate_python(decoded(row[0][0])))
        except (ValueError, TypeError) as error:
            raise DataError(
                self._path, f"search {quoted(query)} cannot be read: {str(error).splitlines()[0]}"
            ) from None

    def _seen(self, url: str, title: str, snippet: str, digest: str | None, lost: str) -> SeenPage:
        page = self._text(digest) if digest is not None else None
        return SeenPage(WebResult(url, title, snippet), page, lost)

    def _text(self, digest: str) -> Page:
        rows = self._rows("SELECT title, text FROM texts WHERE hash = ?", digest)
        if not rows or not all(isinstance(value, str) for value in rows[0]):
            problem = f"text {digest} is {'no text' if rows else 'missing'}"
            raise DataError(self._path, problem, remedy="restore the snapshot from a copy")
        return Page(*rows[0])

    def page(self, url: str) -> Page | None:
        """A page that an earlier search read."""
        rows = self._rows("SELECT hash FROM pages WHERE url = ?", url)
        return self._text(rows[0][0]) if rows else None

    def make_room(self) -> None:
        """Empties memory that is full; a file keeps all."""
        if self.id == LIVE and self._rows("SELECT COUNT(*) FROM searches")[0][0] >= HELD:
            for table in ("searches", "texts", "pages"):
                self._file.execute(f"DELETE FROM {table}")

    def keep(self, settings: str, query: str, seen: Sequence[SeenPage], at: str) -> None:
        """Keeps a search and its pages, all or nothing; one that is there already stays. Raises JournalError."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._insert(settings, query, seen, at)
            self._file.execute("COMMIT")
        except FAULTS as error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise JournalError(f"{self._path} cannot be written: {error}; what it holds is kept") from None

    def _insert(self, settings: str, query: str, seen: Sequence[SeenPage], at: str) -> None:
        found: list[tuple[Any, ...]] = []
        for one in seen:
            digest = None
            if one.page is not None:
                digest = sha256(json.dumps([one.page.title, one.page.text]).encode()).hexdigest()[:32]
                self._file.execute("INSERT OR IGNORE INTO texts VALUES (?, ?, ?)", (digest, *vars(one.page).values()))
                self._file.execute("INSERT OR IGNORE INTO pages VALUES (?, ?, ?)", (one.result.url, digest, at))
            found.append((*vars(one.result).values(), digest, one.lost))
        row = (settings, query, json.dumps(found, ensure_ascii=False), at)
        self._file.execute("INSERT OR IGNORE INTO searches VALUES (?, ?, ?, ?)", row)

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._file.execute(query, values).fetchall()
        except FAULTS as error:
            raise DataError(self._path, f"cannot be read: {error}", remedy="restore it from a copy") from None

    def close(self) -> None:
        """Closes the file; what `keep` kept is on the disk already."""
        self._file.close()
