"""`open_retriever`: the one door through which other stages search.

Searches that are awaited at the same time become one batch: while a batch is in the worker thread, new queries
collect, and the next batch takes them all. The event loop only ever waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from indexes.corpus import PASSAGES, PassageStore
from indexes.embed import Encoder
from indexes.encoders import TextEncoder, encoder_here
from indexes.manifest import IndexManifest, check_files, fingerprint, read_index_manifest
from indexes.measure import VectorIndex
from indexes.types import open_index
from steprag.errors import ConfigError, DataError, RetrieverError, StepragError
from steprag.files import existing
from steprag.retriever import Retriever
from steprag.types import Passage

MAX_BATCH = 64
CACHED = 4096
"""Searches whose passages are kept; the least recently used go first."""
THREADS = 1
"""Cores that a search uses: the others belong to the engine that serves the policy."""
DECIMALS = 4
"""Scores are rounded to these before passages are ordered; the last float32 digit depends on the batch."""
SPARE = 8
"""Rows asked of FAISS beyond top_k, so that ties at the cut are broken by row and not by chance."""


def open_retriever(path_or_url: str | Path) -> Retriever:
    """The retriever of an index folder. Raises ConfigError or DataError where folder and manifest do not agree.

    Files are checked before it returns; the encoder's weights load meanwhile in the worker thread (a few seconds),
    and the first search waits for them.
    """
    if str(path_or_url).startswith(("http://", "https://")):
        raise ConfigError(f"{path_or_url}: retrievers over HTTP come later; give the path of an index folder")
    folder = existing(path_or_url, "index folder")
    manifest = read_index_manifest(folder)
    check_files(folder, manifest)
    index, store = open_index(folder, manifest), PassageStore(folder)
    try:
        _check_agreement(folder, manifest, index, store)
        load_encoder = _encoder_loader(manifest)
    except StepragError:
        store.close()
        raise
    return FolderRetriever(manifest.fingerprint, index, store, load_encoder)


def _encoder_loader(manifest: IndexManifest) -> Callable[[], TextEncoder]:
    """What loads the encoder, after its files are found to be those that the index was built with."""
    return partial(Encoder, encoder_here(manifest.encoder, manifest.config), manifest.encoder, threads=THREADS)


@dataclass(frozen=True)
class _Asked:
    query: str
    top_k: int
    waiter: asyncio.Future[tuple[Passage, ...]]


class FolderRetriever:
    """Searches an index folder. For one event loop at a time."""

    def __init__(
        self, fingerprint: str, index: VectorIndex, store: PassageStore, load_encoder: Callable[[], TextEncoder]
    ) -> None:
        self._fingerprint, self._index, self._store = fingerprint, index, store
        self._waiting: list[_Asked] = []
        self._pump: asyncio.Task[None] | None = None
        self._cache: OrderedDict[tuple[str, int], tuple[Passage, ...]] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="retriever")
        self._encoder: Future[TextEncoder] = self._worker.submit(_limited, load_encoder)
        self._closed = False

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """At most `top_k` passages, best first; equal scores in the order of the corpus. Raises RetrieverError."""
        text = " ".join(query.split())
        if self._closed:
            raise RetrieverError("the retriever is closed")
        if not text:
            raise RetrieverError("the query is empty")
        if top_k < 1:
            raise RetrieverError(f"top_k is {top_k}; at least 1 passage must be asked for")
        if (found := self._cache.get((text, top_k))) is not None:
            self._cache.move_to_end((text, top_k))
            return found
        loop = asyncio.get_running_loop()
        asked = _Asked(text, top_k, loop.create_future())
        self._waiting.append(asked)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._drain())
        return await asked.waiter

    async def close(self) -> None:
        """Waits for the batch that runs, then releases thread and files. Searches that still wait are cancelled."""
        if self._closed:
            return
        self._closed = True
        for asked in self._waiting:
            asked.waiter.cancel()
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])
        self._worker.submit(self._store.close)  # behind a batch that was abandoned, if one still runs
        self._worker.shutdown(wait=False)

    async def _drain(self) -> None:
        """Answers batch after batch until nothing waits."""
        batch: list[_Asked] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                batch = [asked for asked in batch if not asked.waiter.done()]
                if batch:
                    await self._answer(batch)
        finally:  # reached with open waiters only where the loop is going down
            for asked in batch + self._waiting:
                asked.waiter.cancel()
            self._waiting = []

    async def _answer(self, batch: Sequence[_Asked]) -> None:
        """Runs one batch in the worker thread and hands every waiter its passages, or what went wrong."""
        wanted = list(dict.fromkeys((asked.query, asked.top_k) for asked in batch))
        work = asyncio.get_running_loop().run_in_executor(self._worker, self._search_batch, wanted)
        await asyncio.wait([work])
        error = work.exception()
        if error is None:
            self._remember(work.result())
        for asked in batch:
            if asked.waiter.done():
                continue
            if error is None:
                asked.waiter.set_result(work.result()[asked.query, asked.top_k])
            else:
                asked.waiter.set_exception(_failure(error))

    def _remember(self, found: dict[tuple[str, int], tuple[Passage, ...]]) -> None:
        self._cache.update(found)
        while len(self._cache) > CACHED:
            self._cache.popitem(last=False)

    def _search_batch(self, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[Passage, ...]]:
        """Worker thread: one call of the encoder, one of FAISS, then the passages from disk."""
        texts = list(dict.fromkeys(query for query, _ in wanted))
        vectors = self._encoder.result().encode_queries(texts)
        depth = min(max(top_k for _, top_k in wanted) + SPARE, len(self._store))
        scores, rows = self._index.search(vectors, depth)
        ranked = {text: _ranked(scores[i], rows[i]) for i, text in enumerate(texts)}
        return {
            (query, top_k): tuple(self._store.read(row, score) for row, score in ranked[query][:top_k])
            for query, top_k in wanted
        }


def _failure(error: BaseException) -> RetrieverError:
    words = str(error).strip().splitlines()[:1] or [type(error).__name__]
    failure = RetrieverError(f"search failed: {words[0]}")
    failure.__cause__ = error
    return failure


def _limited(load_encoder: Callable[[], TextEncoder]) -> TextEncoder:
    """Worker thread: bounds the threads of FAISS (OpenMP counts by calling thread), then loads the encoder."""
    import faiss

    faiss.omp_set_num_threads(THREADS)
    return load_encoder()


def _ranked(scores: np.ndarray, rows: np.ndarray) -> list[tuple[int, float]]:
    """(row, rounded score), best first, equal scores by row; FAISS's filler id -1 left out."""
    pairs = [(int(row), round(float(score), DECIMALS)) for row, score in zip(rows, scores, strict=True) if row >= 0]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def _check_agreement(folder: Path, manifest: IndexManifest, index: VectorIndex, store: PassageStore) -> None:
    rows = manifest.corpus.rows
    if not index.ntotal == len(store) == rows:
        problem = f"{index.ntotal} vectors, {len(store)} passages, and the manifest says {rows}"
        raise DataError(folder, problem, remedy="build the index again")
    passages_sha256 = manifest.files[PASSAGES].sha256
    if fingerprint(manifest.encoder, manifest.index, passages_sha256) != manifest.fingerprint:
        remedy = "build the index again"
        raise DataError(folder / "manifest.json", "was changed: its fingerprint does not fit", remedy=remedy)
