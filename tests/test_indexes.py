"""Indexes: corpus to folder to passages, what is refused, and how searches share the worker thread."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import indexes.build
import indexes.search
from indexes import open_retriever
from indexes.build import Built, IndexConfig, build_index, measure
from indexes.corpus import PassageStore, read_corpus, write_passages
from indexes.encoders import Encoder, Overrides, find_encoder, read_spec
from indexes.folder_retriever import MAX_BATCH, FolderRetriever
from indexes.searchers import DenseSearcher, VectorIndex
from steprag.cli import guarded
from steprag.config import load_config
from steprag.errors import ConfigError, DataError, RetrieverError, StepragError
from steprag.types import Passage
from tests.models import make_encoder

PASSAGES = [
    ("sea", "Aral Sea", "The Aral Sea lay between Kazakhstan and Uzbekistan and has largely dried up."),
    ("violin", "Violin", "The violin has four strings, tuned in fifths, and is played with a bow."),
    ("iron", "Iron", "Iron is a chemical element with the symbol Fe and atomic number 26."),
    ("kepler", "Johannes Kepler", "Kepler, born in Weil der Stadt, found the laws of planetary motion."),
    ("bread", "Sourdough", "Sourdough bread rises by wild yeast and lactic acid bacteria."),
    ("quoted", '"Heroes"', "“Heroes” is a studio album by David Bowie, recorded in Berlin. 日本語"),
]


def write_corpus(path: Path, passages: Sequence[tuple[str, str, str]] = PASSAGES) -> Path:
    rows = [json.dumps({"id": i, "title": title, "text": text}) for i, title, text in passages]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"), seed=0)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("minilm")
    return build_index(str(write_corpus(folder / "corpus.jsonl")), folder / "index", load_config(IndexConfig))


@pytest.fixture(scope="module")
def pristine(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index by the small encoder; tests that break one copy it."""
    folder = tmp_path_factory.mktemp("small")
    return build_index(str(write_corpus(folder / "corpus.jsonl")), folder / "index", small(encoder)).path


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "index")


def small(encoder: Path, **values: object) -> IndexConfig:
    return load_config(IndexConfig, None, {"encoder": str(encoder), **values})


def ask(path: Path, *queries: str, top_k: int = 3) -> list[tuple[Passage, ...]]:
    return asyncio.run(indexes.search.search_all(open_retriever(path), queries, top_k))


def edit_manifest(folder: Path, *keys: str, value: object) -> None:
    path = folder / "manifest.json"
    manifest = row = json.loads(path.read_text(encoding="utf-8"))
    for key in keys[:-1]:
        row = row[key]
    row[keys[-1]] = value
    path.write_text(json.dumps(manifest), encoding="utf-8")


# --- build and search -----------------------------------------------------------------------------------------------


def test_search_finds_the_right_passage_with_minilm(minilm: Built) -> None:
    metal, instrument = ask(minilm.path, "Which metal has the symbol Fe?", "How many strings does a fiddle have?")
    assert metal[0].id == "iron"
    assert instrument[0].id == "violin"
    assert len(metal) == 3
    scores = [passage.score or 0.0 for passage in metal]
    assert scores == sorted(scores, reverse=True)
    assert all(-1 <= score <= 1 for score in scores)


def test_passages_come_back_as_they_were(minilm: Built) -> None:
    (found,) = ask(minilm.path, "an album by David Bowie", top_k=50)
    assert len(found) == len(PASSAGES)
    source = {passage.id: passage for passage in read_corpus(Path(minilm.manifest.corpus.path))}
    assert all((p.title, p.text) == (source[p.id].title, source[p.id].text) for p in found)
    assert source["quoted"].title == "Heroes"


