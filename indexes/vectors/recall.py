"""Recall and latency of an index against exact search."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from indexes.ranking.rankings import VectorIndex
from indexes.rows.vector_file import VectorFile

SAMPLE = 100
"""Passages that serve as queries where no questions are given."""
DEPTH = 10
TIE = 1e-5
"""A found row counts where its exact score reaches the tenth best but for this, so that ties cost nothing."""


@dataclass(frozen=True)
class Measured:
    """Recall@10 in [0, 1] and milliseconds a query, one query at a time in one thread."""

    recall_at_10: float
    search_ms: float
    queries: int
    of: str


@dataclass(frozen=True)
class Probe:
    """Queries and what exact search finds.

    `vectors` (n, dimension); `own` (n,) the query's own row, -1 where it is no passage: it is not counted as found;
    `least` (n,) the exact score of the last of the `depth` best; `of`: "passages" or "questions".
    """

    vectors: np.ndarray
    own: np.ndarray
    least: np.ndarray
    depth: int
    of: str


def make_probe(vectors: VectorFile, questions: np.ndarray | None = None) -> Probe:
    """The probe of an index's vectors: encoded questions where there are some, else up to 100 sampled passages."""
    if questions is None:
        own = np.sort(np.random.default_rng(0).permutation(vectors.rows)[:SAMPLE])
        queries, depth, of = vectors.take(own), min(DEPTH, vectors.rows - 1), "passages"
    else:
        queries, depth, of = questions, min(DEPTH, vectors.rows), "questions"
        own = np.full(len(queries), -1)
    return Probe(queries, own, _least(vectors, queries, own, depth), depth, of)


def _least(vectors: VectorFile, queries: np.ndarray, own: np.ndarray, depth: int) -> np.ndarray:
    """The `depth`-th best exact score of every query, its own row left out; all vectors are read once."""
    best = np.full((len(queries), depth), -np.inf, dtype=np.float32)
    for start, chunk in vectors.chunks():
        scores = queries @ chunk.T
        for query, row in enumerate(own - start):
            if 0 <= row < len(chunk):
                scores[query, row] = -np.inf
        together = np.concatenate((best, scores), axis=1)
        best = np.partition(together, -depth, axis=1)[:, -depth:] if depth else best
    return best.min(axis=1) if depth else np.zeros(len(queries), np.float32)


def bound_faiss(threads: int) -> None:
    """FAISS's threads for the thread that calls, as OpenMP counts them, and for the process, from how many numbers in a
    batch's queries on it compares by matrix products. Its own bound, 128,000, fits machines of many threads; with one,
    products win from 640 to 1,280 on (facebookresearch/faiss#5109).
    """
    import faiss

    faiss.omp_set_num_threads(threads)
    faiss.cvar.distance_compute_blas_threshold = 800 * threads


def measure(index: VectorIndex, vectors: VectorFile, probe: Probe) -> Measured:
    """What the index finds of the probe, and how fast."""
    import faiss

    threads, products = faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold
    bound_faiss(1)  # as a retriever searches
    hits, seconds = 0, 0.0
    try:
        for query, own, least in zip(probe.vectors, probe.own, probe.least, strict=True):
            start = time.perf_counter()
            _, found = index.search(query[None], min(probe.depth + 1, index.ntotal))
            seconds += time.perf_counter() - start
            rows = found[0][(found[0] >= 0) & (found[0] != own)][: probe.depth]
            hits += int((vectors.take(rows) @ query >= least - TIE).sum())
    finally:
        faiss.omp_set_num_threads(threads)
        faiss.cvar.distance_compute_blas_threshold = products
    count = len(probe.vectors)
    recall = hits / (count * probe.depth) if probe.depth else 1.0
    return Measured(round(recall, 4), round(1000 * seconds / count, 3), count, probe.of)
