"""The passage store of an index folder: passages by row, where row number is the FAISS id."""

from __future__ import annotations

import os
import shutil
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from steprag.config.recipes import PASSAGES as PASSAGES
from steprag.errors import DataError
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import dump_line, written_whole
from steprag.types import Passage

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"\x93NUMPY"
_BROKEN = (ValueError, SyntaxError, tokenize.TokenError, OverflowError, TypeError, KeyError, EOFError)
"""What NumPy raises for headers that make no sense."""


def mapped_list(path: Path, kind: str, remedy: str) -> np.ndarray:
    """A list of at least one number, mapped from its file; `kind`: "i" whole numbers, "f" others.

    Nothing pickled is read. Raises DataError where the file is anything else.
    """
    import numpy as np

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
    return np.asarray(values)  # the plain array: a memmap wraps each number that is read


OFFSETS = "passages.offsets.npy"
DOCUMENTS = "documents.jsonl"
"""What an index of documents keeps of each (`indexes.corpora.documents`)."""
SKIPPED = "skipped.jsonl"
"""Lines of the corpus that are not passages."""
_BLOCK = 1 << 17
"""Offsets that are kept until they are written."""
_MEND = "build the index again"


Titles = Literal["plain", "quoted", "omitted"]
"""How the encoder reads a passage's title: FlashRAG's corpora have it in quotation marks, and others leave it out."""


def passage_text(passage: Passage, titles: Titles = "plain") -> str:
    """What the encoder reads of a passage: title, newline, text."""
    if not passage.title or titles == "omitted":
        return passage.text
    return f'"{passage.title}"\n{passage.text}' if titles == "quoted" else f"{passage.title}\n{passage.text}"


def write_passages(folder: Path, passages: Iterable[Passage]) -> int:
    """Writes `passages.jsonl` and where each row begins: int64 byte offsets, and the file's size as one more entry.

    Returns how many. Memory does not grow with them. Raises UnicodeEncodeError where a text holds half of a
    surrogate pair.
    """
    rows = ({"id": passage.id, "title": passage.title, "text": passage.text} for passage in passages)
    return _write(folder, (dump_line(row).encode() + b"\n" for row in rows))


def drop_rows(folder: Path, dropped: np.ndarray) -> int:
    """Writes the store again without the rows in `dropped` (sorted); returns how many are left."""

    def kept() -> Iterator[bytes]:
        following = iter(dropped.tolist())
        gone = next(following, -1)
        with (folder / PASSAGES).open("rb") as stream:
            for row, line in enumerate(stream):
                if row == gone:
                    gone = next(following, -1)
                else:
                    yield line

    return _write(folder, kept())


def _write(folder: Path, lines: Iterable[bytes]) -> int:
    import numpy as np

    rows, end, waiting = 0, 0, [0]
    raw = folder / ".offsets.raw"
    with raw.open("wb+") as offsets, written_whole(folder / PASSAGES, "wb") as stream:
        for line in lines:
            stream.write(line)
            end += len(line)
            rows += 1
            waiting.append(end)
            if len(waiting) >= _BLOCK:
                offsets.write(np.array(waiting, dtype="<i8").tobytes())
                waiting.clear()
        offsets.write(np.array(waiting, dtype="<i8").tobytes())
        offsets.seek(0)
        with written_whole(folder / OFFSETS, "wb") as final:
            np.lib.format.write_array_header_1_0(final, {"descr": "<i8", "fortran_order": False, "shape": (rows + 1,)})
            shutil.copyfileobj(offsets, final, 1 << 20)
    raw.unlink()
    return rows


class PassageStore(AbstractContextManager["PassageStore"]):
    """Passages by row, read from disk one at a time; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Opens the store. Raises DataError where offsets and passages do not belong together."""
        self._path = folder / PASSAGES
        self._offsets, self._end = mapped_list(folder / OFFSETS, "i", _MEND), self._path.stat().st_size
        if int(self._offsets[-1]) != self._end:
            raise DataError(self._path, "does not belong to its offsets", remedy=_MEND)
        self._file = os.open(self._path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, row: int, score: float | None = None) -> Passage:
        """The passage of a row, with the score that a search gave it."""
        try:
            start, end = int(self._offsets[row]), int(self._offsets[row + 1])
            if not 0 <= start < end <= self._end:
                raise IndexError
            values = decoded(os.pread(self._file, end - start, start))
            passage = Passage(values["id"], values["title"], values["text"], score)
            if not all(isinstance(value, str) for value in (passage.id, passage.title, passage.text)):
                raise TypeError
            return passage
        except (NotJson, LookupError, TypeError):
            raise DataError(self._path, "the row is not a passage", line=row + 1, remedy=_MEND) from None

    def texts(self, rows: Iterable[int], titles: Titles = "plain") -> list[str]:
        """What the encoder reads of these rows."""
        return [passage_text(self.read(row), titles) for row in rows]

    def close(self) -> None:
        """Closes the passages' file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __exit__(self, *_: object) -> None:
        self.close()
