"""How searches share the worker thread."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest

from indexes.folder.sealing import Built
from indexes.ranking.searchers import DenseSearcher
from indexes.retrieval import folder_retriever
from indexes.retrieval.folder_retriever import MAX_BATCH, FolderRetriever
from indexes.rows.passage_store import PassageStore, write_passages
from steprag.errors import RetrieverError
from steprag.types import Passage
from tests.indexing import ask


class Letters:
    """An encoder by hand: a text is its counts of letters. Notes every batch; can be slow, and can fail."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.started = threading.Event()
        self.seconds = seconds

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(list(texts))
        self.threads.add(threading.current_thread().name)
        self.started.set()
        time.sleep(self.seconds)
        if "fail" in texts:
            raise ValueError("the encoder broke\nand says more")
        return letter_vectors(texts)


def letter_vectors(texts: Sequence[str]) -> np.ndarray:
    counts = np.array([[text.count(chr(c)) for c in range(97, 123)] for text in texts], dtype=np.float32) + 0.01
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def lettered(folder: Path, encoder: Letters | Callable[[], Letters], texts: Sequence[str]) -> FolderRetriever:
    write_passages(folder, [Passage(str(row), "", text) for row, text in enumerate(texts)])
    index = faiss.IndexFlatIP(26)
    index.add(letter_vectors(texts))  # pyright: ignore[reportCallIssue]
    load = (lambda: encoder) if isinstance(encoder, Letters) else encoder
    return FolderRetriever(DenseSearcher("f", index, load), PassageStore(folder))


WORDS = ["apple", "banana", "cherry", "fig", "grape", "kiwi", "lemon", "mango", "quince", "zebra"]


def test_concurrent_searches_share_batches(tmp_path: Path) -> None:
    encoder = Letters()
    retriever = lettered(tmp_path, encoder, WORDS)
    queries = [f"{word} {'x' * n}" for n in range(4) for word in WORDS][:32]

    async def run() -> list[tuple[Passage, ...]]:
        first = await asyncio.gather(*(retriever.search(query, 2) for query in queries))
        assert first == await asyncio.gather(*(retriever.search(query, 2) for query in queries))
        return first

    found = asyncio.run(run())
    assert [len(batch) for batch in encoder.batches] == [32]  # one call for all, none for what is cached
    assert len(encoder.threads) == 1
    assert [passages[0].text for passages in found[:10]] == WORDS


def test_queries_collect_while_a_batch_runs(tmp_path: Path) -> None:
    encoder = Letters(seconds=0.1)
    retriever = lettered(tmp_path, encoder, WORDS)

    async def run() -> None:
        first = asyncio.create_task(retriever.search("apple", 1))
        await asyncio.to_thread(encoder.started.wait)
        await asyncio.gather(first, *(retriever.search(f"q{'z' * n}", 1) for n in range(MAX_BATCH + 6)))

    asyncio.run(run())
    assert [len(batch) for batch in encoder.batches] == [1, MAX_BATCH, 6]


def test_a_query_that_is_being_searched_is_not_searched_again(tmp_path: Path) -> None:
    encoder = Letters(seconds=0.1)
    retriever = lettered(tmp_path, encoder, WORDS)

    async def run() -> list[str]:
        first = asyncio.create_task(retriever.search("fig", 1))
        await asyncio.to_thread(encoder.started.wait)
        gone = asyncio.create_task(retriever.search(" fig ", 1))
        others = [asyncio.create_task(retriever.search(word, 1)) for word in ("fig", "kiwi", "kiwi")]
        await asyncio.sleep(0)
        first.cancel()  # the search goes on for the others
        gone.cancel()
        return [(await one)[0].text for one in others]

    assert asyncio.run(run()) == ["fig", "kiwi", "kiwi"]
    assert encoder.batches == [["fig"], ["kiwi"]]
    assert retriever.counts.searches == 5


def test_a_cancelled_waiter_takes_nothing_from_the_others(tmp_path: Path) -> None:
    encoder = Letters(seconds=0.1)
    retriever = lettered(tmp_path, encoder, WORDS)

    async def run() -> tuple[Passage, ...]:
        gone, stays = (asyncio.create_task(retriever.search(word, 1)) for word in ("fig", "kiwi"))
        await asyncio.to_thread(encoder.started.wait)
        gone.cancel()
        return await stays

    assert asyncio.run(run())[0].text == "kiwi"


