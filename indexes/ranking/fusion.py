"""Fusion: several rankings as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from indexes.ranking.rankings import POOL, RRF_K, Asked, Ranking, RowSearcher, named, ordered, unit


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


def _summed(rankings: Iterable[Ranking], weights: Sequence[float]) -> Ranking:
    scores: dict[int, float] = {}
    for ranked, weight in zip(rankings, weights, strict=True):
        for row, score in ranked:
            scores[row] = scores.get(row, 0.0) + weight * score
    return ordered({row: score / sum(weights) for row, score in scores.items()})
