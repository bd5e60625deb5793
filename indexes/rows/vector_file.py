"""Vectors on disk: one row a passage, in FAISS's own formats for flat indexes, written in any order.

Both formats are a short header and then the rows, so a file can be laid out for all rows at once, filled shard by
shard, mapped into memory for exact scores, and opened by FAISS as an index. `vectors.faiss` holds fp16 rows
(IndexScalarQuantizer) and is what every other index type is built from.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steprag.errors import ConfigError, DataError

VECTORS = "vectors.faiss"
MARKS = "vectors.done.jsonl"
"""Marks of finished shards, while an index is built."""
CHUNK = 1 << 23
"""Bytes of vectors that are in memory at once while files are read through."""


def header(dimension: int, rows: int, dtype: np.dtype[Any]) -> bytes:
    """What FAISS writes before the rows of a flat index: an empty index's bytes with the two counts filled in.

    `dtype`: float16 (IndexScalarQuantizer) or float32 (IndexFlatIP); inner product either way.
    """
    import faiss

    if dtype == np.float16:
        empty = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        stored = rows * dimension * 2  # bytes
    else:
        empty = faiss.IndexFlatIP(dimension)
        stored = rows * dimension  # float32 values
    content = bytearray(faiss.serialize_index(empty).tobytes())
    content[8:16] = rows.to_bytes(8, "little")
    content[-8:] = stored.to_bytes(8, "little")
    return bytes(content)


class VectorFile:
    """Rows of vectors in a file. Reading is safe from several threads, writing of different rows from processes."""

    def __init__(self, path: Path, rows: int, dimension: int, dtype: Any = "float16", *, write: bool = False) -> None:
        """Opens a file that `create` laid out. Raises DataError where its size or header is not that of these rows."""
        self.path, self.rows, self.dimension, self.dtype = path, rows, dimension, np.dtype(dtype)
        head = header(dimension, rows, self.dtype)
        self._start, self._width = len(head), dimension * self.dtype.itemsize
        with path.open("r+b" if write else "rb") as stream:
            if (
                stream.read(self._start) != head
                or os.fstat(stream.fileno()).st_size != self._start + rows * self._width
            ):
                remedy = "build the index again"
                raise DataError(path, f"does not hold {rows} vectors of {dimension} dimensions", remedy=remedy)
            access = mmap.ACCESS_DEFAULT if write else mmap.ACCESS_READ
            self._map = mmap.mmap(stream.fileno(), 0, access=access)
        values = np.frombuffer(self._map, dtype=self.dtype, offset=self._start, count=rows * dimension)
        self._values = values.reshape(rows, dimension)

    @classmethod
    def create(cls, path: Path, rows: int, dimension: int, dtype: Any = "float16") -> VectorFile:
        """Lays out a file for `rows` vectors, its disk space reserved. Raises NoRoom where there is none."""
        head = header(dimension, rows, np.dtype(dtype))
        size = len(head) + rows * dimension * np.dtype(dtype).itemsize
        path.unlink(missing_ok=True)  # it may be a second name of another index's file
        with path.open("wb") as stream:
            stream.write(head)
            stream.flush()
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(stream.fileno(), 0, size)
                else:  # macOS: the file gets its size, and a full disk shows later
                    os.ftruncate(stream.fileno(), size)
            except OSError as error:
                path.unlink()
                if error.errno != errno.ENOSPC:
                    raise
                raise no_room(path, size) from None
        return cls(path, rows, dimension, dtype, write=True)

    def copy(self, path: Path, dtype: Any) -> None:
        """Writes the rows into another file, in another arithmetic. Raises NoRoom where the disk is full."""
        other = VectorFile.create(path, self.rows, self.dimension, dtype)
        for start, chunk in self.chunks():
            other.write(start, chunk)
            other.release()

    def write(self, start: int, values: np.ndarray) -> bytes:
        """Writes rows from `start` on, has them on the disk, and returns their bytes as they stand there."""
        self._values[start : start + len(values)] = values
        begin = self._start + start * self._width
        page = begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.flush(page, begin + len(values) * self._width - page)
        return self.stored(start, start + len(values))

    def stored(self, start: int, end: int) -> bytes:
        """The bytes of rows `start` to `end`."""
        return self._values[start:end].tobytes()

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(len(rows), dimension) float32 of these rows. `release` lets go of the pages that were read."""
        return self._values[rows].astype(np.float32)

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All rows in float32, some at a time: first row, and (n, dimension)."""
        step = max(1, CHUNK // (4 * self.dimension))
        for start in range(0, self.rows, step):
            yield start, self._values[start : start + step].astype(np.float32)
            self.release()

    def release(self) -> None:
        """Lets go of the pages that were read: they stay in the operating system's cache, and count to no process."""
        self._map.madvise(mmap.MADV_DONTNEED)


class NoRoom(ConfigError):
    """The disk is full. What was built so far stays, and the build can go on."""


def no_room(path: Path, size: int) -> NoRoom:
    """The error of a full disk; `size` in bytes, 0 where nobody knows."""
    free = os.statvfs(path.parent)
    needs = f"it needs {size / 2**30:.1f} GiB and " if size else ""
    return NoRoom(f"no room for {path}: {needs}{free.f_bavail * free.f_frsize / 2**30:.1f} GiB are free;"
                  " make room and run the same command again, or choose another --out")  # fmt: skip
