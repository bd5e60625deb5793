"""Files as bytes and lines, plain or compressed (`PACKED`) by their ending. Nothing is read without a bound: far above
what good files need, and the environment raises it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from steprag.errors import ConfigError, quoted, shortened

LINE = "STEPRAG_LINE_MIB"
"""Variable: MiB that one line of a file, or one JSON file, may have."""
EXPANSION = "STEPRAG_EXPANSION"
"""Variable: how many times its own size a compressed file may expand to."""
_DEFAULTS = {LINE: 64, EXPANSION: 200}
FREE = 64 << 20
"""Bytes that any compressed file may expand to: a short list of equal rows is no bomb."""
_SLICE = 1 << 10
"""Packed bytes that zstandard is given at once: they expand to 32 MiB at most, mostly to some 4 KiB."""


def line_bytes() -> int:
    """Bytes that a line may have, without its newline."""
    return _limit(LINE) << 20


def expansion() -> int:
    """How many times its own size a compressed file may expand to."""
    return _limit(EXPANSION)


def _limit(variable: str) -> int:
    given = os.environ.get(variable, "").strip()
    if not given:
        return _DEFAULTS[variable]
    if not (given.isascii() and given.isdigit() and 1 <= len(given) <= 9 and int(given)):
        raise ConfigError(f"${variable} is {quoted(given)}; give a whole number of at least 1")
    return int(given)


class NotWhole(Exception):
    """A compressed file is damaged, ends early, or expands beyond its bound. The message says which, and a remedy."""

    def __init__(self, problem: str, remedy: str = "fetch it again") -> None:
        super().__init__(problem)
        self.remedy = remedy


def open_bytes(path: Path) -> BinaryIO:
    """The file's content. Reading raises NotWhole for a compressed file that is not in order."""
    return unpacked(path.open("rb"), path) if path.suffix in PACKED else path.open("rb")


def unpacked(packed: BinaryIO, path: Path) -> BinaryIO:
    """The content of an open compressed file, which is closed with it; `path` tells format and size."""
    return io.BufferedReader(_Bounded(PACKED[path.suffix], packed, path.stat().st_size), 1 << 17)


def lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Every line with its number from 1 and its newline; None for one that is too long and was passed over."""
    longest = line_bytes()
    for number, line in enumerate(iter(partial(stream.readline, longest + 1), b""), 1):
        if len(line) > longest and not line.endswith(b"\n"):
            _pass_over(stream)
            yield number, None
        else:
            yield number, line


def too_long() -> tuple[str, str]:
    """The problem and the remedy of a line that `lines` passed over."""
    return f"a line of more than {line_bytes():,} bytes", f"is it one record a line? ${LINE} raises the bound"


def _pass_over(stream: BinaryIO) -> None:
    for part in iter(partial(stream.readline, 1 << 20), b""):
        if part.endswith(b"\n"):
            return


class _Bounded(io.RawIOBase):
    """A stream that gives up once it has given too many times the packed size, or where the file is damaged."""

    def __init__(self, form: _Form, packed: BinaryIO, size: int) -> None:
        self._form, self._packed, self._left = form, packed, max(FREE, expansion() * size)
        self._inner: Any = None  # opened by the first read: a zip is damaged at its end, which opening reads

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            self._inner = self._inner or self._form.opened(self._packed)
            count = self._inner.readinto(buffer)
        except self._form.damage as error:
            raise NotWhole(f"not a whole {self._form.name} file: {error}") from None
        self._left -= count
        if self._left < 0:
            problem = f"it expands to more than {expansion()} times its size"
            raise NotWhole(problem, f"is it a corpus? ${EXPANSION} raises the bound")
        return count

    def close(self) -> None:
        self._packed.close()
        super().close()


class _Zst:
    """A zstandard file of one or more frames. zstandard's own reader takes a file that was cut off for a whole one."""

    def __init__(self, packed: BinaryIO) -> None:
        import zstandard

        self._new, self._error = zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
        self._file, self._frame = packed, self._new()
        self._packed, self._ready = memoryview(b""), memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._packed = self._packed or memoryview(self._file.read(1 << 18))
            if not self._packed:
                if not self._frame.eof:
                    raise NotWhole("not a whole zstandard file: it ends in the middle")
                return 0
            self._unpack()
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken

    def _unpack(self) -> None:
        if self._frame.eof:
            self._frame = self._new()
        part = self._packed[:_SLICE]
        try:
            self._ready = memoryview(self._frame.decompress(part))
        except self._error as error:
            raise NotWhole(f"not a whole zstandard file: {error}") from None
        unused = len(self._frame.unused_data) if self._frame.eof else 0
        self._packed = self._packed[len(part) - unused :]


def _only_member(packed: BinaryIO) -> Any:
    """The one file of a zip archive."""
    archive = zipfile.ZipFile(packed)
    files = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
    if len(files) != 1:
        named = shortened(", ".join(repr(one.filename) for one in files[:5]), 200)
        raise NotWhole(f"a zip archive of {len(files)} files ({named})", "unpack it and give one of its files")
    if files[0].flag_bits & 1:
        raise NotWhole("a zip archive with a password", "unpack it and give its file")
    return archive.open(files[0])


class _Form(NamedTuple):
    """A way to pack one file: its name, what opens it, and what that raises where it is damaged."""

    name: str
    opened: Callable[[BinaryIO], Any]
    damage: tuple[type[Exception], ...] = ()


PACKED = {
    ".gz": _Form("gzip", lambda packed: gzip.GzipFile(fileobj=packed), (EOFError, gzip.BadGzipFile, zlib.error)),
    ".zst": _Form("zstandard", _Zst),
    ".bz2": _Form("bzip2", bz2.BZ2File, (EOFError, OSError)),
    ".xz": _Form("xz", lzma.LZMAFile, (EOFError, lzma.LZMAError)),
    ".zip": _Form(
        "zip", _only_member, (EOFError, zipfile.BadZipFile, NotImplementedError, OSError, zlib.error, lzma.LZMAError)
    ),
}
"""Compressed files by their ending; a zip archive holds one file."""
