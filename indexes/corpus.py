"""Corpora as they come in, and the passage store of an index folder, where row number is the FAISS id."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

import steprag.atlas
from steprag.errors import DataError
from steprag.files import dump_line, existing, passage_from_row, read_rows, written_whole
from steprag.types import Passage

ATLAS = "atlas"
PASSAGES = "passages.jsonl"
OFFSETS = "passages.offsets.npy"


def corpus_path(corpus: str) -> Path:
    """The file behind `--corpus`: a path, or the word "atlas" for the embedded corpus. Raises ConfigError."""
    return existing(steprag.atlas.path("corpus") if corpus == ATLAS else corpus, "corpus")


def read_corpus(path: Path) -> list[Passage]:
    """All passages of a corpus file in its order, ids unique, at least one. Raises DataError with file and line."""
    passages: list[Passage] = []
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        passage = passage_from_row(row, path, number)
        if passage.id in seen:
            problem = f"id {passage.id!r} stands in line {seen[passage.id]} already"
            raise DataError(path, problem, line=number, remedy="give every passage an id of its own")
        seen[passage.id] = number
        passages.append(passage)
    if not passages:
        remedy = 'one {"id", "title", "text"} or {"id", "contents"} a line'
        raise DataError(path, "holds no passages", remedy=remedy)
    return passages


def passage_text(passage: Passage) -> str:
    """What the encoder reads of a passage: title, newline, text."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def write_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Writes `passages.jsonl` and where each row begins: int64 byte offsets, and the file's size as one more entry."""
    offsets = np.zeros(len(passages) + 1, dtype=np.int64)
    with written_whole(folder / PASSAGES, "wb") as stream:
        for row, passage in enumerate(passages):
            line = dump_line({"id": passage.id, "title": passage.title, "text": passage.text}).encode() + b"\n"
            stream.write(line)
            offsets[row + 1] = offsets[row] + len(line)
    with written_whole(folder / OFFSETS, "wb") as stream:
        np.save(stream, offsets, allow_pickle=False)


class PassageStore:
    """Passages by row, read from disk one at a time; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Opens the store. Raises DataError where offsets and passages do not belong together."""
        self._path = folder / PASSAGES
        try:
            self._offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(folder / OFFSETS, f"not a NumPy array: {error}", remedy="build the index again") from None
        if self._offsets.ndim != 1 or int(self._offsets[-1]) != self._path.stat().st_size:
            raise DataError(self._path, "does not belong to its offsets", remedy="build the index again")
        self._file = os.open(self._path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, row: int, score: float) -> Passage:
        """The passage of a row, with the score that a search gave it."""
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            values = json.loads(os.pread(self._file, end - start, start))
            return Passage(values["id"], values["title"], values["text"], score)
        except (ValueError, KeyError, TypeError):
            remedy = "build the index again"
            raise DataError(self._path, "the row is not a passage", line=row + 1, remedy=remedy) from None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> PassageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
