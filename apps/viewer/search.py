"""Search over all texts of a run's records: questions, steps, answers, titles, and the passages of its journal.

The file itself is the index: its lines are searched as they stand, a slice of time a request, and only a line in which
all words occur is decoded. So a search costs a look at each byte, whatever the words are, and hits show as they come.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from apps.viewer.folders import RunFolder
from apps.viewer.listing import Listing
from steprag.batch.database import Database
from steprag.batch.journal import JOURNAL
from steprag.errors import JournalError
from steprag.records.json_text import NotJson, decoded

WORDS = 8
"""Words of a search that count."""
PASSAGES = 200
"""Passages that a search follows to the records that found them; where more hold its words, none is followed."""

Beside = tuple[frozenset[str], str | None]
"""Passages of the journal that hold the words, and what is left out of them."""


def searched(listing: Listing[Any], asked: str, beside: Beside, start: int, seconds: float) -> dict[str, Any]:
    """The lines of the records that have the words, from the `start`-th record on, for so long at most. `beside`: what
    `passages_with` says of the words.

    `next` is where the following request begins, `complete` whether nothing is left; `note` says what was left out.
    """
    (passages, note), deadline = beside, time.monotonic() + seconds
    hits, lines, done = _test_of(_words(asked), passages), [], 0
    with listing.lock:
        listing.refresh(seconds / 2)
        places, generation, all_listed = listing.places[start:], listing.generation, listing.complete
    for place, line in listing.lines_of(places):
        done += 1
        lines += [place.line] if hits(line) else []
        if time.monotonic() > deadline:
            break
    complete = all_listed and done == len(places)
    return {"generation": generation, "lines": lines, "next": start + done, "of": start + len(places),
            "complete": complete, "note": note}  # fmt: skip


def _words(asked: str) -> list[str]:
    return asked.lower().split()[:WORDS]


def _test_of(words: list[str], passages: frozenset[str]) -> Callable[[bytes], bool]:
    """Whether a record's line has all of the words in its texts, or names one of the passages."""
    raw, plain = [_escaped(word) for word in words], all(word.isascii() for word in words)
    ids = re.compile(rb'"id": ?"(?:%s)"' % b"|".join(re.escape(one) for id in passages for one in _escaped(id)))

    def test(line: bytes) -> bool:
        low = line.lower() if plain else line.decode("utf-8", "replace").lower().encode()
        said = all(any(one in low for one in spellings) for spellings in raw)
        if not said and not (passages and ids.search(line)):
            return False
        try:
            texts, found = _texts_in(decoded(line, finite=False))
        except NotJson:
            return False
        text = "\n".join(texts).lower()
        return all(word in text for word in words) or not passages.isdisjoint(found)

    return test


def _escaped(word: str) -> set[bytes]:
    """The word as it may stand in a line of JSON: letters beyond ASCII as they are, or as escapes."""
    return {json.dumps(word, ensure_ascii=way)[1:-1].encode("utf-8", "replace") for way in (False, True)}


def _texts_in(record: Any) -> tuple[list[str], set[str]]:
    """Every text of a record, except the names of its fields, and the ids of passages that it found. Without
    recursion: files of strangers may be deep.
    """
    texts: list[str] = []
    found: set[str] = set()
    rest = [record]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += one.values()
            if "title" in one and isinstance(one.get("id"), str):
                found.add(one["id"])
        elif isinstance(one, list):
            rest += one
        elif isinstance(one, str):
            texts.append(one)
    return texts, found


def passages_with(run: RunFolder, asked: str) -> Beside:
    """The ids of the passages in the run's journal that hold all words, and what is left out where something is. It
    looks at every passage: do it once a search.
    """
    words, left, path = _words(asked), "without texts of passages: ", run.file(JOURNAL)
    if path is None:
        return frozenset(), f"{left}the run has no {JOURNAL}"
    like = " AND ".join(["(title || ' ' || text) LIKE ? ESCAPE '\\'"] * len(words))
    marks = ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
    try:
        with closing(Database(path, reading=True)) as database:
            rows = database.rows(f"SELECT id FROM passages WHERE {like} LIMIT {PASSAGES + 1}", *marks)
    except JournalError as error:
        return frozenset(), f"{left}{error}"
    if len(rows) > PASSAGES:
        return frozenset(), f"{left}more than {PASSAGES} hold these words"
    return frozenset(id for (id,) in rows if isinstance(id, str)), None
