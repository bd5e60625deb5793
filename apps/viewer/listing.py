"""A JSON Lines file that may be gigabytes and may grow: where each record stands, and the little that a list shows.

Reading continues in slices of time, so a page has its first rows at once. Lines that cannot be read become faults with
their line numbers; the others are shown.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple

from steprag.batch.results import Place, Record, ResultKind, place_of, places_in_index
from steprag.errors import ConfigError, DataError
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import from_dict, parse_line
from steprag.records.packed import NotWhole, lines, open_bytes, too_long

BOM = b"\xef\xbb\xbf"
"""What some editors write before a file's first line."""
FAULTS = 100
"""Faults that are kept word for word; more are counted."""


@dataclass(frozen=True)
class Fault:
    """A line that could not be read, and why."""

    line: int
    message: str


class Stamp(NamedTuple):
    """Facts that show whether a file was replaced, or has grown."""

    inode: int
    size: int
    changed: int


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def replaced(before: Stamp | None, now: Stamp | None) -> bool:
    """Whether the file was replaced; growth of the same file does not count."""
    if before is None or now is None:
        return now != before
    return now != before and not (now.inode == before.inode and now.size > before.size)


class Listing(Generic[Record]):
    """The places of a file's records, in order of its lines. Call `refresh` before each look.

    `generation` rises whenever the places so far no longer hold, because something else was put in the file's place.
    `lock` is to be held between a refresh and what relies on it.
    """

    def __init__(self, path: Path, kind: ResultKind[Record], *, indexed: bool = False) -> None:
        """`indexed`: the file may have an index (`steprag.batch.results`) that counts as `kind` does."""
        self.path, self._kind, self._indexed = path, kind, indexed
        self.lock = threading.RLock()
        self.generation = 0
        self._stamp: Stamp | None = None
        self._unpacked: Any = None
        self._forget()

    def _forget(self) -> None:
        self.places: list[Place] = []
        self.faults: list[Fault] = []
        self.fault_count = 0
        self.end = self._line = 0
        self.torn = False
        self._index: Iterator[Place] | None = None
        if self._unpacked:
            self._unpacked.close()
        self._unpacked = None

    @property
    def size(self) -> int:
        """Bytes of the file, unpacked; 0 where there is none."""
        if self._unpacked:
            return os.fstat(self._unpacked.fileno()).st_size
        return self._stamp.size if self._stamp else 0

    @property
    def complete(self) -> bool:
        """Whether all that is in the file by now is listed."""
        return self.end >= self.size or self.torn

    def refresh(self, seconds: float, enough: int | None = None) -> None:
        """Looks at the file again and reads on for so long at most, at least one line; not beyond `enough` places."""
        with self.lock:
            now = stamp_of(self.path)
            if replaced(self._stamp, now) or (self._unpacked and now != self._stamp):
                self.generation += 1
                self._forget()
                self._stamp = now
                self._begin()
            elif now != self._stamp:
                self._stamp, self.torn = now, False
            deadline = time.monotonic() + seconds
            if self._index is not None:
                self._read_index(self._index, deadline, enough)
            if now is not None and self._index is None and not self.complete:
                self._read_on(deadline, enough)

    def _begin(self) -> None:
        if self._stamp is None:
            return
        if self.path.suffix in (".gz", ".zst"):
            self._unpacked = self._unpack()
        elif self._indexed:
            self._index = places_in_index(self.path, self._kind)

    def _unpack(self) -> Any:
        """The file's text in a temporary file, as far as it can be unpacked."""
        stream = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it lives as long as the listing
        try:
            with open_bytes(self.path) as packed:
                shutil.copyfileobj(packed, stream)
        except NotWhole as error:
            self._fault(0, str(error))
        stream.flush()
        return stream

    def _open(self) -> BinaryIO:
        """The text, opened again: a duplicate of the descriptor would share its place with other threads' reads."""
        return open(self._unpacked.name, "rb") if self._unpacked else self.path.open("rb")

    def _read_index(self, index: Iterator[Place], deadline: float, enough: int | None) -> None:
        """Takes places from the index. Where that turns out not to hold, the file itself is read, from its start."""
        try:
            for place in index:
                self.places.append(place)
                self.end, self._line = place.start + place.length, place.line
                if time.monotonic() > deadline or self._has(enough):
                    return
            self._index = None
        except DataError:
            self.generation += 1
            self._forget()

    def _has(self, enough: int | None) -> bool:
        return enough is not None and len(self.places) >= enough

    def _read_on(self, deadline: float, enough: int | None) -> None:
        with self._open() as stream:
            stream.seek(self.end)
            for _, line in lines(stream):
                if line is not None and not line.endswith(b"\n") and not _whole(line):
                    self.torn = True  # still being written, or what a kill left
                    return
                self._line += 1
                if line is None:
                    self._fault(self._line, too_long()[0])
                elif line.strip():
                    self._list(line)
                self.end = stream.tell()
                if time.monotonic() > deadline or self._has(enough):
                    return

    def _list(self, line: bytes) -> None:
        try:
            record = from_dict(
                self._kind.record, parse_line(line.removeprefix(BOM), self.path, self._line), self.path, self._line
            )
            self.places.append(place_of(record, self._kind, self._line, self.end, len(line)))
        except (DataError, ConfigError) as error:
            self._fault(self._line, error.problem if isinstance(error, DataError) else str(error))

    def _fault(self, line: int, message: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS:
            self.faults.append(Fault(line, message))

    def line_at(self, place: Place) -> str:
        """The text of a record's line, without its newline. Raises DataError where the file changed meanwhile."""
        with self._open() as stream:
            stream.seek(place.start)
            line = stream.read(place.length)
        try:
            return line.decode("utf-8-sig").removesuffix("\n")
        except UnicodeDecodeError:
            raise DataError(self.path, "changed while it was read", line=place.line) from None

    def lines_of(self, places: Sequence[Place]) -> Iterator[tuple[Place, bytes]]:
        """The places, in order of the file, each with the bytes of its line."""
        with self._open() as stream:
            for place in places:
                if stream.tell() != place.start:
                    stream.seek(place.start)
                yield place, stream.read(place.length)

    def read(self, place: Place) -> Record:
        """The record at a place. Raises DataError where the file changed meanwhile."""
        row = parse_line(self.line_at(place), self.path, place.line)
        return from_dict(self._kind.record, row, self.path, place.line)


def _whole(line: bytes) -> bool:
    """Whether a last line without a newline is a whole object: no part of one is JSON."""
    try:
        return isinstance(decoded(line), dict)
    except NotJson:
        return False
