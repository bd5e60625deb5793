"""Files at the boundary: JSON Lines records in and out, checked line by line, whole or not at all."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import TypeAdapter, ValidationError

from steprag.errors import ConfigError, DataError
from steprag.types import OMITTED

Record = TypeVar("Record")
PARTIAL = ".partial"
"""Ending of a hidden file that is being written; one that a kill left behind is worth nothing."""


def as_utf8(text: str) -> str:
    """The text with what UTF-8 cannot hold replaced: half a surrogate pair, where an emoji was cut in two."""
    return text.encode("utf-8", "replace").decode()


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


@cache
def _fields(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


@cache
def _omitted(cls: type) -> tuple[str, ...]:
    """The fields that a JSON object lacks where they are None."""
    return tuple(f.name for f in dataclasses.fields(cls) if OMITTED in f.metadata)


@cache
def _known(cls: type) -> frozenset[str]:
    return frozenset(_fields(cls)) - {"extra"}


def from_dict(cls: type[Record], row: object, path: Path, line: int) -> Record:
    """`row` as a `cls`; fields that `cls` lacks go to `extra`. Raises DataError with file and line."""
    if not isinstance(row, dict):
        raise DataError(path, f"expected a JSON object, found {type(row).__name__}", line=line)
    known = _known(cls)
    values: dict[str, Any] = {k: v for k, v in row.items() if k in known}
    values["extra"] = {k: v for k, v in row.items() if k not in known}
    try:
        return _adapter(cls).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the record"
        said = first["msg"].lower().removeprefix("value error, ")
        raise DataError(path, f"{cls.__name__}: {where}: {said}", line=line) from None


def to_dict(record: object) -> dict[str, Any]:
    """A record as JSON-ready values in field order, with `extra` merged back."""
    return json.loads(dump_line(record))


def dump_line(record: object) -> str:
    """A record as one line of JSON, without the newline. The same record always gives the same bytes."""
    if not isinstance(record, dict):
        row = _shallow(record)
        row |= row.pop("extra", {})
    else:
        row = record
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_shallow)


def _shallow(record: Any) -> dict[str, Any]:
    """A dataclass as a dictionary of its fields, in their order; json.dumps asks for those within it in turn."""
    cls = type(record)
    row = {name: getattr(record, name) for name in _fields(cls)}
    for name in _omitted(cls):
        if row[name] is None:
            del row[name]
    return row


def line_hash(line: str) -> str:
    """Short name of a line of a file: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def existing(path: Path | str, what: str) -> Path:
    """`path` if there is such a file or folder, else a ConfigError that says what was looked for."""
    found = Path(path).expanduser()
    if not found.exists():
        raise ConfigError(f"{what} not found: {path} (give the path of an existing file or folder)")
    return found


def open_text(path: Path) -> TextIO:
    """A text file for reading, plain or gzipped by its ending. Bad UTF-8 surfaces as UnicodeDecodeError."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text, without newline, of every line that is not blank. Raises DataError with the line."""
    if path.is_dir():
        raise DataError(path, "is a folder, not a JSON Lines file")
    number = 0
    with open_text(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield number, line.removesuffix("\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(path, f"not a whole gzip file: {error}", line=number + 1, remedy="fetch it again") from None
        except UnicodeDecodeError as error:
            problem = f"not UTF-8: byte {error.object[error.start]:#04x}"
            raise DataError(path, problem, line=number + 1, remedy="convert the file to UTF-8") from None


def parse_line(line: str, path: Path, number: int) -> Any:
    """A line's JSON. Raises DataError with the line, also where no file could hold the value again."""
    return _parse_json(line, path, number)


def _parse_json(text: str, path: Path, first: int, remedy: str = "") -> Any:
    """The JSON value of `text`, which starts at line `first` of the file. Raises DataError as `parse_line` does."""
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # the only way in for half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg} at column {error.colno}"
        raise DataError(path, problem, line=first + error.lineno - 1, remedy=remedy) from None
    except UnicodeEncodeError:
        raise DataError(path, "half a surrogate pair, which is no character", line=first, remedy=remedy) from None
    except RecursionError:
        raise DataError(path, "lists or objects are nested too deep", line=first, remedy=remedy) from None
    except ValueError:  # Python's limit: 4,300 digits
        raise DataError(path, "a number has too many digits", line=first, remedy=remedy) from None
    return value


def read_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Line number (from 1) and decoded JSON of every line that is not blank. Raises DataError with the line."""
    for number, line in read_lines(path):
        yield number, parse_line(line, path, number)


def read_records(path: Path, cls: type[Record]) -> Iterator[Record]:
    """Every record of a JSON Lines file, streamed. Raises DataError with file and line at the first bad one."""
    for number, row in read_rows(path):
        yield from_dict(cls, row, path, number)


@contextmanager
def written_whole(path: Path, mode: str = "w") -> Iterator[Any]:
    """A stream whose file appears at `path` when the block ends well, and not at all when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    temporary = Path(name)
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """The JSON object that a file holds. Raises DataError, which ends with `remedy`, for anything else."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, f"not UTF-8: byte {content[error.start]:#04x}", line=line, remedy=remedy) from None
    value = _parse_json(text, path, 1, remedy)
    if not isinstance(value, dict):
        raise DataError(path, f"expected a JSON object, found {type(value).__name__}", line=1, remedy=remedy)
    return value


def write_json(path: Path, value: object) -> None:
    """`value` as indented JSON, whole or not at all."""
    with written_whole(path) as stream:
        stream.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_records(path: Path, records: Iterable[object]) -> int:
    """Records as JSON Lines, whole or not at all; returns how many."""
    count = 0
    with written_whole(path) as stream:
        for count, record in enumerate(records, 1):  # noqa: B007 - counted while streaming
            stream.write(dump_line(record) + "\n")
    return count


class LineJournal:
    """A JSON Lines file that grows line by line and survives a kill: a torn last line is dropped when it is opened
    again.
    """

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        """`synced`: lines also outlive a power failure; without, they only outlive the process."""
        self.path, self._synced = path, synced
        drop_torn_line(path)
        self._stream = path.open("ab")

    def append(self, record: object) -> int:
        """Writes the record as one line and hands it to the system before it returns; how many bytes the line has."""
        line = f"{dump_line(record)}\n".encode()
        self._stream.write(line)
        self._stream.flush()
        if self._synced:
            os.fsync(self._stream.fileno())
        return len(line)

    def close(self) -> None:
        """Closes the file; nothing can be appended any more."""
        self._stream.close()

    def __enter__(self) -> LineJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drop_torn_line(path: Path) -> None:
    """Cuts a file behind its last newline: what a kill left of a line that was being written."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as stream:
        size = end = stream.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            stream.seek(start)
            newline = stream.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            stream.truncate(end)


def lines_of(path: Path) -> Iterator[tuple[int, Any, int, int]]:
    """Number, JSON, byte offset and length in bytes of every line of a plain JSON Lines file that is not blank.

    Numbers start at 1 and count blank lines; the length includes the newline.
    """
    start, rows = 0, read_rows(path)
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                _, row = next(rows)
                yield number, row, start, len(line)
            start += len(line)
