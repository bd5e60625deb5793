"""The intake: a source becomes the passage store; lines that are not passages are skipped, counted and listed.

Rows keep the source's order. Of passages with one id the first stays. Ids are compared through files on disk, one for
each share of the hashes: every id is written once and read once, and memory holds one share (1/128 of the ids).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from indexes.corpora.document_list import READ
from indexes.corpora.document_report import Report, pieces
from indexes.corpora.readers import FORMAT, Problem, Source
from indexes.rows.passage_store import PASSAGES, SKIPPED, PassageStore, drop_rows, write_passages
from steprag.console.progress import Progress, say
from steprag.errors import DataError, quoted
from steprag.records.jsonl import PARTIAL, dump_line
from steprag.records.left_out import LeftOut, as_json
from steprag.types import Passage

SHOWN = 5
"""Problems that are shown; all are in `skipped.jsonl`."""
EARLY = 1000
"""Problems from which on a source with too great a share of them is given up before its end."""
_BUFFER = 1 << 16
_SHARES = 128
"""Files into which ids are dealt by their hash; one is compared at a time."""
_SEEN = [("hash", "<u8"), ("row", "<i8"), ("file", "<i4"), ("line", "<i8")]


@dataclass(frozen=True)
class Intake:
    """What an intake found: `rows` passages stand in the store, `skipped` counts what was left out, by kind. Of
    documents, `parts` counts what was read beside paragraphs, and `left_out` names what was not.
    """

    rows: int
    skipped: dict[str, int]
    parts: dict[str, int] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)


class _Skipping:
    """Writes every problem to `skipped.jsonl` and keeps the first few."""

    def __init__(self, stream: BinaryIO, allowed: float, what: str) -> None:
        self._stream, self._allowed, self._what = stream, allowed, what
        self.counts = Counter[str]()
        self.first: list[tuple[str, str]] = []

    def add(self, place: str, problem: Problem) -> None:
        self.counts[problem.kind] += 1
        if len(self.first) < SHOWN and problem.kind != "repeated":
            self.first.append((place, problem.detail))
        row = {"place": place, "kind": problem.kind, "detail": problem.detail}
        self._stream.write(dump_line(row).encode("utf-8", "replace") + b"\n")

    def name(self, pieces: Iterable[LeftOut]) -> int:
        """Writes what was left out within documents that were read; returns how many pieces there are."""
        rows = as_json(pieces)
        for row in rows:
            self._stream.write(dump_line(row).encode("utf-8", "replace") + b"\n")
        return len(rows)

    def show(self) -> None:
        for place, detail in self.first:
            say(f"index: left out {place}: {detail}")
        if self.counts.total() > len(self.first):
            counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
            say(f"index: left out {self.counts.total()} {self._what} ({counts}); {SKIPPED} lists them")

    def check(self, rows: int) -> None:
        """Raises DataError where more than the allowed share was left out beside `rows` passages."""
        bad = self.counts.total()
        if bad > self._allowed * (bad + rows):
            if bad > 1:
                self.show()
            of = f"{bad} of {bad + rows} lines are no passages" if bad > 1 else "one line is no passage"
            remedy = f"mend it; {of}, and --max_skipped allows a share of {self._allowed:g}"
            raise DataError(*self.first[0], remedy=remedy)


def ingest(source: Source, folder: Path, max_skipped: float, *, keep_empty: bool = False) -> Intake:
    """Writes the passage store into `folder`, and `skipped.jsonl` where something was left out.

    `keep_empty`: a line without text stays, as a passage without words, for what counts rows by the corpus's lines.
    Raises DataError where more than the share `max_skipped` of the lines is no passage, or where none is; of
    documents any share may be none.
    """
    for left in folder.glob(f".{PASSAGES}.*{PARTIAL}"):  # by a kill: as large as what was read
        left.unlink()
    with (folder / SKIPPED).open("wb") as listed, tempfile.TemporaryDirectory(prefix=".ids.", dir=folder) as shares:
        bounds = (1.0, "places") if source.documents else (max_skipped, "lines")
        skipping = _Skipping(listed, *bounds)
        if source.documents:
            source.documents.kept = folder / READ
        rows = write_passages(folder, _passages(source, skipping, Path(shares), keep_empty))
        duplicates = _duplicates(folder, Path(shares))
        with PassageStore(folder) as store:
            for entry in duplicates:
                first = source.place(int(entry["first_file"]), int(entry["first_line"]))
                where = f"line {int(entry['first_line'])}" if entry["first_file"] == entry["file"] else first
                problem = Problem(
                    "duplicate", f"id {quoted(store.read(int(entry['row'])).id)} stands in {where} already"
                )
                skipping.add(source.place(int(entry["file"]), int(entry["line"])), problem)
        named = sum(skipping.name(pieces(one)) for one in source.documents.gave) if source.documents else 0
    if len(duplicates):
        rows = drop_rows(folder, duplicates["row"])
    skipping.check(rows)
    report = Report()
    if source.documents:
        report = source.documents.finish(folder)
    skipping.show()
    if not rows:
        remedy = "the lines above say why no document gives any text" if source.documents else FORMAT
        raise DataError(source.name, "holds no passages", remedy=remedy)
    if not skipping.counts and not named:
        (folder / SKIPPED).unlink()
    parts = {name: count for name, count in report.parts.items() if count}
    return Intake(rows, dict(skipping.counts), parts, as_json(report.items()))


def _passages(source: Source, skipping: _Skipping, shares: Path, keep_empty: bool) -> Iterator[Passage]:
    buffer = np.empty(_BUFFER, dtype=_SEEN)
    rows, filled = 0, 0
    with Progress("corpus", None, "passages") as progress:
        for file, line, value in source.items():
            if keep_empty and isinstance(value, Problem) and value.kind == "empty":
                value = Passage(f"{source.place(file, line)} without text", "", "")
            if isinstance(value, Problem):
                skipping.add(source.place(file, line), value)
                if skipping.counts.total() >= EARLY:
                    skipping.check(rows)
                continue
            buffer[filled] = (hash(value.id) & 0xFFFFFFFFFFFFFFFF, rows, file, line)
            rows, filled = rows + 1, filled + 1
            yield value
            if filled == _BUFFER:
                _deal(buffer, shares)
                progress.advance(filled)
                filled = 0
    _deal(buffer[:filled], shares)


def _deal(entries: np.ndarray, shares: Path) -> None:
    """Appends each entry to the file of its hash's share, in order."""
    if not len(entries):
        return
    share = entries["hash"] % np.uint64(_SHARES)
    order = np.argsort(share, kind="stable")
    numbers, starts = np.unique(share[order], return_index=True)
    for number, part in zip(numbers.tolist(), np.split(entries[order], starts[1:]), strict=True):
        with (shares / str(number)).open("ab") as stream:
            stream.write(part.tobytes())


def _duplicates(folder: Path, shares: Path) -> np.ndarray:
    """Rows whose id an earlier row has, sorted: row, file, line, and file and line of the earlier one."""
    found: list[tuple[int, int, int, int, int]] = []
    with PassageStore(folder) as store:
        for share in shares.iterdir():
            ids = np.sort(np.fromfile(share, dtype=_SEEN), order=("hash", "row"))
            (ends,) = np.nonzero(np.append(ids["hash"][1:] != ids["hash"][:-1], True))
            begin = 0
            for end in (ends + 1).tolist():
                if end - begin > 1:
                    found.extend(_same_ids(ids[begin:end], store))
                begin = end
    names = ("row", "file", "line", "first_file", "first_line")
    return np.array(sorted(found), dtype=[(name, "<i8") for name in names])


def _same_ids(group: np.ndarray, store: PassageStore) -> Iterator[tuple[int, int, int, int, int]]:
    """Of entries with one hash, those whose id really is that of an earlier one."""
    first: dict[str, np.void] = {}
    for entry in group:
        earlier = first.setdefault(store.read(int(entry["row"])).id, entry)
        if earlier is not entry:
            yield int(entry["row"]), int(entry["file"]), int(entry["line"]), int(earlier["file"]), int(earlier["line"])
