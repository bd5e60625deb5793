"""What ranks rows for queries: vectors, BM25, both fused, and a cross-encoder on top. All run in the worker thread.

A ranking never depends on what else is in the batch: how many candidates are fused or read again is a function of the
query's own top_k.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from indexes.encoding.encoders import TextEncoder
from steprag.errors import RetrieverError
from steprag.files import as_utf8

Ranking = list[tuple[int, float]]
"""(row, score), best first, equal scores by row."""
Asked = tuple[str, int]
"""A query and how many rows it wants at most."""

DECIMALS = 4
"""Scores are rounded to these before rows are ordered; the last float32 digit depends on the batch."""
SPARE = 8
"""Rows asked of FAISS beyond top_k, so that ties at the cut are broken by row and not by chance."""
POOL = 100
"""Rows of each ranking that are fused, or more where more are asked for."""
RRF_K = 60
"""Reciprocal rank fusion's constant (Cormack, Clarke and Büttcher, SIGIR 2009)."""


class VectorIndex(Protocol):
    """What dense search asks of FAISS."""

    ntotal: int

    def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) scores and (n, k) rows of n queries, best first, -1 where there is no row."""
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

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        """One ranking for each, at most as long as asked for."""
        ...


def asked_of(query: str, top_k: int) -> Asked:
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


class DenseSearcher:
    """The encoder's vectors in FAISS; scores are cosines."""

    def __init__(self, fingerprint: str, index: VectorIndex, load_encoder: Callable[[], TextEncoder]) -> None:
        self.fingerprint, self._index, self._load_encoder = fingerprint, index, load_encoder
        self._encoder: TextEncoder | None = None

    def load(self) -> None:
        """Loads the encoder, once."""
        self._encoder = self._encoder or self._load_encoder()

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        """At most `top_k` rows a query, by cosine. A query that stands twice is encoded once."""
        self.load()
        assert self._encoder is not None
        texts = list(dict.fromkeys(query for query, _ in asked))
        depth = min(max(top_k for _, top_k in asked) + SPARE, self._index.ntotal)
        scores, rows = self._index.search(self._encoder.encode_queries(texts), depth)
        ranked = {text: ranking(rows[i], scores[i]) for i, text in enumerate(texts)}
        return [ranked[query][:top_k] for query, top_k in asked]


def ranking(rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """Rows with rounded scores, best first, equal scores by row; FAISS's filler id -1 left out."""
    pairs = [(int(row), round(float(score), DECIMALS)) for row, score in zip(rows, scores, strict=True) if row >= 0]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def best_rows(scores: np.ndarray, top_k: int) -> Ranking:
    """The best of all rows, given one score each; rows whose score is 0 are not found."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > top_k:
        cut = np.partition(scores[rows], -top_k)[-top_k] - 1e-3  # ties, and what rounding makes one, stay in
        rows = rows[scores[rows] >= cut]
    return ranking(rows, scores[rows])[:top_k]


class HybridSearcher:
    """Several rankings as one; the weights say how much each counts."""

    def __init__(self, parts: Sequence[RowSearcher], weights: Sequence[float], fusion: str = "scores") -> None:
        """`fusion`: scores (`fuse_scores`) or rrf (`fuse_ranks`)."""
        self._parts, self._weights = tuple(parts), tuple(weights)
        self._fuse = {"scores": fuse_scores, "rrf": fuse_ranks}[fusion]
        self.fingerprint = named(fusion, RRF_K, POOL, [part.fingerprint for part in parts], self._weights)

    def load(self) -> None:
        """Loads every part, in order."""
        for part in self._parts:
            part.load()

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        """At most `top_k` rows a query, fused from the first POOL of each part or more."""
        pools = [(query, max(top_k, POOL)) for query, top_k in asked]
        found = [part.search(pools) for part in self._parts]
        return [self._fuse(rankings, self._weights)[:top_k]
                for rankings, (_, top_k) in zip(zip(*found, strict=True), asked, strict=True)]  # fmt: skip


def fuse_ranks(rankings: Sequence[Ranking], weights: Sequence[float]) -> Ranking:
    """Reciprocal rank fusion: a row's score is the sum over rankings of weight / (RRF_K + its rank, from 1), scaled so
    that first place in all of them gives 1.
    """
    ranked = ([(row, (RRF_K + 1) / (RRF_K + rank)) for rank, (row, _) in enumerate(ranking, 1)] for ranking in rankings)
    return _summed(ranked, weights)


def fuse_scores(rankings: Sequence[Ranking], weights: Sequence[float]) -> Ranking:
    """The weighted mean of scores, each ranking's brought to 0…1 (its last to its first); 0 where a row is missing.

    A convex combination after min-max normalisation (Bruch, Gai and Ingber, ACM TOIS 2023).
    """
    return _summed(map(unit, rankings), weights)


def unit(ranked: Ranking) -> Ranking:
    """The ranking with its scores brought to 0…1; 1 where all are equal."""
    if not ranked:
        return []
    best, last = ranked[0][1], ranked[-1][1]
    return [(row, (score - last) / (best - last) if best > last else 1.0) for row, score in ranked]


def _summed(rankings: Iterable[Ranking], weights: Sequence[float]) -> Ranking:
    scores: dict[int, float] = {}
    for ranked, weight in zip(rankings, weights, strict=True):
        for row, score in ranked:
            scores[row] = scores.get(row, 0.0) + weight * score
    return ordered({row: score / sum(weights) for row, score in scores.items()})


def ordered(scores: Mapping[int, float]) -> Ranking:
    """Rows by score, rounded; equal scores by row."""
    rounded = ((row, round(score, 6)) for row, score in scores.items())
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))