def test_a_failed_batch_reaches_every_waiter_and_the_next_goes_on(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(), WORDS)

    async def run() -> list[object]:
        failed = await asyncio.gather(*(retriever.search(q, 1) for q in ("fig", "fail")), return_exceptions=True)
        return [*failed, (await retriever.search("fig", 1))[0].text]

    one, other, after = asyncio.run(run())
    for error in (one, other):  # as it was raised: no query is to blame, and a run ends on it
        assert type(error) is ValueError
        assert str(error).startswith("the encoder broke")
        assert any(frame.name == "encode_queries" for frame in traceback.extract_tb(error.__traceback__))
    assert one is not other, "each waiter raises its error: one object would show the other's traceback"
    assert after == "fig"


def test_an_encoder_that_does_not_load_is_told_before_the_search(tmp_path: Path) -> None:
    def broken() -> Letters:
        raise OSError("weights unreadable")

    retriever = lettered(tmp_path, broken, WORDS)
    with pytest.raises(OSError, match="weights unreadable"):
        asyncio.run(retriever.ready())
    with pytest.raises(OSError, match="weights unreadable"):
        asyncio.run(retriever.search("fig", 1))


def test_queries_that_are_refused(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(), WORDS)
    with pytest.raises(RetrieverError, match="empty"):
        asyncio.run(retriever.search("  \n", 3))
    with pytest.raises(RetrieverError, match="top_k is 0"):
        asyncio.run(retriever.search("fig", 0))
    asyncio.run(retriever.aclose())
    asyncio.run(retriever.aclose())
    with pytest.raises(RetrieverError, match="closed"):
        asyncio.run(retriever.search("fig", 3))


def test_memory_is_bounded_by_its_passages_and_serves_one_loop_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_retriever, "REMEMBERED", 6)
    retriever = lettered(tmp_path, Letters(), WORDS)

    async def remembered(*asked: tuple[str, int]) -> int:
        before = retriever.counts.remembered
        for query, top_k in asked:
            await retriever.search(query, top_k)
        return retriever.counts.remembered - before

    assert asyncio.run(remembered(("fig", 3), ("kiwi", 3), ("fig", 3))) == 1
    assert asyncio.run(remembered(("lemon", 2), ("fig", 3), ("kiwi", 3))) == 1  # the least recently used went
    assert asyncio.run(remembered(("mango", 9), ("mango", 9), ("fig", 3))) == 1  # more than there is room for


def test_a_loop_that_ends_in_the_middle_of_a_search_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    encoder = Letters(seconds=0.5)
    retriever = lettered(tmp_path, encoder, WORDS)

    async def given_up() -> None:
        searching = asyncio.create_task(retriever.search("fig", 1))
        assert await asyncio.to_thread(encoder.started.wait, 20)
        assert not searching.done()  # the end of the loop cancels it

    async def asked() -> list[str]:
        found = await asyncio.wait_for(asyncio.gather(*(retriever.search(word, 1) for word in ("fig", "kiwi"))), 20)
        await retriever.aclose()
        return [passages[0].text for passages in found]

    asyncio.run(given_up())
    assert asyncio.run(asked()) == ["fig", "kiwi"]


def test_ties_are_broken_by_row(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(), ["kiwi", "fig", "fig", "gif", "fig"])
    assert [p.id for p in asyncio.run(retriever.search("fig", 2))] == ["1", "2"]
    assert [p.id for p in asyncio.run(retriever.search("fig", 4))] == ["1", "2", "3", "4"]


def test_the_same_alone_and_in_a_batch(minilm: Built) -> None:
    queries = ["iron", "How many strings does a violin have, and how are they tuned?", "a dried-up sea", "album Berlin"]
    together = ask(minilm.path, *queries)
    for query, batched in zip(queries, together, strict=True):
        (alone,) = ask(minilm.path, query)
        assert [p.id for p in alone] == [p.id for p in batched]
        assert [p.score for p in alone] == pytest.approx([p.score for p in batched], abs=2e-4)


def test_nothing_loads_after_the_close(tmp_path: Path) -> None:
    """What still loaded when a command had ended would meet the models that the next one loads."""
    loaded: list[str] = []

    def load() -> Letters:
        time.sleep(0.2)
        loaded.append("weights")
        return Letters()

    asyncio.run(lettered(tmp_path, load, WORDS).aclose())
    assert loaded == ["weights"]
