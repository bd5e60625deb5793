"""Lists of numbers that an index folder maps from `.npy` files."""

from __future__ import annotations

import tokenize
from pathlib import Path

import numpy as np

from steprag.errors import DataError

_MAGIC = b"\x93NUMPY"
_BROKEN = (ValueError, SyntaxError, tokenize.TokenError, OverflowError, TypeError, KeyError, EOFError)
"""What NumPy raises for headers that make no sense."""


def mapped_list(path: Path, kind: str, remedy: str) -> np.ndarray:
    """A list of at least one number, mapped from its file; `kind`: "i" whole numbers, "f" others.

    Nothing pickled is read. Raises DataError where the file is anything else.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it does not begin as one")
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except _BROKEN as error:
        problem = f"not a NumPy array: {' '.join(str(error).split())[:200]}"
        raise DataError(path, problem, remedy=remedy) from None
    if values.ndim != 1 or not len(values) or values.dtype.kind != kind:
        raise DataError(path, f"is no list of {'whole ' if kind == 'i' else ''}numbers", remedy=remedy)
    return values
