"""Corpora as they come in, streamed: JSON Lines (plain, gz, zst), Parquet, hub data sets and Wikipedia dumps.

A source yields every passage with its place, and what could not be read as a `Problem` with its place. What then
happens to problems is the intake's business (`indexes.corpora.read_corpus`). Memory does not grow with the corpus.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import steprag.atlas
from indexes.corpora.source import HUB, Item, Problem, Source, passage_or_problem
from indexes.corpora.tables import hub_source, parquet_rows
from indexes.corpora.wikipedia import dump_passages
from steprag.errors import ConfigError, DataError
from steprag.files import existing, file_hash
from steprag.types import Passage

ATLAS = "atlas"
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")
FOLDER_FILES = (*LINES[:3], ".parquet")
"""Endings of the files that are read of a folder, in the order of their names."""
FORMAT = 'one {"id", "title", "text"} or {"id", "contents"} a line'


def open_source(corpus: str) -> Source:
    """The source behind `--corpus`: the word atlas, `hub:NAME[:CONFIG[:SPLIT]]`, a file, or a folder of files.

    Raises ConfigError where there is nothing that can be read.
    """
    if corpus.startswith(HUB):
        return hub_source(corpus)
    path = existing(steprag.atlas.path("corpus") if corpus == ATLAS else corpus, "corpus")
    paths = [path]
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.name.endswith(FOLDER_FILES))
        if not paths:
            raise ConfigError(f"{path} holds no corpus files ({', '.join(FOLDER_FILES)})")
    readers = [_reader(file) for file in paths]

    def items() -> Iterator[Item]:
        for number, (file, reader) in enumerate(zip(paths, readers, strict=True)):
            for line, value in reader(file):
                yield number, line, value

    return Source(corpus, tuple(str(file) for file in paths), lambda: _hash(paths), items)


def _hash(paths: list[Path]) -> str:
    hashes = [file_hash(path) for path in paths]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, Passage | Problem]]]:
    name = path.name
    if name.endswith(".parquet"):
        return parquet_rows
    if name.endswith((".xml.bz2", ".xml")):
        return dump_passages
    return json_lines


def json_lines(path: Path) -> Iterator[tuple[int, Passage | Problem]]:
    """Every line that is not blank, from 1. Raises DataError where a compressed file is damaged or ends early."""
    number = 0
    with _opened(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                content = line.strip() if number > 1 else line.removeprefix(b"\xef\xbb\xbf").strip()
                if content:
                    yield number, _passage(content, path, number)
        except (EOFError, gzip.BadGzipFile, zlib.error, _ZstBroken) as error:
            packed = "zstandard" if path.suffix == ".zst" else "gzip"
            problem = f"not a whole {packed} file: {error}"
            raise DataError(path, problem, line=number + 1, remedy="fetch it again") from None


def _passage(content: bytes, path: Path, number: int) -> Passage | Problem:
    try:
        row = json.loads(content.decode())
    except UnicodeDecodeError as error:
        return Problem("encoding", f"not UTF-8: byte {content[error.start]:#04x}")
    except json.JSONDecodeError as error:
        return Problem("json", f"not JSON: {error.msg} at column {error.colno}")
    return passage_or_problem(row, path, number)


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # pyright: ignore[reportReturnType] - a GzipFile reads as a BinaryIO
    if path.suffix == ".zst":
        return zst_stream(path.open("rb"))
    return path.open("rb")


def zst_stream(packed: BinaryIO) -> BinaryIO:
    """The content of an open zstandard file, which is closed with it."""
    return io.BufferedReader(_Zst(packed), 1 << 20)


class _ZstBroken(Exception):
    """The file is no zstandard file, or a damaged one."""


class _Zst(io.RawIOBase):
    """A zstandard file of one or more frames. zstandard's own reader takes a file that was cut off for a whole one."""

    def __init__(self, packed: BinaryIO) -> None:
        import zstandard

        self._new, self._error = zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
        self._file, self._frame = packed, self._new()
        self._packed, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._packed = self._packed or self._file.read(1 << 18)
            if not self._packed:
                if not self._frame.eof:
                    raise EOFError("it ends in the middle")
                return 0
            self._unpack()
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken

    def _unpack(self) -> None:
        if self._frame.eof:
            self._frame = self._new()
        try:
            self._ready = memoryview(self._frame.decompress(self._packed))
        except self._error as error:
            raise _ZstBroken(str(error)) from None
        self._packed = self._frame.unused_data if self._frame.eof else b""

    def close(self) -> None:
        self._file.close()
        super().close()
