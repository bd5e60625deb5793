"""Copies the journals of a run's processes into the run's `calls.sqlite`.

Slots (`steprag.batch.ray_slots`) and shards (`steprag.batch.shards`) each write a journal that no other process opens.
After the copy the next start may have another number of processes, and pays for no call twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from steprag.batch.database import Database
from steprag.batch.journal import JOURNAL

_COPIED = ("searches", "passages", "questions")


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
        into.bury_lost()
        for part in parts:
            absorb(into, part, part.stem)
        put_in_order(into, question_ids)
    for part in parts:
        part.unlink()


def absorb(into: Database, part: Path, name: str) -> None:
    """Copies what `into` lacks of another journal, known there as `name`: its calls in their order, searches, passages,
    questions. Lost calls are added to those of `into`. Absorbed again, a part adds only what is new in it.
    """
    with closing(Database(part, alone=True)) as alone:  # waits for its process; folds the log of a killed one in
        alone.bury_lost()
    into.write("ATTACH ? AS part", f"{part.absolute().as_uri()}?mode=ro&immutable=1")
    into.write("BEGIN IMMEDIATE")
    into.write("CREATE TABLE IF NOT EXISTS absorbed(name TEXT PRIMARY KEY, lost INTEGER)")
    into.write(
        "INSERT OR IGNORE INTO calls(question, role, state, seed, n, reply, usage)"
        " SELECT question, role, state, seed, n, reply, usage FROM part.calls ORDER BY id"
    )
    for table in _COPIED:
        into.write(f"INSERT OR IGNORE INTO main.{table} SELECT * FROM part.{table}")
    known = into.rows("SELECT lost FROM absorbed WHERE name = ?", name)
    into.write(
        "INSERT INTO lost(question, role) SELECT question, role FROM part.lost ORDER BY id LIMIT -1 OFFSET ?",
        known[0][0] if known else 0,
    )
    into.write("INSERT OR REPLACE INTO absorbed SELECT ?, COUNT(*) FROM part.lost", name)
    into.write("COMMIT")
    into.write("DETACH part")


def put_in_order(journal: Database, question_ids: Iterable[str]) -> None:
    """Puts the questions that were begun into this order; others stay behind them."""
    rows = dict(journal.rows("SELECT id, row FROM questions ORDER BY rowid"))
    ordered = [key for key in dict.fromkeys((*question_ids, *rows)) if key in rows]
    if ordered == list(rows):
        return
    journal.write("BEGIN IMMEDIATE")
    journal.write("DELETE FROM questions")
    for key in ordered:
        journal.write("INSERT INTO questions VALUES (?, ?)", key, rows[key])
    journal.write("COMMIT")
