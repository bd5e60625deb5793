"""What a safetensors file says that it holds, checked before any library reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steprag.errors import DataError
from steprag.json_text import NotJson, decoded

_LONGEST = 100_000_000
"""Bytes of a header; safetensors' own bound."""
_REMEDY = "the file is damaged or no safetensors file: fetch or save it again"


def check_tensors(path: Path) -> None:
    """Raises DataError where a file is no safetensors file, ends early, or holds no tensor."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST):
            raise DataError(path, "its header is longer than the file", remedy=_REMEDY)
        try:
            header: Any = decoded(stream.read(length))
        except NotJson as error:
            raise DataError(path, f"its header: {error}", remedy=_REMEDY) from None
    tensors = [one for name, one in header.items() if name != "__metadata__"] if isinstance(header, dict) else []
    ends = [end for one in tensors if (end := _end(one)) is not None]
    if len(ends) < len(tensors) or max(ends, default=0) != size - 8 - length:
        raise DataError(path, "its header does not fit its size", remedy=_REMEDY)
    if not tensors:
        raise DataError(path, "it holds no tensors", remedy=_REMEDY)


def _end(tensor: Any) -> int | None:
    """The byte behind a tensor; None where its entry makes no sense."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(one) is int for one in offsets):
        return None
    return offsets[1] if 0 <= offsets[0] <= offsets[1] else None
