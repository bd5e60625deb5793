"""Postings, built on the disk: for every term the rows that hold it and their scores; BM25's by `bm25s`'s formula and
in its files, byte for byte.

`bm25s` itself holds every token of the corpus. Here documents are counted a block at a time; once document frequencies
and the mean length are known, the counts become scores, which are dealt out to ranges of terms; each range is then
sorted by itself. In memory are the vocabulary, a block and a range.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

BLOCK = 1 << 18
"""Tokens that are counted, and pairs that are scored, at once."""
RANGE = 1 << 20
"""Postings in a range of terms; one term's own may be more."""
FILES = 500
"""Ranges at most: each has a file open while scores are dealt out."""
COUNTS = "counts"
_COUNT = [("row", "<i4"), ("term", "<i4"), ("count", "<i4")]
POSTING = [("term", "<i4"), ("row", "<i4"), ("score", "<f4")]


@dataclass(frozen=True)
class Counted:
    """A corpus after its first reading. `frequencies`: (terms,) in how many of the `rows` each term stands."""

    vocabulary: dict[str, int]
    frequencies: np.ndarray
    rows: int
    tokens: int


def count_terms(documents: Iterable[Sequence[str]], scratch: Path) -> Counted:
    """Reads documents, each by its terms, in the order of the rows. What it counts stays in the folder `scratch`."""
    with (scratch / COUNTS).open("wb") as stream:
        return _count(documents, stream)


def write_arrays(folder: Path, scratch: Path, counted: Counted, k1: float, b: float) -> None:
    """Writes `data`, `indices` and `indptr` of a BM25 index (Lucene's formula) as `bm25s` saves them: term by term, and
    in each by row. `scratch` is that of `count_terms`, which found at least one term.
    """
    rows = counted.rows
    idf = np.array([math.log(1 + (rows - df + 0.5) / (df + 0.5)) for df in counted.frequencies.tolist()], np.float32)
    mean = counted.tokens / rows
    blocks = (_scored(pairs, idf, mean, k1, b) for pairs in _whole_rows(scratch / COUNTS))
    parts = _deal_out(scratch, blocks, counted.frequencies)
    (scratch / COUNTS).unlink()
    _assemble(folder, parts, counted.frequencies)


def _count(documents: Iterable[Sequence[str]], stream: BinaryIO) -> Counted:
    """Writes how often each row holds each of its terms, by row."""
    vocabulary: dict[str, int] = {}
    frequencies = np.zeros(0, dtype=np.int64)
    terms, ends, rows, tokens = array("i"), array("i"), 0, 0

    def flush() -> None:
        nonlocal frequencies
        pairs = _pairs(terms, ends, rows - len(ends))
        stream.write(pairs.tobytes())
        added = np.bincount(pairs["term"], minlength=len(frequencies))
        added[: len(frequencies)] += frequencies
        frequencies = added
        del terms[:], ends[:]

    for document in documents:
        terms.extend(vocabulary.setdefault(term, len(vocabulary)) for term in document)
        ends.append(len(terms))
        rows, tokens = rows + 1, tokens + len(document)
        if len(terms) >= BLOCK:
            flush()
    flush()
    return Counted(vocabulary, frequencies, rows, tokens)


def _pairs(terms: array[int], ends: array[int], first: int) -> np.ndarray:
    """Each row's distinct terms and their counts; `ends` says where each row's terms end, `first` is the first row."""
    rows = np.repeat(np.arange(len(ends), dtype=np.int64), np.diff(np.array(ends, dtype=np.int64), prepend=0))
    packed, counts = np.unique(rows << 32 | np.array(terms, dtype=np.int64), return_counts=True)
    pairs = np.empty(len(packed), dtype=_COUNT)
    pairs["row"], pairs["term"], pairs["count"] = (packed >> 32) + first, packed & 0xFFFFFFFF, counts
    return pairs


def _deal_out(scratch: Path, blocks: Iterable[np.ndarray], frequencies: np.ndarray) -> list[Path]:
    """Postings into a file for each range of terms, by row in each; returns the files in their order."""
    ends = np.cumsum(frequencies)
    part_of = (ends - frequencies) // max(RANGE, int(ends[-1]) // FILES)
    parts = [scratch / f"part{number}" for number in range(int(part_of[-1]) + 1)]
    with ExitStack() as stack:
        streams = [stack.enter_context(path.open("wb")) for path in parts]
        for postings in blocks:
            part = part_of[postings["term"]]
            order = np.argsort(part, kind="stable")
            numbers, starts = np.unique(part[order], return_index=True)
            for number, chunk in zip(numbers, np.split(postings[order], starts[1:]), strict=True):
                streams[number].write(chunk.tobytes())
    return parts


def _whole_rows(counts: Path) -> Iterator[np.ndarray]:
    """The counts in blocks that end where a row does: a row's length is the sum of its counts."""
    left = np.empty(0, dtype=_COUNT)
    with counts.open("rb") as stream:
        while block := stream.read(BLOCK * left.itemsize):
            pairs = np.concatenate([left, np.frombuffer(block, dtype=_COUNT)])
            begun = int(np.searchsorted(pairs["row"], pairs["row"][-1]))  # of the last row more may come
            left = pairs[begun:]
            if begun:
                yield pairs[:begun]
    yield left


def _scored(pairs: np.ndarray, idf: np.ndarray, mean: float, k1: float, b: float) -> np.ndarray:
    """Term frequency in float64, times idf, rounded to float32: the steps of `bm25s`, so that the bytes are its too."""
    _, begins = np.unique(pairs["row"], return_index=True)
    lengths = np.add.reduceat(pairs["count"].astype(np.int64), begins)
    length = np.repeat(lengths, np.diff(begins, append=len(pairs)))
    postings = np.empty(len(pairs), dtype=POSTING)
    postings["term"], postings["row"] = pairs["term"], pairs["row"]
    postings["score"] = idf[pairs["term"]] * (pairs["count"] / (k1 * ((1 - b) + b * length / mean) + pairs["count"]))
    return postings


def _assemble(folder: Path, parts: Sequence[Path], frequencies: np.ndarray) -> None:
    """Sorts each range by term and appends it to the arrays."""
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(frequencies)])
    np.save(_array(folder, "indptr"), bounds, allow_pickle=False)
    with _array(folder, "data").open("wb") as data, _array(folder, "indices").open("wb") as indices:
        for stream, kind in ((data, "<f4"), (indices, "<i4")):
            header = {"descr": kind, "fortran_order": False, "shape": (int(bounds[-1]),)}
            np.lib.format.write_array_header_1_0(stream, header)
        for part in parts:
            postings = np.fromfile(part, dtype=POSTING)
            part.unlink()
            order = np.argsort(postings["term"], kind="stable")
            data.write(postings["score"][order].tobytes())
            indices.write(postings["row"][order].tobytes())


def _array(folder: Path, name: str) -> Path:
    return folder / f"{name}.csc.index.npy"
