"""The SQLite file of a journal: how it is opened, what it holds, what its errors mean; and one file out of many.

Slots (`steprag.batch.ray_slots`) and shards (`steprag.batch.shards`) each write a journal that no other process opens.
Once these are copied into the run's `calls.sqlite`, the next start may have another number of processes, and pays for
no call twice.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from steprag.errors import JournalError, JournalFull
from steprag.records.jsonl import from_dict
from steprag.runs.run import CALLS as JOURNAL
from steprag.types import COUNTABLE, Completion, Passage, Question, Sample, Usage

SCHEMA = """
CREATE TABLE IF NOT EXISTS calls(
    id INTEGER PRIMARY KEY, question TEXT, role TEXT, state TEXT, seed INTEGER, n INTEGER, reply TEXT, usage TEXT,
    UNIQUE(question, role, state, seed, n));
CREATE TABLE IF NOT EXISTS searches(
    question TEXT, query TEXT, top_k INTEGER, found TEXT, PRIMARY KEY(question, query, top_k)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS passages(id TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS questions(id TEXT PRIMARY KEY, row TEXT);
CREATE TABLE IF NOT EXISTS lost(id INTEGER PRIMARY KEY, question TEXT, role TEXT);
"""
# A call without a reply was in flight when the process died.
FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises for a file that is damaged: some of its messages quote bytes that are no text."""
IN_MEMORY = Path(":memory:")
"""The path of a journal that no file keeps."""
BUSY_TIMEOUT = 150.0
"""Seconds to wait for a file that another process holds: longer than a cluster takes to give up a silent node (Ray:
about 65 s), and a file server a silent client (NFS 4: usually 90 s).
"""
_COPIED = ("searches", "passages", "questions")
_REMEDY = "the journal is damaged or not this program's: restore it, or move it away to start afresh"
_Count = Annotated[int, Field(strict=True, ge=0, le=COUNTABLE)]
_LATER = ConfigDict(defer_build=True)
_OBJECT = TypeAdapter(dict[str, Any], config=_LATER)
_Logprob = Annotated[float, Field(le=0, allow_inf_nan=False)]
_Logprobs = tuple[_Logprob, ...]
_Row = (
    tuple[StrictStr, StrictStr]
    | tuple[StrictStr, StrictStr, _Logprobs]
    | tuple[StrictStr, StrictStr, _Logprobs | None, StrictStr]
)
_REPLY = TypeAdapter(Annotated[list[_Row], Field(min_length=1)], config=_LATER)
_Used = tuple[_Count, _Count, _Count, _Count] | tuple[_Count, _Count, _Count, _Count, _Count | None, _Count | None]
_USAGE, _USAGES = TypeAdapter(_Used, config=_LATER), TypeAdapter(list[_Used], config=_LATER)
_Hit = tuple[StrictStr, float | None] | tuple[StrictStr, float | None, StrictStr, StrictStr]
_FOUND = TypeAdapter(list[_Hit], config=_LATER)
"""Id and score of each passage; its title and text where an earlier one of that id had others."""

CallKey = tuple[str, str, int, int]
"""Role, state, seed, n."""


class Database:
    """The open file. Every statement raises JournalError where the file cannot be read or written.

    `exclusive`: no other process, on this machine or another, may have it open; this waits until none has. SQLite then
    needs no memory shared between processes, so the file may lie on a network file system.
    """

    def __init__(self, path: Path, *, reading: bool = False, exclusive: bool = False) -> None:
        self._path = path
        try:
            self._db = _connected_to_read(path) if reading else _connected(path, exclusive)
        except FAULTS as error:
            raise _translated(error, path) from None

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows that a query finds."""
        try:
            return self._db.execute(query, values).fetchall()
        except FAULTS as error:
            raise _translated(error, self._path) from None

    def write(self, statement: str, *values: object) -> None:
        """Runs a statement; it is committed when this returns, or with the COMMIT of its transaction."""
        self.rows(statement, *values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose writes are committed together, or not at all where it raises."""
        self.write("BEGIN IMMEDIATE")
        try:
            yield
            self.write("COMMIT")
        finally:
            if self._db.in_transaction:
                self.write("ROLLBACK")

    def mark_lost(self) -> None:
        """Counts the calls that have no reply as lost: whoever made them is dead."""
        with self.transaction():
            self.write("INSERT INTO lost(question, role) SELECT question, role FROM calls WHERE reply IS NULL")
            self.write("DELETE FROM calls WHERE reply IS NULL")

    def sync(self) -> None:
        """Has all that is committed on the disk when this returns. May be called by a thread beside the others.

        What is committed stands in SQLite's log or, once SQLite has moved it there (and synced it), in the file.
        """
        try:
            with self._path.with_name(f"{self._path.name}-wal").open("rb") as log:
                os.fsync(log.fileno())
        except FileNotFoundError:  # nothing was written yet, or all of it has moved
            return
        except OSError as error:
            raise JournalFull(f"{self._path}: {error}; make room and run again: what is in it is kept") from None

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


class JournalReader:
    """The open file as it is read. Raises JournalError where a row is not what this program wrote."""

    def __init__(self, path: Path, db: Database) -> None:
        self.path, self._db = path, db

    @classmethod
    def reading(cls, path: Path) -> JournalReader:
        """The file of a run, which nobody need have open; nothing is written."""
        return cls(path, Database(path, reading=True))

    def questions(self) -> list[Question]:
        """Every question that was begun, in that order."""
        rows = self._db.rows("SELECT row FROM questions ORDER BY rowid")
        return [
            from_dict(Question, self._read(_OBJECT, row, f"question {place}"), self.path, place)
            for place, (row,) in enumerate(rows, 1)
        ]

    def usage(self) -> Iterator[tuple[str, str, Usage]]:
        """Question id, role, and what all finished calls of that role took for that question."""
        joined = "'[' || group_concat(usage) || ']'"  # read at once: one by one they take four times as long
        query = f"SELECT question, role, {joined} FROM calls WHERE usage IS NOT NULL GROUP BY question, role"
        for question_id, role, rows in self._db.rows(query):
            counts = self._read(_USAGES, rows, f"the usage of a call of {question_id}")
            yield question_id, role, Usage.total(counts)

    @property
    def lost(self) -> int:
        """Calls that were in flight whenever a run of this folder was killed: perhaps paid, never answered."""
        return self._db.rows("SELECT COUNT(*) FROM lost")[0][0]

    def calls_of(self, question_id: str) -> list[tuple[CallKey, Sample]]:
        """A question's finished calls in the order in which they were sent."""
        query = "SELECT role, state, seed, n, reply, usage FROM calls WHERE question = ? AND reply NOT NULL ORDER BY id"
        what = f"a reply to {question_id}"
        return [
            (
                (role, state, seed, n),
                Sample(
                    tuple(Completion(*each) for each in self._read(_REPLY, reply, what)),
                    Usage(*self._read(_USAGE, usage, what)),
                ),
            )
            for role, state, seed, n, reply, usage in self._db.rows(query, question_id)
        ]

    def searches_of(self, question_id: str) -> dict[tuple[str, int], tuple[Passage, ...]]:
        """A question's finished searches: query and top_k to passages."""
        query = "SELECT query, top_k, found FROM searches WHERE question = ?"
        return {
            (text, top_k): tuple(
                self._passage(*found) for found in self._read(_FOUND, row, f"a search of {question_id}")
            )
            for text, top_k, row in self._db.rows(query, question_id)
        }

    def _passage(self, passage_id: str, score: float | None, *own: str) -> Passage:
        if own:
            return Passage(passage_id, own[0], own[1], score)
        rows = self._db.rows("SELECT title, text FROM passages WHERE id = ?", passage_id)
        if not rows or not all(isinstance(value, str) for value in rows[0]):
            raise JournalError(f"{self.path}: passage {passage_id} is missing or no text; {_REMEDY}")
        title, text = rows[0]
        return Passage(passage_id, title, text, score)

    def _read(self, kind: TypeAdapter[Any], text: object, what: str) -> Any:
        """A JSON column. Raises JournalError, with what it is of, where it is not what this program wrote."""
        try:
            return kind.validate_json(text if isinstance(text, str) else repr(text))
        except ValidationError as error:
            raise JournalError(f"{self.path}: {what}: {error.errors()[0]['msg'].lower()}; {_REMEDY}") from None

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


def _translated(error: Exception, path: Path) -> JournalError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return JournalError(f"{path}: {error}; move it away to start afresh")
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return JournalFull(f"{path}: {error}; make room and run again: what is in it is kept")
    if name.startswith("SQLITE_BUSY"):
        return JournalError(f"{path}: another process has it open; end that one and run again: what is in it is kept")
    return JournalError(f"{path}: {error}")


def _connected(path: Path, exclusive: bool) -> sqlite3.Connection:
    where = str(path) if path == IN_MEMORY else path.absolute().as_uri()
    db = sqlite3.connect(where, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT if exclusive else 5)
    if exclusive:  # before the journal mode, or SQLite would share memory
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(SCHEMA)
    return db


def _connected_to_read(path: Path) -> sqlite3.Connection:
    """Without a -wal file nobody writes, and the file can be read even where nothing may be written beside it."""
    still = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{still}", uri=True, isolation_level=None)


def slot_journal(folder: Path, start: str, slot: int) -> Path:
    """The journal of a slot in a run folder; `start` names the start of the run, so that no name is used twice."""
    return folder / f"calls-{start}-{slot:03d}.sqlite"


def absorb_slots(folder: Path, question_ids: Iterable[str]) -> None:
    """Folds the journals that slots left in a run folder into its `calls.sqlite` and removes them.

    Questions then stand in this order, as in a run of one process. Waits for a slot that is still about to die; raises
    JournalError where it does not.
    """
    parts = sorted(folder.glob("calls-*-*.sqlite"))
    if not parts:
        return
    with closing(Database(folder / JOURNAL)) as into:
        into.mark_lost()
        for part in parts:
            absorb(into, part, part.stem)
        put_in_order(into, question_ids)
    for part in parts:
        part.unlink()


def absorb(into: Database, part: Path, name: str) -> None:
    """Copies what `into` lacks of another journal, known there as `name`: its calls in their order, searches, passages,
    questions. Lost calls are added to those of `into`. Absorbed again, a part adds only what is new in it.
    """
    with closing(Database(part, exclusive=True)) as own:  # waits for its process; folds the log of a killed one in
        own.mark_lost()
    into.write("ATTACH ? AS part", f"{part.absolute().as_uri()}?mode=ro&immutable=1")
    with into.transaction():
        into.write("CREATE TABLE IF NOT EXISTS absorbed(name TEXT PRIMARY KEY, lost INTEGER)")
        into.write(
            "INSERT OR IGNORE INTO calls(question, role, state, seed, n, reply, usage)"
            " SELECT question, role, state, seed, n, reply, usage FROM part.calls ORDER BY id"
        )
        differ = "(p.title, p.text) IS NOT (m.title, m.text)"
        others = into.rows(f"SELECT p.* FROM part.passages p JOIN main.passages m USING (id) WHERE {differ}")
        words = {id: row for id, *row in others}
        for question, query, top_k, found in into.rows("SELECT * FROM part.searches") if words else ():
            hits = JournalReader(part, into)._read(_FOUND, found, f"a search of {question}")
            hits = [(*one, *words.get(one[0], ())) if len(one) == 2 else one for one in hits]
            into.write(
                "INSERT OR IGNORE INTO main.searches VALUES (?, ?, ?, ?)", question, query, top_k, json.dumps(hits)
            )
        for table in _COPIED:
            into.write(f"INSERT OR IGNORE INTO main.{table} SELECT * FROM part.{table}")
        known = into.rows("SELECT lost FROM absorbed WHERE name = ?", name)
        into.write(
            "INSERT INTO lost(question, role) SELECT question, role FROM part.lost ORDER BY id LIMIT -1 OFFSET ?",
            known[0][0] if known else 0,
        )
        into.write("INSERT OR REPLACE INTO absorbed SELECT ?, COUNT(*) FROM part.lost", name)
    into.write("DETACH part")


def put_in_order(journal: Database, question_ids: Iterable[str]) -> None:
    """Puts the questions that were begun into this order; others stay behind them."""
    rows = dict(journal.rows("SELECT id, row FROM questions ORDER BY rowid"))
    ordered = [key for key in dict.fromkeys((*question_ids, *rows)) if key in rows]
    if ordered == list(rows):
        return
    with journal.transaction():
        journal.write("DELETE FROM questions")
        for key in ordered:
            journal.write("INSERT INTO questions VALUES (?, ?)", key, rows[key])
