"""A run's results, one JSON line each, and their index.

`trees.jsonl.index` stands beside `trees.jsonl`. For every result it holds the id of the question, the place of the line
and the counts. A start reads the index and not the results, which may be gigabytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from steprag.agent.compliance import Said
from steprag.errors import DataError
from steprag.records.jsonl import (
    LineJournal,
    drop_torn_line,
    dump_line,
    from_dict,
    line_hash,
    lines_of,
    parse_line,
    read_records,
    write_records,
    written_whole,
)

Record = TypeVar("Record")
VERSION = 5
"""Version of the index. Raise it when a kind counts other things, so that older indexes are made anew."""


def nothing(_: object) -> dict[str, Any]:
    """Counts of a result of which nothing is counted."""
    return {}


def anything(_: object) -> bool:
    """Whether counts of which nothing is read make sense."""
    return True


def silent(_: object) -> list[Said]:
    """The completions of a result that has none."""
    return []


@dataclass(frozen=True)
class ResultKind(Generic[Record]):
    """A kind of results file: its records, the question of each record, and the counts of each.

    `fits`: whether counts that an index holds are such counts. `said`: the completions of a record; where it has some,
    they are counted as `written`, with the characters of `reasoning`.
    """

    record: type[Record]
    id_of: Callable[[Record], str]
    counts: Callable[[Record], dict[str, Any]] = nothing
    fits: Callable[[dict[str, Any]], bool] = anything
    said: Callable[[Record], list[Said]] = silent


@dataclass(frozen=True)
class Place:
    """Where a result stands: line from 1, first byte from 0, bytes with the newline; and its counts.

    `check` is a hash of all that: no manifest lists the index, and a flipped bit in it must not go unseen.
    """

    id: str
    line: int
    start: int
    length: int
    counts: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    check: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def index_of(path: Path) -> Path:
    """The index of a results file."""
    return path.with_name(f"{path.name}.index")


def places_of(path: Path, kind: ResultKind[Any]) -> list[Place]:
    """The place of every result of a file, in the order of its lines; from its index where that holds, else read.

    Writes nothing, so the file may be another run's. Raises DataError with the line of a result that is none.
    """
    return indexed_places(path, kind) or _read(path, kind)


def read_at(place: Place, path: Path, cls: type[Record]) -> Record:
    """The one result at that place of its file."""
    with path.open("rb") as stream:
        stream.seek(place.start)
        return from_dict(cls, parse_line(stream.read(place.length), path, place.line), path, place.line)


class Results(Generic[Record]):
    """The results of a run that is open: what is there, and one more at a time.

    Of several lines of one question the last one counts.
    """

    def __init__(self, path: Path, kind: ResultKind[Record]) -> None:
        """Reads the index, and makes it anew where it is missing or the results were changed by something else."""
        self.path, self.kind = path, kind
        drop_torn_line(path)
        self._lines = indexed_places(path, kind)
        if not self._lines:
            self._lines = _read(path, kind)
            index_of(path).unlink(missing_ok=True)
            if self._lines:
                write_records(index_of(path), self._lines)
        self._by_question = {place.id: place for place in self._lines}

    def __contains__(self, question_id: object) -> bool:
        return question_id in self._by_question

    def __len__(self) -> int:
        return len(self._by_question)

    def counts(self) -> Iterator[dict[str, Any]]:
        """What is counted of every result."""
        return (place.counts for place in self._by_question.values())

    @contextmanager
    def appending(self) -> Iterator[Callable[[Record], dict[str, Any]]]:
        """A function that appends a result and returns its counts: then it is on the disk, and in the index."""
        with LineJournal(self.path) as lines, LineJournal(index_of(self.path), synced=False) as index:

            def append(result: Record) -> dict[str, Any]:
                start, line = self.path.stat().st_size, self._lines[-1].line + 1 if self._lines else 1
                place = place_of(result, self.kind, line, start, lines.append(result))
                self._lines.append(place)
                self._by_question[place.id] = place
                index.append(place)
                return place.counts

            yield append

    def put_in_order(self, question_ids: Iterable[str]) -> None:
        """Puts the lines into the order of the questions, so that equal runs give equal files. Results of other
        questions, of a run with a higher limit, stay behind them.
        """
        drop_torn_line(self.path)  # a full disk may have ended the run
        places = self._by_question
        found = [places[key] for key in dict.fromkeys((*question_ids, *places)) if key in places]
        if list(_moved(found)) != self._lines:
            self._lines = _copied(self.path, [(self.path, place) for place in found])
            self._by_question = {place.id: place for place in self._lines}


def gather(path: Path, kind: ResultKind[Any], parts: Sequence[Path], question_ids: Iterable[str]) -> None:
    """Writes the results of several files into one, in the order of the questions, others behind them. Of several
    results of one question that of the last file counts. `path` may be one of the files.
    """
    found: dict[str, tuple[Path, Place]] = {}
    for part in parts:
        drop_torn_line(part)  # the run may have been killed
        found |= {place.id: (part, place) for place in places_of(part, kind)}
    _copied(path, [found[key] for key in dict.fromkeys((*question_ids, *found)) if key in found])


def _copied(path: Path, found: list[tuple[Path, Place]]) -> list[Place]:
    """Writes these results into one file, and its index; their places there."""
    index_of(path).unlink(missing_ok=True)  # it must never outlive the order that it describes
    with ExitStack() as opened, written_whole(path, "wb") as file:
        streams = {part: opened.enter_context(part.open("rb")) for part in {part for part, _ in found}}
        for part, place in found:
            streams[part].seek(place.start)
            file.write(streams[part].read(place.length))
    places = list(_moved([place for _, place in found]))
    write_records(index_of(path), places)
    return places


def _read(path: Path, kind: ResultKind[Any]) -> list[Place]:
    rows = lines_of(path) if path.exists() else ()
    return [
        place_of(from_dict(kind.record, row, path, line), kind, line, start, length)
        for line, row, start, length in rows
    ]


def place_of(record: Any, kind: ResultKind[Any], line: int, start: int, length: int) -> Place:
    """The place of a result that stands there."""
    return _sealed(Place(kind.id_of(record), line, start, length, kind.counts(record)))


def _sealed(place: Place) -> Place:
    """The place with its hash, as this version writes it."""
    return replace(place, version=VERSION, check=_check(place))


def _check(place: Place) -> str:
    """The hash of a place; counts as they are in the file."""
    return line_hash(dump_line({"counts": [place.id, place.line, place.start, place.length, place.counts]}))


def _moved(places: list[Place]) -> Iterator[Place]:
    """The places of the same results one behind the other."""
    start = 0
    for line, place in enumerate(places, 1):
        yield _sealed(Place(place.id, line, start, place.length, place.counts))
        start += place.length


def indexed_places(path: Path, kind: ResultKind[Any]) -> list[Place]:
    """What the index says, if it holds; none where it is missing, damaged, or older or longer than the results."""
    try:
        return list(places_in_index(path, kind))
    except DataError:  # torn by a kill, or not ours: the results say all that it says
        return []


def places_in_index(path: Path, kind: ResultKind[Any]) -> Iterator[Place]:
    """The places in the index, one after the other; none if it is missing, older than the results, or ends elsewhere.
    Raises DataError, after some places perhaps, where it is damaged or not of this version.
    """
    index = index_of(path)
    if not (path.exists() and index.exists()) or index.stat().st_mtime_ns < path.stat().st_mtime_ns:
        return
    last = from_dict(Place, parse_line(_last_line(index), index, 0), index, 0)
    if last.start + last.length != path.stat().st_size:
        return
    end = 0
    for place in read_records(index, Place):
        whole = place.version == VERSION and place.check == _check(place) and kind.fits(place.counts)
        if not whole or place.start < end or place.length < 1:  # blank lines may lie between
            raise DataError(index, "not an index of this version, or damaged", line=place.line)
        end = place.start + place.length
        yield place


def _last_line(path: Path) -> bytes:
    """The last line of a file, however long; nothing of an empty one."""
    with path.open("rb") as stream:
        size, taken = stream.seek(0, os.SEEK_END), 2**16
        while True:
            stream.seek(max(0, size - taken))
            tail = stream.read().rstrip(b"\n")
            if b"\n" in tail or taken >= size:
                return tail.rpartition(b"\n")[2]
            taken *= 8
