"""Rankings of rows, and what makes one: the protocol of searchers, rounding, and the order of equal scores.

Searchers run in the retriever's worker thread. A ranking depends on the query and its own top_k alone, never on what
else is in the batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from steprag.errors import RetrieverError
from steprag.records.jsonl import as_utf8

Ranking = list[tuple[int, float]]
"""(row, score), best first, equal scores by row."""
SearchKey = tuple[str, int]
"""A query and how many rows it wants at most."""

DECIMALS = 4
"""Scores are rounded to these before rows are ordered; the last float32 digit depends on the batch."""
TIED = 1e-3
"""Scores this near to the last of the best stay in: ties, and what rounding makes one."""
SPAN = 64
"""Rows that are looked at by their greatest score alone, first."""
SPARE = 8
"""Rows asked of FAISS beyond top_k, so that ties at the cut are broken by row and not by chance."""
POOL = 100
"""Rows of each ranking that are fused, or more where more are asked for."""
RRF_K = 60
"""Reciprocal rank fusion's constant (Cormack, Clarke and Büttcher, SIGIR 2009)."""
ALONE = "one search for each top_k"
"""Part of the fingerprint of approximate indexes. Earlier versions searched a whole batch as deep as its greatest
top_k. Such an index finds other rows at another depth, so their kept rankings do not count.
"""


class VectorIndex(Protocol):
    """What dense search asks of FAISS."""

    ntotal: int

    def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) scores and (n, k) rows of n queries, best first, -1 where there is no row."""
        ...


class TextEncoder(Protocol):
    """What dense search asks of an encoder."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dimension) float32 vectors, in the order of the texts, with the query prefix."""
        ...

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """The same with the prefix of passages."""
        ...


class RowSearcher(Protocol):
    """Ranks rows. Used by one thread; equal fingerprints give equal rankings."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits of all that decides the rankings."""
        ...

    def load(self) -> None:
        """Loads what takes long (weights), once, in the thread that will search."""
        ...

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        """One ranking for each, at most as long as asked for."""
        ...


def search_key(query: str, top_k: int) -> SearchKey:
    """The query with single spaces, and its top_k. Raises RetrieverError for what cannot be searched."""
    text = as_utf8(" ".join(query.split()))  # half a surrogate pair would fail the batch
    if not text:
        raise RetrieverError("the query is empty")
    if top_k < 1:
        raise RetrieverError(f"top_k is {top_k}; at least 1 passage must be asked for")
    return text, top_k


def named(*parts: Any) -> str:
    """A fingerprint of JSON values: 16 hex digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def ranking(rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """Rows with rounded scores, best first, equal scores by row; FAISS's filler id -1 left out."""
    pairs = [(int(row), round(float(score), DECIMALS)) for row, score in zip(rows, scores, strict=True) if row >= 0]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def best_rows(scores: np.ndarray, top_k: int) -> Ranking:
    """The best of all rows, given one score each; rows whose score is 0 are not found."""
    low, whole = 0.0, len(scores) // SPAN
    if whole >= top_k:  # as many columns hold a row of at least `low`: the best rows have it, most are left out
        low = float(np.partition(scores[: whole * SPAN].reshape(SPAN, -1).max(axis=0), -top_k)[-top_k]) - TIED
    rows = np.flatnonzero(scores >= low if low > 0 else scores > 0)
    found = scores[rows]
    if len(rows) > top_k:
        best = found >= np.partition(found, -top_k)[-top_k] - TIED
        rows, found = rows[best], found[best]
    return ranking(rows, found)[:top_k]


def unit(ranked: Ranking) -> Ranking:
    """The ranking with its scores brought to 0…1; 1 where all are equal."""
    if not ranked:
        return []
    best, last = ranked[0][1], ranked[-1][1]
    return [(row, (score - last) / (best - last) if best > last else 1.0) for row, score in ranked]


def ordered(scores: Mapping[int, float]) -> Ranking:
    """Rows by score, rounded; equal scores by row."""
    rounded = ((row, round(score, 6)) for row, score in scores.items())
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))
