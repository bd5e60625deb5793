"""Files at the boundary: JSON Lines records in and out, checked line by line, whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from steprag.errors import ConfigError, DataError
from steprag.records.json_text import NotJson, decoded
from steprag.records.packed import LINE, NotWhole, line_bytes, lines, open_bytes, too_long
from steprag.types import OMITTED

Record = TypeVar("Record")
_PLAIN = {"a valid tuple": "a list", "a valid dictionary": "an object", "a valid string": "a text"}
"""Words of pydantic for what JSON has."""
PARTIAL = ".partial"
"""Ending of a hidden file that is being written; one that a kill left behind is worth nothing."""


def as_utf8(text: str) -> str:
    """The text with what UTF-8 cannot hold replaced: half a surrogate pair, where an emoji was cut in two."""
    return text.encode("utf-8", "replace").decode()


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    """Of a tuple of `cls`: pydantic takes no configuration beside a dataclass itself."""
    one: Any = tuple[cls, ...]  # pyright: ignore[reportInvalidTypeForm] - a class at run time
    return TypeAdapter(one, config=ConfigDict(allow_inf_nan=False))


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
        return _adapter(cls).validate_python((values,))[0]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the record"
        said = plain(first["msg"]).removeprefix("value error, ")
        raise DataError(path, f"{cls.__name__}: {where}: {said}", line=line) from None


def plain(complaint: str) -> str:
    """What pydantic says, in JSON's words."""
    for theirs, ours in _PLAIN.items():
        complaint = complaint.lower().replace(theirs, ours)
    return complaint


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


def files_hash(paths: Sequence[Path]) -> str:
    """SHA-256 of the hashes of several files, in hex; of one file its own."""
    hashes = [file_hash(path) for path in paths]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def existing(path: Path | str, what: str) -> Path:
    """`path` if there is such a file or folder, else a ConfigError that says what was looked for."""
    found = Path(path).expanduser()
    if not found.exists():
        raise ConfigError(f"{what} not found: {path} (give the path of an existing file or folder)")
    return found


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text, without its line break, of every line that is not blank.

    Raises DataError, with the line, for what is no UTF-8, a damaged compressed file, and a line beyond
    `steprag.records.packed.line_bytes`.
    """
    for number, text, _, _ in _placed_lines(path):
        yield number, text


def _placed_lines(path: Path) -> Iterator[tuple[int, str, int, int]]:
    """As `read_lines`, and each line's first byte and its length in bytes, with its newline."""
    if not path.is_file():
        problem = "is a folder, not a JSON Lines file" if path.is_dir() else "is a device or a pipe, or missing"
        raise DataError(path, problem, remedy="give the path of a file")
    number = start = 0
    with open_bytes(path) as stream:
        try:
            for number, line in lines(stream):
                if line is None:
                    raise DataError(path, too_long()[0], line=number, remedy=too_long()[1])
                if line.strip():
                    yield number, _text(line, number, path), start, len(line)
                start += len(line)
        except NotWhole as error:
            raise DataError(path, str(error), line=number + 1, remedy=error.remedy) from None


def _text(line: bytes, number: int, path: Path) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: byte {line[error.start]:#04x}"
        raise DataError(path, problem, line=number, remedy="convert the file to UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    return text.removeprefix("\ufeff") if number == 1 else text


def parse_line(line: str | bytes, path: Path, number: int, *, finite: bool = True) -> Any:
    """A line's JSON. Raises DataError with the line, also where no file could hold the value again.

    `finite` False takes NaN and Infinity too: metrics of ours may hold them.
    """
    try:
        return decoded(line, finite=finite)
    except NotJson as error:
        raise DataError(path, str(error), line=number) from None


def read_rows(path: Path, *, finite: bool = True) -> Iterator[tuple[int, Any]]:
    """Line number (from 1) and decoded JSON of every line that is not blank; as `read_lines` and `parse_line`."""
    for number, line in read_lines(path):
        yield number, parse_line(line, path, number, finite=finite)


def read_records(path: Path, cls: type[Record]) -> Iterator[Record]:
    """Every record of a JSON Lines file, streamed. Raises DataError with file and line at the first bad one."""
    for number, row in read_rows(path):
        yield from_dict(cls, row, path, number)


@contextmanager
def written_whole(path: Path, mode: str = "w") -> Iterator[Any]:
    """A stream whose file appears at `path` when the block ends well, and not at all when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with temporary.open(mode.replace("w", "x"), encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """The JSON object that a file holds; NaN and Infinity, which metrics of ours may hold, are taken.

    Raises DataError, which ends with `remedy`, for anything else.
    """
    value = read_value(path, line_bytes(), remedy, finite=False)
    if not isinstance(value, dict):
        raise DataError(path, f"expected a JSON object, found {type(value).__name__}", line=1, remedy=remedy)
    return value


def read_value(path: Path, most: int, remedy: str = "", *, finite: bool = True) -> Any:
    """The JSON value that a file of at most `most` bytes holds. Raises DataError, which ends with `remedy`."""
    with open_bytes(path) as stream:
        try:
            content = stream.read(most + 1).removeprefix(b"\xef\xbb\xbf")
        except NotWhole as error:
            raise DataError(path, str(error), remedy=error.remedy) from None
    if len(content) > most:
        raise DataError(path, f"more than {most:,} bytes of JSON", remedy=remedy or f"${LINE} raises the bound")
    try:
        return decoded(content, finite=finite)
    except NotJson as error:
        raise DataError(path, str(error), line=error.line + 1, remedy=remedy) from None


@contextmanager
def shaped(path: Path, *, line: int | None = None, remedy: str = "") -> Iterator[None]:
    """A block that reads the contents of one of our files. Raises DataError if they have another shape."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"is not as it was written ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
        raise DataError(path, problem, line=line, remedy=remedy) from error


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
        self._stream = path.open("ab", buffering=0)

    def append(self, record: object) -> int:
        """Writes the record as one line and hands it to the system before it returns; how many bytes the line has.

        Raises OSError where there is no room; what was written of the line is then taken back.
        """
        line = f"{dump_line(record)}\n".encode()
        start, written = self._stream.seek(0, os.SEEK_END), 0
        try:
            while written < len(line):
                written += self._stream.write(line[written:])
            if self._synced:
                os.fsync(self._stream.fileno())
        except OSError:
            self._stream.truncate(start)
            raise
        return len(line)

    def close(self) -> None:
        """Closes the file; nothing can be appended any more."""
        self._stream.close()

    def __enter__(self) -> LineJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drop_torn_line(path: Path) -> None:
    """Cuts a file after its last newline: a kill may have left part of a line there."""
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
    for number, text, start, length in _placed_lines(path):
        yield number, parse_line(text, path, number), start, length
