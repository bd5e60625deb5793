"""FAISS files of other programs: whose rows their ids are, which vectors they hold, and cosines out of distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from indexes.ranking.rankings import VectorIndex

L2 = "l2"
"""The metric of an adopted file that ranks by distance."""


class Cosines:
    """An index of unit vectors that ranks by squared distance: d² = 2 - 2 cos, so the order is the cosine's."""

    def __init__(self, inner: VectorIndex) -> None:
        self.inner, self.ntotal = inner, inner.ntotal

    def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) cosines and rows, best first; -1 where there is no row."""
        distances, rows = self.inner.search(x, k)
        return 1 - distances / 2, rows


def ids_are_rows(index: Any) -> bool:
    """Whether the ids that a search gives are the numbers from 0 on, each once."""
    import faiss

    if isinstance(index, faiss.IndexIDMap):
        ids = np.sort(faiss.vector_to_array(index.id_map))
        if not np.array_equal(ids, np.arange(index.ntotal)):
            return False
    cells = faiss.try_extract_index_ivf(index)
    if cells is not None:
        try:
            cells.make_direct_map()  # from here on its vectors can be read by row, too
        except RuntimeError:  # an id beyond the last row
            return False
    return True


def stored_vectors(index: Any, rows: np.ndarray) -> np.ndarray | None:
    """(len(rows), dimension) float32 of these rows, as exact as the file keeps them; None where it gives none back."""
    import faiss

    places = rows
    if isinstance(index, faiss.IndexIDMap):
        places = np.argsort(faiss.vector_to_array(index.id_map))[rows]
        index = faiss.downcast_index(index.index)
    try:
        return np.stack([index.reconstruct(int(place)) for place in places])
    except RuntimeError:  # this class cannot
        return None


def keeps_vectors(index: Any) -> bool:
    """Whether the file holds two bytes a dimension or more, so that what it gives back is the vector itself."""
    import faiss

    inner = index
    while (below := getattr(inner, "storage", None) or getattr(inner, "index", None)) is not None:
        inner = faiss.downcast_index(below)
    return getattr(inner, "code_size", 0) >= 2 * index.d
