"""Search over all texts of a run's records: questions, steps, answers, titles, and the passages of its journal.

The file itself is the index: its lines are searched as they stand, a slice of time a request, and only a line in which
all words occur is decoded. So a search costs a look at each byte, whatever the words are, and hits show as they come.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from steprag.batch.database import Database
from steprag.batch.journal import JOURNAL
from steprag.errors import JournalError
from steprag.records.json_text import NotJson, decoded
from steprag.view.folders import RunFolder
from steprag.view.listing import Listing

WORDS = 8
"""Words of a search that count."""
PASSAGES = 200
"""Passages that a search follows to the records that found them; where more hold its words, none is followed."""


class Wanted:
    """The words of a search, and the passages of the run that hold all of them."""

    def __init__(self, run: RunFolder, asked: str) -> None:
        self.words = asked.lower().split()[:WORDS]
        self.passages, self.note = _passages(run, self.words)
        self._raw = [_escaped(word) for word in self.words]
        ids = b"|".join(re.escape(one) for id in self.passages for one in _escaped(id))
        self._ids = re.compile(rb'"id": ?"(?:%s)"' % ids) if ids else None

    def hits(self, line: bytes) -> bool:
        """Whether a record's line has all of the words in its texts, or names a passage that has."""
        low = line.lower() if line.isascii() else line.decode("utf-8", "replace").lower().encode()
        said = all(any(one in low for one in spellings) for spellings in self._raw)
        if not said and not (self._ids and self._ids.search(line)):
            return False
        try:
            texts, found = _texts_in(decoded(line, finite=False))
        except NotJson:
            return False
        text = "\n".join(texts).lower()
        return all(word in text for word in self.words) or not self.passages.isdisjoint(found)


def searched(run: RunFolder, listing: Listing[Any], asked: str, start: int, seconds: float) -> dict[str, Any]:
    """The lines of the records that have the words, from the `start`-th record on, for so long at most.

    `next` is where the following request begins, `complete` whether nothing is left; `note` says what was left out.
    """
    wanted, lines, deadline = Wanted(run, asked), [], time.monotonic() + seconds
    with listing.lock:
        listing.refresh(seconds / 2)
        places, generation, all_listed = listing.places[start:], listing.generation, listing.complete
    done = 0
    for place, line in listing.lines_of(places):
        if wanted.hits(line):
            lines.append(place.line)
        done += 1
        if time.monotonic() > deadline:
            break
    return {
        "generation": generation,
        "lines": lines,
        "next": start + done,
        "of": start + len(places),
        "complete": all_listed and done == len(places),
        "note": wanted.note,
    }


def _escaped(word: str) -> set[bytes]:
    """The word as it may stand in a line of JSON: letters beyond ASCII as they are, or as escapes."""
    return {json.dumps(word, ensure_ascii=way)[1:-1].encode("utf-8", "replace") for way in (False, True)}


def _texts_in(value: Any) -> tuple[list[str], set[str]]:
    """Every text of a record, but for the names of its fields; and the ids of passages that it found."""
    texts, found = [], set()
    for one in _parts(value):
        if isinstance(one, str):
            texts.append(one)
        elif "title" in one and isinstance(one.get("id"), str):
            found.add(one["id"])
    return texts, found


def _parts(value: Any) -> Iterator[Any]:
    """Every text and every object inside a value, without recursion: files of strangers may be deep."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            yield one
            rest += one.values()
        elif isinstance(one, list):
            rest += one
        elif isinstance(one, str):
            yield one


def _passages(run: RunFolder, words: list[str]) -> tuple[frozenset[str], str | None]:
    """The ids of the passages in the run's journal that hold all words, and what is left out where something is."""
    path = run.file(JOURNAL)
    if path is None:
        return frozenset(), f"without texts of passages: the run has no {JOURNAL}"
    like = " AND ".join(["(title || ' ' || text) LIKE ? ESCAPE '\\'"] * len(words))
    asked = ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
    try:
        database = Database(path, reading=True)
        try:
            rows = database.rows(f"SELECT id FROM passages WHERE {like} LIMIT {PASSAGES + 1}", *asked)
        finally:
            database.close()
    except JournalError as error:
        return frozenset(), f"without texts of passages: {error}"
    ids = frozenset(id for (id,) in rows if isinstance(id, str))
    if len(ids) > PASSAGES:
        return frozenset(), f"without texts of passages: more than {PASSAGES} hold these words"
    return ids, None
