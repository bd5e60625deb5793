"""The key-values at the head of a GGUF file, read within its bounds: files come from strangers.

The package `gguf` believes every count that a file names, and reads on beyond its end.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steprag.errors import DataError

_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Numbers by GGUF's type; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_REMEDY = "fetch or convert it again"


class _Cut(ValueError):
    """The file ends before a value does, or a value makes no sense."""


class _Head:
    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._place = content, 0

    def bytes(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._content):
            raise _Cut
        piece, self._place = self._content[self._place : end], end
        return piece

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.bytes(struct.calcsize(f"<{kind}")))[0]

    def string(self) -> str:
        return self.bytes(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner == _STRING:
                self._room(count * 8)
                return [self.string() for _ in range(count)]
            size = struct.calcsize(f"<{_kind(inner)}")
            self._room(count * size)
            return list(struct.unpack(f"<{count}{_kind(inner)}", self.bytes(count * size)))
        return self.number(_kind(kind))

    def _room(self, size: int) -> None:
        if size > len(self._content) - self._place:
            raise _Cut


def _kind(number: int) -> str:
    if number not in _SIZES:
        raise _Cut
    return _SIZES[number]


def gguf_values(path: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """The file's key-values whose keys are `wanted`. Raises DataError where it is no GGUF file of version 2 or 3."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            head = _Head(content)
            if head.bytes(4) != b"GGUF" or head.number("I") not in (2, 3):
                raise _Cut
            head.number("Q")  # tensors
            found = {}
            for _ in range(head.number("Q")):
                key = head.string()
                value = head.value(head.number("I"))
                if wanted(key):
                    found[key] = value
            return found
    except ValueError:  # an empty file too, which cannot be mapped
        raise DataError(path, "is no whole GGUF file of version 2 or 3", remedy=_REMEDY) from None
