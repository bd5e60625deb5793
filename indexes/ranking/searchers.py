"""Searchers over others and over vectors: dense, fused, and read again by an optional cross-encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from indexes.ranking.rankings import (
    POOL,
    RRF_K,
    SPARE,
    Ranking,
    RowSearcher,
    SearchKey,
    TextEncoder,
    VectorIndex,
    named,
    ordered,
    ranking,
    unit,
)
from indexes.rows.passage_store import PassageStore


class DenseSearcher:
    """Ranks rows by the cosine of their vector and the query's: FAISS's, or a database's."""

    def __init__(self, fingerprint: str, index: VectorIndex, load_encoder: Callable[[], TextEncoder]) -> None:
        self.fingerprint, self._index, self._load_encoder = fingerprint, index, load_encoder
        self._encoder: TextEncoder | None = None

    def load(self) -> None:
        """Loads the encoder, once."""
        self._encoder = self._encoder or self._load_encoder()

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        """At most `top_k` rows a query, by cosine.

        All queries are encoded at once, and each top_k is a search of its own. A query that stands twice is encoded
        once.
        """
        self.load()
        assert self._encoder is not None
        texts = list(dict.fromkeys(query for query, _ in asked))
        vectors = dict(zip(texts, self._encoder.encode_queries(texts), strict=True))
        found: dict[SearchKey, Ranking] = {}
        for top_k in dict.fromkeys(top_k for _, top_k in asked):
            alike = [each for each in dict.fromkeys(asked) if each[1] == top_k]
            wanted = np.stack([vectors[query] for query, _ in alike])
            scores, rows = self._index.search(wanted, min(top_k + SPARE, self._index.ntotal))
            found |= {each: ranking(*pair)[:top_k] for each, *pair in zip(alike, rows, scores, strict=True)}
        return [found[each] for each in asked]


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

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
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


def _summed(rankings: Iterable[Ranking], weights: Sequence[float]) -> Ranking:
    scores: dict[int, float] = {}
    for ranked, weight in zip(rankings, weights, strict=True):
        for row, score in ranked:
            scores[row] = scores.get(row, 0.0) + weight * score
    return ordered({row: score / sum(weights) for row, score in scores.items()})


class PairScorer(Protocol):
    """What the re-ranker asks of a cross-encoder. `hash` names its weights."""

    hash: str

    def load(self) -> None:
        """Loads the weights, in the thread that will score."""
        ...

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) scores, greater is better."""
        ...


class RerankedSearcher:
    """The first `candidates` of another ranking (top_k, where that is more) in the cross-encoder's order."""

    def __init__(self, base: RowSearcher, store: PassageStore, model: PairScorer, candidates: int) -> None:
        self._base, self._store, self._model, self._candidates = base, store, model, candidates
        self.fingerprint = named("rerank", base.fingerprint, model.hash, candidates)

    def load(self) -> None:
        """Loads the ranking below, then the cross-encoder."""
        self._base.load()
        self._model.load()

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        """At most `top_k` rows a query, with the cross-encoder's scores."""
        found = self._base.search([(query, max(top_k, self._candidates)) for query, top_k in asked])
        return [rerank(query, first, self._store, self._model)[:top_k]
                for (query, top_k), first in zip(asked, found, strict=True)]  # fmt: skip


def rerank(query: str, first: Ranking, store: PassageStore, model: PairScorer) -> Ranking:
    """`first` in the order of the model's scores, equal ones by row."""
    if not first:
        return []
    rows = [row for row, _ in first]
    return ranking(np.array(rows), model.score(query, store.texts(rows)))