def test_manifest_keeps_the_contract(minilm: Built) -> None:
    manifest = json.loads((minilm.path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["encoder"]["name"] == "minilm"
    assert manifest["encoder"]["pooling"] == "mean"
    assert manifest["encoder"]["dimension"] == 384
    assert manifest["encoder"]["max_length"] == 256
    assert manifest["metric"] == "inner_product"
    assert manifest["corpus"]["rows"] == len(PASSAGES)
    assert manifest["index"] == {"type": "flat", "parameters": {}}
    assert manifest["measured"]["recall_at_10"] == 1.0
    assert set(manifest["files"]) == {"index.faiss", "passages.jsonl", "passages.offsets.npy"}
    assert manifest["status"] == "done"
    assert {p.name for p in minilm.path.iterdir()} == {*manifest["files"], "manifest.json"}


def test_commands(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, out = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    argv = ["--corpus", str(corpus), "--out", str(out), "--encoder", str(encoder), "--json"]
    assert guarded(indexes.build.main, argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passages"], report["reused"], report["dimension"]) == (len(PASSAGES), False, 16)
    assert guarded(indexes.build.main, argv) == 0
    assert json.loads(capsys.readouterr().out)["reused"] is True
    assert guarded(indexes.search.main, ["--index", str(out), "iron", "bread", "--top_k", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["query"] for row in rows] == ["iron", "bread"]
    assert [len(row["passages"]) for row in rows] == [2, 2]
    assert guarded(indexes.search.main, ["--index", str(out), "iron"]) == 0
    assert capsys.readouterr().out.startswith("# iron\n1. ")


# --- what may stand at --out ----------------------------------------------------------------------------------------


def test_rebuild_reuses_and_touches_nothing(index: Path, encoder: Path, tmp_path: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in index.iterdir()}
    again = build_index(str(write_corpus(tmp_path / "elsewhere.jsonl")), index, small(encoder))
    assert again.reused
    assert {path.name: path.stat().st_mtime_ns for path in index.iterdir()} == before


def test_another_encoder_or_corpus_is_refused(index: Path, encoder: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    with pytest.raises(ConfigError, match="another encoder"):
        build_index(str(corpus), index, small(make_encoder(tmp_path / "other", seed=1)))
    with pytest.raises(ConfigError, match="another encoder"):
        build_index(str(corpus), index, small(encoder, passage_prefix="passage: "))
    with pytest.raises(ConfigError, match="another corpus"):
        build_index(str(write_corpus(corpus, PASSAGES[:3])), index, small(encoder))


def test_a_folder_with_other_things_is_refused(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ConfigError, match="no index folder"):
        build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "mine", small(encoder))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_interrupted_build_leaves_nothing(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    corpus, out = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    with monkeypatch.context() as patch:
        patch.setattr(indexes.build, "write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_index(str(corpus), out, small(encoder))
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]
    killed = tmp_path / ".i.building"
    killed.mkdir()
    (killed / "index.faiss").write_bytes(b"half")
    assert not build_index(str(corpus), out, small(encoder)).reused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "i"]


def test_two_builds_of_one_folder(encoder: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / ".i.building").mkdir()
    with FileLock(tmp_path / ".i.building" / ".lock"), pytest.raises(ConfigError, match="another process"):
        build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", small(encoder))


# --- bad corpora ----------------------------------------------------------------------------------------------------

GOOD = '{"id": "a", "contents": "Title\\nText."}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no passages"),
        ("\n\n", "holds no passages"),
        (f"{GOOD}\n{{nonsense\n", ":2: not JSON"),
        (f"{GOOD}\n\n[1]\n", ':3: a passage needs an "id"'),
        (f'{GOOD}\n{{"id": "b"}}\n', ':2: a passage needs "contents"'),
        (f'{GOOD}\n{{"id": "b", "contents": "title alone"}}\n', ":2: passage 'b' has no text"),
        (f"{GOOD}\n{GOOD}\n", ":2: id 'a' stands in line 1 already"),
    ],
)
def test_bad_corpus(
    content: str, message: str, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(content, encoding="utf-8")
    argv = ["--corpus", str(corpus), "--out", str(tmp_path / "i"), "--encoder", str(encoder)]
    assert guarded(indexes.build.main, argv) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def test_bytes_that_are_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "a", "title": "caf\xe9", "text": "x"}\n')
    with pytest.raises(DataError, match="not UTF-8"):
        read_corpus(tmp_path / "latin.jsonl")
    whole = gzip.compress((GOOD + "\n").encode() * 1)
    (tmp_path / "whole.jsonl.gz").write_bytes(whole)
    assert read_corpus(tmp_path / "whole.jsonl.gz") == [Passage("a", "Title", "Text.")]
    (tmp_path / "torn.jsonl.gz").write_bytes(whole[:-10])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_corpus(tmp_path / "torn.jsonl.gz")
    with pytest.raises(DataError, match="is a folder"):
        build_index(str(tmp_path), tmp_path / "i", load_config(IndexConfig))
    with pytest.raises(ConfigError, match="corpus not found"):
        build_index(str(tmp_path / "nowhere.jsonl"), tmp_path / "i", load_config(IndexConfig))


# --- encoders -------------------------------------------------------------------------------------------------------


def test_spec_is_read_from_the_models_files(encoder: Path) -> None:
    spec = read_spec(str(encoder), encoder, Overrides())
    assert (spec.pooling, spec.dimension, spec.max_length) == ("cls", 16, 64)
    assert (spec.query_prefix, spec.passage_prefix) == ("find: ", "")
    assert read_spec(str(encoder), encoder, Overrides(32, "", "p: ")).passage_prefix == "p: "


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("bge-base-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("e5-base-v2", "query: ", "passage: "),
        ("some-other-model", "", ""),
    ],
)
def test_families_have_their_prefixes(name: str, query: str, passage: str, encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(encoder, tmp_path / name)
    (folder / "config_sentence_transformers.json").unlink()
    spec = read_spec(str(folder), folder, Overrides())
    assert (spec.query_prefix, spec.passage_prefix) == (query, passage)


def test_prefixes_reach_the_model(encoder: Path) -> None:
    plain = Encoder(encoder, read_spec("e", encoder, Overrides(query_prefix="", passage_prefix="")))
    prefixed = Encoder(encoder, read_spec("e", encoder, Overrides(query_prefix="q: ", passage_prefix="p: ")))
    assert np.allclose(prefixed.encode_queries(["iron"]), plain.encode_queries(["q: iron"]), atol=1e-6)
    assert np.allclose(prefixed.encode_passages(["iron"]), plain.encode_passages(["p: iron"]), atol=1e-6)
    assert not np.allclose(prefixed.encode_queries(["iron"]), plain.encode_queries(["iron"]), atol=1e-5)


def test_passages_keep_their_order_and_length_one(encoder: Path) -> None:
    model = Encoder(encoder, read_spec("e", encoder, Overrides()))
    texts = ["iron " * n for n in (1, 9, 3, 7, 2, 8)]
    seen: list[int] = []
    vectors = model.encode_passages(texts, batch_size=2, progress=seen.append)
    alone = np.concatenate([model.encode_passages([text]) for text in texts])
    assert np.allclose(vectors, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert (vectors.dtype, sum(seen)) == (np.float32, len(texts))


def test_encoders_that_are_refused(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nothing' not found; known: minilm"):
        find_encoder("nothing")
    with pytest.raises(ConfigError, match="no modules.json"):
        read_spec("x", tmp_path, Overrides())
    pickled = shutil.copytree(encoder, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="no safetensors"):
        read_spec("x", pickled, Overrides())
    foreign = shutil.copytree(encoder, tmp_path / "foreign")
    modules = json.loads((foreign / "modules.json").read_text())
    modules[0]["type"] = "custom_code.Model"
    (foreign / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="code of its own"):
        read_spec("x", foreign, Overrides())


# --- damaged folders ------------------------------------------------------------------------------------------------


def test_damaged_folders_are_refused(index: Path, pristine: Path, tmp_path: Path) -> None:
    def damaged(name: str, content: bytes) -> None:
        copy = shutil.copytree(pristine, tmp_path / "copy")
        (copy / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: .*build the index again"):
            open_retriever(copy)
        shutil.rmtree(copy)

    faiss_bytes = (index / "index.faiss").read_bytes()
    passages = (index / "passages.jsonl").read_bytes()
    damaged("index.faiss", faiss_bytes[:-7])
    damaged("index.faiss", faiss_bytes[:-1] + bytes([faiss_bytes[-1] ^ 1]))
    damaged("passages.jsonl", passages.replace(b"Uzbekistan", b"Tajikistan"))
    damaged("passages.offsets.npy", b"\x80\x04 a pickle")
    damaged("manifest.json", b"{")
    (index / "index.faiss").unlink()
    with pytest.raises(DataError, match="is missing"):
        open_retriever(index)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("encoder", "dimension"), 384, "has 16 dimensions, the manifest says 384"),
        (("corpus", "rows"), 7, "6 vectors, 6 passages, and the manifest says 7"),
        (("encoder", "query_prefix"), "", "its fingerprint does not fit"),
        (("encoder",), "minilm", "manifest.json:1: IndexManifest: encoder"),
        (("format",), 99, "format 99"),
        (("stage",), "generate", "not an index folder"),
    ],
)
def test_manifests_that_do_not_fit(keys: tuple[str, ...], value: object, message: str, index: Path) -> None:
    edit_manifest(index, *keys, value=value)
    with pytest.raises(StepragError, match=message) as caught:
        open_retriever(index)
    assert caught.value.exit_code == 2


def test_an_encoder_that_changed_is_refused(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "one", seed=0)
    index = build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", small(folder)).path
    shutil.copy(make_encoder(tmp_path / "two", seed=1) / "model.safetensors", folder)
    with pytest.raises(ConfigError, match="not the one that made the index .weight_hash"):
        open_retriever(index)


def test_paths_that_are_no_index(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="index folder not found"):
        open_retriever(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no index folder"):
        open_retriever(tmp_path)
    with pytest.raises(ConfigError, match="no retriever answers at http://127.0.0.1:9"):
        open_retriever("http://127.0.0.1:9")


def test_fingerprint_names_corpus_and_encoder(index: Path, encoder: Path, tmp_path: Path) -> None:
    def built(name: str, config: IndexConfig, passages: Sequence[tuple[str, str, str]] = PASSAGES) -> str:
        corpus = write_corpus(tmp_path / f"{name}.jsonl", passages)
        return build_index(str(corpus), tmp_path / name, config).manifest.fingerprint

    one = open_retriever(index).fingerprint
    assert built("same", small(encoder, batch_size=1)) == one
    others = [
        built("fewer", small(encoder), PASSAGES[:-1]),
        built("prefix", small(encoder, query_prefix="q: ")),
        built("weights", small(make_encoder(tmp_path / "e", seed=1))),
    ]
    assert len({one, *others}) == 4


# --- batches --------------------------------------------------------------------------------------------------------


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


def letter_index(texts: Sequence[str]) -> VectorIndex:
    import faiss

    index = faiss.IndexFlatIP(26)
    index.add(letter_vectors(texts))  # pyright: ignore[reportCallIssue]
    return index


def lettered(folder: Path, encoder: Letters, texts: Sequence[str]) -> FolderRetriever:
    write_passages(folder, [Passage(str(row), "", text) for row, text in enumerate(texts)])
    return FolderRetriever(DenseSearcher("f", letter_index(texts), lambda: encoder), PassageStore(folder))


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


def test_the_event_loop_runs_on(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(seconds=0.3), WORDS)

    async def run() -> int:
        ticks, search = 0, asyncio.create_task(retriever.search("fig", 1))
        while not search.done():
            ticks += 1
            await asyncio.sleep(0.005)
        return ticks

    assert asyncio.run(run()) > 5


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
    assert isinstance(one, RetrieverError)
    assert isinstance(other, RetrieverError)
    assert str(one) == "search failed: the encoder broke"
    assert after == "fig"


def test_an_encoder_that_does_not_load_is_told_at_the_search(tmp_path: Path) -> None:
    def broken() -> Letters:
        raise OSError("weights unreadable")

    write_passages(tmp_path, [Passage("0", "", "fig")])
    retriever = FolderRetriever(DenseSearcher("f", letter_index(["fig"]), broken), PassageStore(tmp_path))
    with pytest.raises(RetrieverError, match="weights unreadable"):
        asyncio.run(retriever.search("fig", 1))


def test_queries_that_are_refused(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(), WORDS)
    with pytest.raises(RetrieverError, match="empty"):
        asyncio.run(retriever.search("  \n", 3))
    with pytest.raises(RetrieverError, match="top_k is 0"):
        asyncio.run(retriever.search("fig", 0))
    asyncio.run(retriever.close())
    asyncio.run(retriever.close())
    with pytest.raises(RetrieverError, match="closed"):
        asyncio.run(retriever.search("fig", 3))


def test_ties_are_broken_by_row(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(), ["kiwi", "fig", "fig", "gif", "fig"])
    assert [p.id for p in asyncio.run(retriever.search("fig", 2))] == ["1", "2"]
    assert [p.id for p in asyncio.run(retriever.search("fig", 4))] == ["1", "2", "3", "4"]


def test_one_retriever_serves_one_loop_after_another(tmp_path: Path) -> None:
    retriever = lettered(tmp_path, Letters(), WORDS)
    assert asyncio.run(retriever.search("fig", 1))[0].text == "fig"
    assert asyncio.run(retriever.search("kiwi", 1))[0].text == "kiwi"


def test_the_same_alone_and_in_a_batch(minilm: Built) -> None:
    queries = ["iron", "How many strings does a violin have, and how are they tuned?", "a dried-up sea", "album Berlin"]
    together = ask(minilm.path, *queries)
    for query, batched in zip(queries, together, strict=True):
        (alone,) = ask(minilm.path, query)
        assert [p.id for p in alone] == [p.id for p in batched]
        assert [p.score for p in alone] == pytest.approx([p.score for p in batched], abs=2e-4)


def test_measured_recall_sees_a_bad_index() -> None:
    class Wrong:
        def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros((1, k), np.float32), np.array([[*range(5), *[-1] * (k - 5)]])

    vectors = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
    assert 0 <= measure(Wrong(), vectors)["recall_at_10"] < 0.2
