"""Searches of one process in an index folder, or in a database's copy of one.

Searches that are awaited at the same time become one batch: while a batch is in the worker thread, new queries
collect, and the next batch takes them all. The event loop only ever waits.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from cachetools import LRUCache

from indexes.ranking.rankings import RowSearcher, SearchKey, TextEncoder, search_key
from steprag.agent.retriever import Documented
from steprag.errors import RetrieverError, own_copy
from steprag.types import Passage

MAX_BATCH = 64
REMEMBERED = 20_000
"""Passages of earlier searches that are kept in memory (some 20 MB of 100 words each); the least recently used go
first.
"""


def search_cache() -> LRUCache[SearchKey, tuple[Passage, ...]]:
    """An empty memory of searches, bounded by their passages."""
    return LRUCache(REMEMBERED, lambda found: min(max(1, len(found)), REMEMBERED))


class RowPassages(Protocol):
    """Passages by row (`PassageStore`, or a database). Used by one thread at a time."""

    def __len__(self) -> int: ...

    def read(self, row: int, score: float | None = None) -> Passage:
        """The passage of a row, with the score that a search gave it."""
        ...

    def close(self) -> None:
        """Lets go of files and connections."""
        ...


@dataclass
class Counts:
    """What a retriever has done: `remembered` of the `searches` needed no batch, `batched` went in `batches`."""

    searches: int = 0
    remembered: int = 0
    batches: int = 0
    batched: int = 0


_Answers = dict[SearchKey, tuple[Passage, ...]]
_Waiters = list["asyncio.Future[tuple[Passage, ...]]"]
"""Those that wait for one search."""


class FolderRetriever:
    """Searches an index folder. For one event loop at a time."""

    def __init__(
        self,
        searcher: RowSearcher,
        store: RowPassages,
        *,
        batch: int = MAX_BATCH,
        preload: bool = True,
        originals: Documented | None = None,
        encoder: Callable[[], TextEncoder] | None = None,
    ) -> None:
        """Starts to load the weights, unless `preload` is off. A batch has at most `batch` queries. `encoder`: what
        compares texts; the worker thread loads it.
        """
        self._searcher, self._store, self._batch, self._originals = searcher, store, batch, originals
        self._encoder = encoder
        self.counts = Counts()
        self._batch_seconds = 0.0
        self._waiting: dict[SearchKey, _Waiters] = {}
        self._running: dict[SearchKey, _Waiters] = {}
        """The batch in the worker thread: who asks for the same meanwhile waits too."""
        self._work: Future[_Answers] | None = None
        """That batch, or the one that was last there."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cache = search_cache()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="retriever")
        self._loading: Future[None] | None = self._worker.submit(searcher.load) if preload else None
        self._closed = False

    @property
    def _loaded(self) -> Future[None]:
        """The loading of the weights, begun where it was not yet."""
        if self._loading is None:
            self._loading = self._worker.submit(self._searcher.load)
        return self._loading

    @property
    def fingerprint(self) -> str:
        """16 hex digits of the index and of how it is searched: part of a run's identity."""
        return self._searcher.fingerprint

    @property
    def state(self) -> str:
        """loading, healthy, or failed: what became of the weights."""
        if not self._loaded.done():
            return "loading"
        return "healthy" if self._loaded.exception() is None else "failed"

    def delay(self, waiting: int) -> float:
        """Seconds until so many queries are through, by what batches took lately; nothing for less than a batch."""
        return waiting // self._batch * self._batch_seconds

    async def ready(self) -> None:
        """Waits until the weights are loaded; raises what went wrong where they cannot be."""
        await self.load_finished()
        self._loaded.result()

    async def load_finished(self) -> None:
        """Waits until the weights are loaded, or failed to."""
        if not self._loaded.done():
            await asyncio.wait([asyncio.wrap_future(self._loaded)])

    @property
    def passages(self) -> int:
        """How many passages the index holds."""
        return len(self._store)

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """At most `top_k` passages, best first; equal scores in the order of the corpus.

        Raises RetrieverError for a query that cannot be searched (`search_key`) and where the retriever is closed.
        Anything else, such as weights that do not load or a damaged store, is no query's fault and raised as it is.
        """
        if self._closed:
            raise RetrieverError("the retriever is closed")
        asked = search_key(query, top_k)
        self.counts.searches += 1
        if (found := self._cache.get(asked)) is not None:
            self.counts.remembered += 1
            return found
        if (loop := asyncio.get_running_loop()) is not self._loop:  # what an ended loop left has nobody who waits
            self._loop, self._waiting, self._running = loop, {}, {}
        if not self._waiting and not self._running:
            loop.call_soon(self._begin)  # whoever asks in the same turn of the loop is in the same batch
        waiter = loop.create_future()
        (self._running.get(asked) or self._waiting.setdefault(asked, [])).append(waiter)
        return await waiter

    async def alike(self, queries: Sequence[str], texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """As `steprag.agent.retriever.Similar`."""
        if self._encoder is None:
            return [[0.0] * len(texts)] * len(queries)
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._compare, queries, texts)

    def _compare(self, queries: Sequence[str], texts: Sequence[str]) -> Sequence[Sequence[float]]:
        assert self._encoder is not None
        encoder = self._encoder()
        asked, read = encoder.encode_queries(queries), encoder.encode_passages(texts)
        lengths = np.linalg.norm(asked, axis=1)[:, None] * np.linalg.norm(read, axis=1)
        return (asked @ read.T / np.maximum(lengths, 1e-9)).tolist()

    def document(self, passage_id: str, *, checked: bool = False) -> Path | None:
        """As `steprag.agent.retriever.Documented`."""
        return self._originals.document(passage_id, checked=checked) if self._originals else None

    async def aclose(self) -> None:
        """Waits for the batch that runs and for weights that load, then releases thread and files.

        Searches that still wait are cancelled.
        """
        if self._closed:
            return
        self._closed = True
        for waiter in itertools.chain.from_iterable(self._waiting.values()):
            waiter.cancel()
        if self._loading is not None and not self._loading.cancel():
            await self.load_finished()
        if self._work is not None and not self._work.done():
            await asyncio.wait([asyncio.wrap_future(self._work)])
        self._worker.submit(self._store.close)  # behind a batch that was abandoned, if one still runs
        self._worker.shutdown(wait=False)

    def _begin(self) -> None:
        """Gives the next batch to the worker thread, without the queries whose askers gave up."""
        while self._waiting and not self._running:
            taken = dict(itertools.islice(self._waiting.items(), self._batch))
            self._waiting = {asked: waiters for asked, waiters in self._waiting.items() if asked not in taken}
            self._running = {asked: them for asked, them in taken.items() if not all(one.done() for one in them)}
        if self._running:
            self.counts.batches += 1
            self.counts.batched += len(self._running)
            self._work = self._worker.submit(self._search_batch, self._loaded, list(self._running))
            self._work.add_done_callback(partial(_tell, asyncio.get_running_loop(), self._answer))

    def _answer(self, work: Future[_Answers]) -> None:
        """Hands every waiter its passages, or what went wrong; then begins the next batch."""
        error, answered = work.exception(), self._running
        self._running = {}
        if error is None:
            self._cache.update(work.result())
        for asked, waiters in answered.items():
            for waiter in waiters:
                if waiter.done():
                    continue
                if error is None:
                    waiter.set_result(work.result()[asked])
                else:
                    waiter.set_exception(own_copy(error))
        self._begin()

    def _search_batch(self, loaded: Future[None], wanted: Sequence[SearchKey]) -> _Answers:
        """Worker thread: the rows of all queries, then their passages."""
        loaded.result()  # raises what went wrong while loading
        start = time.monotonic()
        found = zip(wanted, self._searcher.search(wanted), strict=True)
        answers = {asked: tuple(self._store.read(row, score) for row, score in rows) for asked, rows in found}
        taken = time.monotonic() - start
        self._batch_seconds = 0.7 * self._batch_seconds + 0.3 * taken if self._batch_seconds else taken
        return answers


def _tell(loop: asyncio.AbstractEventLoop, heard: Callable[[Future[_Answers]], None], work: Future[_Answers]) -> None:
    """Calls `heard` in the loop's thread, unless that loop has ended: then nobody waits."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(heard, work)
