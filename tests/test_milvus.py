"""An index in a Milvus server: a real one is started, Milvus Lite's, which speaks Milvus' protocol."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.commands import main
from indexes.commands import upload as uploading
from indexes.commands.build import build_index
from indexes.encoding.encoders import Overrides, find_encoder, read_spec
from indexes.folder.sealing import Built
from indexes.open import open_retriever
from indexes.retrieval.milvus import CollectionFacts, CollectionIndex, FoundPassages, MilvusAddress, address_of
from steprag.config.sections import RetrieverConfig
from steprag.engines.launch import free_port
from steprag.errors import ConfigError, RetrieverError
from steprag.types import Passage
from tests.indexing import ask, fingerprint, small, write_corpus

needs_milvus = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("pymilvus", "milvus_lite")),
    reason="no Milvus server: pip install -e '.[milvus]' milvus-lite",
)
ROWS = 2500
QUERIES = [f"thing {n} is next to number {n % 7}" for n in range(40)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a server of this module's own."""
    port = free_port("127.0.0.1")
    command = [sys.executable, "-m", "milvus_lite.cmdline", "server", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([*command, "--data-dir", str(tmp_path_factory.mktemp("milvus"))])
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()  # it does not heed SIGTERM while a client is connected
        process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A flat index."""
    room = tmp_path_factory.mktemp("flat")
    rows = [(f"p{n}", f"Thing {n}", f"Thing {n} is next to " * (n % 5 + 1) + str(n)) for n in range(ROWS)]
    return build_index(str(write_corpus(room / "c.jsonl", rows)), room / "index", small(encoder)).path


def found(index: str | Path, top_k: int = 10) -> list[tuple[Passage, ...]]:
    """What all queries find, asked at once."""
    return ask(index, *QUERIES, top_k=top_k)


def recall(url: str, folder: Path) -> float:
    """Share of what a collection finds whose score reaches that of the folder's tenth passage, but for rounding: the
    encoder's weights are random, and many passages tie.
    """
    pairs = list(zip(found(url), found(folder), strict=True))
    hits = [(p.score or 0) >= (exact[-1].score or 0) - 3e-4 for here, exact in pairs for p in here]
    return sum(hits) / (10 * len(pairs))


@needs_milvus
@pytest.mark.slow
def test_a_collection_finds_what_its_flat_folder_finds(
    server: str, folder: Path, minilm: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a server on this machine is never asked through one
    url, real = f"milvus://{server}/whole", f"milvus://{server}/real"
    assert main(["index", "upload", "--index", str(folder), "--to", url]) == 0
    assert recall(url, folder) == 1.0
    uploading.upload(minilm.path, real)
    assert found(real) == found(minilm.path)
    assert fingerprint(url) == fingerprint(folder)
    assert main(["index", "upload", "--index", str(folder), "--to", url]) == 0  # nothing is left to do
    graph = f"milvus://{server}/graph"
    assert main(["index", "upload", "--index", str(folder), "--to", graph, "--type", "hnsw"]) == 0
    assert recall(graph, folder) >= 0.9
    assert fingerprint(graph) != fingerprint(folder)


class Answers:
    """In place of pymilvus' client: finds the same whatever is asked."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def search(self, *_: object, **__: object) -> list[Any]:
        return self.found


HIT = {"distance": 0.5, "entity": {"row": 7, "id": "7", "title": "Lima", "text": "In Peru."}}


@needs_milvus
@pytest.mark.parametrize("reply", [
    [[HIT]], [[HIT], [HIT], [HIT]], [[HIT], None], [[HIT], [{**HIT, "distance": float("nan")}]],
    [[HIT], [{"distance": 0.5, "entity": {"row": 7}}]], [[HIT], [{**HIT, "distance": None}]],
])  # fmt: skip
def test_an_incomplete_reply_of_milvus_fails_the_search(reply: list[Any]) -> None:
    client, place = Answers(reply), MilvusAddress("http://127.0.0.1:1", "wiki")
    facts = CollectionFacts("f", 9, read_spec("minilm", find_encoder("minilm"), Overrides()), {}, "FLAT")
    index = CollectionIndex(client, place, facts, FoundPassages(client, place, 9))
    with pytest.raises(RetrieverError, match="incomplete reply"):
        index.search(np.zeros((2, 4), np.float32), 3)


@needs_milvus
@pytest.mark.slow
def test_an_upload_that_was_cut_short_goes_on(
    server: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, told, calls = f"milvus://{server}/cut", uploading.told, count(1)

    def cut(address: MilvusAddress) -> object:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return told(address)

    with monkeypatch.context() as patch:
        patch.setattr(uploading, "told", cut)
        with pytest.raises(KeyboardInterrupt):
            uploading.upload(folder, url)
    with pytest.raises(ConfigError, match=rf"holds 2000 of {ROWS} passages; run steprag index upload again"):
        open_retriever(url)
    assert uploading.upload(folder, url) == ROWS
    assert f"2000 of {ROWS} passages are there already" in capsys.readouterr().err
    assert recall(url, folder) == 1.0


@needs_milvus
@pytest.mark.slow
def test_what_does_not_go_together_is_one_line(server: str, folder: Path, encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no collection nothing; steprag index upload makes it"):
        open_retriever(f"milvus://{server}/nothing")
    with pytest.raises(ConfigError, match="leave retriever.mode at auto"):
        open_retriever(f"milvus://{server}/nothing", RetrieverConfig(mode="sparse"))
    with pytest.raises(ConfigError, match=r"no Milvus answers at http://127.0.0.1:1"):
        open_retriever("milvus://127.0.0.1:1/nothing", RetrieverConfig(timeout=2))
    url = f"milvus://{server}/other"
    rows = [("a", "A", "first"), ("b", "B", "second")]
    other = build_index(str(write_corpus(tmp_path / "o.jsonl", rows)), tmp_path / "other", small(encoder)).path
    assert uploading.upload(other, url) == 2
    assert [p.id for p in found(url, 5)[0]] == [p.id for p in found(other, 5)[0]], "the row of facts was found"
    with pytest.raises(ConfigError, match="holds another index"):
        uploading.upload(folder, url)


@needs_milvus
@pytest.mark.slow
def test_a_collection_that_goes_away_is_a_failure_of_the_search(server: str, folder: Path) -> None:
    from pymilvus import MilvusClient  # pyright: ignore[reportMissingImports]

    url = f"milvus://{server}/gone"
    uploading.upload(folder, url)

    async def ask() -> None:
        async with aclosing(open_retriever(url)) as retriever:
            client = MilvusClient(uri=f"http://{server}")
            client.drop_collection("gone")
            client.close()
            with pytest.raises(RetrieverError, match="gone: "):
                await retriever.search("thing", 3)

    asyncio.run(ask())


@pytest.mark.parametrize("url", ["milvus://host/name", "milvus://host:1", "milvus://host:1/a-b", "milvus://host:1/a/b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    assert address_of("milvus+tls://db.example:443/w") == MilvusAddress("https://db.example:443", "w")
    with pytest.raises(ConfigError, match="expected milvus://HOST:PORT/COLLECTION"):
        open_retriever(url)
