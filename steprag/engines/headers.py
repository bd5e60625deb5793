"""What the heads of GGUF and safetensors files say, read within their bounds: files come from strangers.

The package `gguf` believes every count that a file names, and reads on beyond its end.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steprag.errors import DataError
from steprag.records.json_text import NotJson, decoded

_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Numbers by GGUF's type; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9


class _Cut(ValueError):
    """The file ends before a value does, or a value makes no sense."""


class _Head:
    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._place = content, 0

    def bytes(self, count: int) -> bytes:
        self._room(count)
        self._place += count
        return self._content[self._place - count : self._place]

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
        raise DataError(path, "is no whole GGUF file of version 2 or 3", remedy="fetch or convert it again") from None


_LONGEST = 100_000_000
"""Bytes of a header; safetensors' own bound."""
_DAMAGED = "the file is damaged or no safetensors file: fetch or save it again"


def tensor_heads(path: Path) -> dict[str, Any]:
    """A safetensors file's header: tensor name → {"dtype", "shape", "data_offsets"}; `__metadata__` may stand beside.

    Raises DataError where a file is no safetensors file, ends early, or holds no tensor.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST):
            raise DataError(path, "its header is longer than the file", remedy=_DAMAGED)
        try:
            header: Any = decoded(stream.read(length))
        except NotJson as error:
            raise DataError(path, f"its header: {error}", remedy=_DAMAGED) from None
    tensors = [one for name, one in header.items() if name != "__metadata__"] if isinstance(header, dict) else []
    ends = [end for one in tensors if (end := _end(one)) is not None]
    if len(ends) < len(tensors) or max(ends, default=0) != size - 8 - length:
        raise DataError(path, "its header does not fit its size", remedy=_DAMAGED)
    if not tensors:
        raise DataError(path, "it holds no tensors", remedy=_DAMAGED)
    return header


def _end(tensor: Any) -> int | None:
    """The byte behind a tensor; None where its entry makes no sense."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(one) is int for one in offsets):
        return None
    return offsets[1] if 0 <= offsets[0] <= offsets[1] else None
