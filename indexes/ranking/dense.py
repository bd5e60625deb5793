"""Dense search: the encoder's vectors in FAISS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from indexes.ranking.rankings import SPARE, Asked, Ranking, TextEncoder, VectorIndex, by_vector, ranking


class DenseSearcher:
    """Ranks rows by the cosine of their vector and the query's."""

    def __init__(self, fingerprint: str, index: VectorIndex, load_encoder: Callable[[], TextEncoder]) -> None:
        self.fingerprint, self._index, self._load_encoder = fingerprint, index, load_encoder
        self._encoder: TextEncoder | None = None

    def load(self) -> None:
        """Loads the encoder, once."""
        self._encoder = self._encoder or self._load_encoder()

    def search(self, asked: Sequence[Asked]) -> list[Ranking]:
        """At most `top_k` rows a query, by cosine."""
        self.load()
        assert self._encoder is not None
        return by_vector(asked, self._encoder, self._nearest)

    def _nearest(self, vectors: np.ndarray, top_k: int) -> list[Ranking]:
        scores, rows = self._index.search(vectors, min(top_k + SPARE, self._index.ntotal))
        return [ranking(*found) for found in zip(rows, scores, strict=True)]
