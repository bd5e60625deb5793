"""Index types: built from the same vectors, opened from their files, and measured against exact search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import indexes.commands.search
from indexes import open_retriever
from indexes.commands.build import build_index
from indexes.commands.plan import sizes
from indexes.folder.manifest import read_index_manifest
from indexes.ranking.searchers import DenseSearcher
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.index_types import TYPES, AnnConfig, Rescored, build_type, open_index
from indexes.vectors.recall import make_probe, measure
from steprag.errors import ConfigError, DataError
from tests.indexing import PASSAGES, ask, fingerprint, small, write_corpus

ROWS, DIMENSION = 3000, 32
CPU_TYPES = [name for name, kind in TYPES.items() if not kind.gpu]


@pytest.fixture
def vectors(tmp_path: Path) -> VectorFile:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(40, DIMENSION))[rng.integers(0, 40, ROWS)] + 0.6 * rng.normal(size=(ROWS, DIMENSION))
    file = VectorFile.create(tmp_path / VECTORS, ROWS, DIMENSION)
    file.write(0, values / np.linalg.norm(values, axis=1, keepdims=True))
    return file


@pytest.mark.parametrize("name", CPU_TYPES)
def test_every_type_finds_what_exact_search_finds(name: str, vectors: VectorFile, tmp_path: Path) -> None:
    search = AnnConfig(recall=0.95, nlist=16, code_bytes=8)
    facts, measured = build_type(name, tmp_path, vectors, search, make_probe(vectors))
    assert measured.recall_at_10 >= (1.0 if TYPES[name].exact else 0.95)
    index = open_index(tmp_path, facts, ROWS, DIMENSION)
    assert index.ntotal == ROWS
    queries = vectors.take(np.arange(50))
    scores, rows = index.search(queries, 5)
    assert (rows[:, 0] == np.arange(50)).mean() >= 0.98
    assert np.all(np.diff(scores, axis=1) <= 0)
    exact = np.take_along_axis(queries @ vectors.take(np.arange(ROWS)).T, rows, axis=1)
    if facts.parameters.get("rescore") or TYPES[name].exact:
        assert np.allclose(scores, exact, atol=1e-5)
    assert isinstance(index, Rescored) == bool(facts.parameters.get("rescore"))


@pytest.mark.parametrize("name", ["rabitq", "ivf-pq", "hnsw-sq8"])
def test_a_ranking_does_not_depend_on_what_else_is_asked(name: str, vectors: VectorFile, tmp_path: Path) -> None:
    class Rows:
        def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
            noise = np.stack([np.random.default_rng(int(text)).normal(size=DIMENSION) for text in texts])
            return vectors.take(np.array([int(text) for text in texts])) + 0.1 * noise.astype(np.float32)

    effort = AnnConfig(nlist=16, code_bytes=8, nprobe=4, ef=8, rescore=0 if name == "hnsw-sq8" else 2)
    facts, _ = build_type(name, tmp_path, vectors, effort, make_probe(vectors))
    searcher = DenseSearcher("f", open_index(tmp_path, facts, ROWS, DIMENSION), Rows)
    asked = [(str(row), 3) for row in range(300)]
    *together, deep = searcher.search([*asked, ("0", 200)])
    assert together == searcher.search(asked)
    assert len(deep) > 50


def test_the_sizes_that_the_plan_prints_are_those_of_the_files(vectors: VectorFile, tmp_path: Path) -> None:
    """Formulas against what FAISS wrote; centroids and the like, which do not grow with the rows, come on top."""
    search = AnnConfig(nlist=16, code_bytes=8, nprobe=16, ef=64, rescore=10)
    for name in CPU_TYPES:
        for file in tmp_path.glob("index.faiss"):
            file.unlink()
        build_type(name, tmp_path, vectors, search, make_probe(vectors))
        found = sum(file.stat().st_size for file in tmp_path.glob("*.faiss"))
        rows = ROWS * sizes(name, DIMENSION, search)[0]
        assert 0.99 * rows <= found < rows + 50_000, name


def test_an_index_that_finds_the_wrong_rows_is_seen(vectors: VectorFile) -> None:
    class Wrong:
        ntotal = ROWS

        def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros((1, k), np.float32), np.array([[*range(5), *[-1] * (k - 5)]])

    assert 0 <= measure(Wrong(), vectors, make_probe(vectors)).recall_at_10 < 0.2


def test_effort_is_tuned_to_the_recall_that_is_asked_for(vectors: VectorFile, tmp_path: Path) -> None:
    probe = make_probe(vectors)
    low, high = (
        build_type("ivf-sq8", tmp_path, vectors, AnnConfig(recall=recall, nlist=200), probe) for recall in (0.1, 1.0)
    )
    assert low[0].parameters["nprobe"] < high[0].parameters["nprobe"]
    assert low[1].recall_at_10 <= high[1].recall_at_10
    given, _ = build_type("ivf-sq8", tmp_path, vectors, AnnConfig(nlist=64, nprobe=3), probe)
    assert given.parameters["nprobe"] == 3


def test_another_type_takes_the_vectors_that_are_there(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i"
    flat = build_index(corpus, out, small(encoder)).manifest
    before = ask(out, "iron", "bread")
    vectors = (out / VECTORS).read_bytes()
    capsys.readouterr()
    served = open_retriever(out)  # a process that has the old one open goes on with it
    for name in ("hnsw-sq8", "flat-fp16", "rabitq"):
        built = build_index(corpus, out, small(encoder, type=name))
        assert not built.reused
        assert build_index(corpus, out, small(encoder, type=name)).reused
        assert (built.manifest.index.type, built.manifest.fingerprint != flat.fingerprint) == (name, True)
        assert (fingerprint(out) == built.manifest.fingerprint) == TYPES[name].exact, "older caches have other rankings"
        assert [[p.id for p in found] for found in ask(out, "iron", "bread")] == [[p.id for p in f] for f in before]
    assert asyncio.run(indexes.commands.search.search_all(served, ["iron"], 3)) == before[:1]
    elsewhere = build_index(corpus, tmp_path / "j", small(encoder), vectors_from=out)
    assert (elsewhere.manifest.fingerprint, (tmp_path / "j" / VECTORS).read_bytes()) == (flat.fingerprint, vectors)
    shown = capsys.readouterr().err
    assert "nothing is encoded" in shown
    assert "loading encoder" not in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "i", "j"]


def test_another_query_prefix_takes_the_vectors_too(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i"
    before = build_index(corpus, out, small(encoder, query_prefix="")).manifest
    after = build_index(corpus, out, small(encoder, query_prefix="query: "))
    assert "nothing is encoded" in capsys.readouterr().err
    assert (after.manifest.encoder.query_prefix, after.manifest.fingerprint != before.fingerprint) == ("query: ", True)
    with pytest.raises(ConfigError, match="another encoder .pooling: 'cls', not 'mean'"):
        build_index(corpus, out, small(encoder, pooling="mean"))


def test_vectors_that_cannot_be_taken(encoder: Path, index: Path, tmp_path: Path) -> None:
    fewer = str(write_corpus(tmp_path / "c.jsonl", PASSAGES[:3]))
    with pytest.raises(ConfigError, match="another corpus; its vectors are of no use here"):
        build_index(fewer, tmp_path / "j", small(encoder), vectors_from=index)
    with pytest.raises(ConfigError, match="vectors encoded in float32; choose another"):
        build_index(str(write_corpus(tmp_path / "c.jsonl")), index, small(encoder, dtype="int8"))
    damaged = bytearray((index / VECTORS).read_bytes())
    damaged[-1] ^= 1
    (index / VECTORS).write_bytes(damaged)
    with pytest.raises(DataError, match="vectors.faiss: is not the file that was written"):
        build_index(str(tmp_path / "c.jsonl"), index, small(encoder, type="hnsw-sq8"))
    assert read_index_manifest(index).index.type == "flat"


def test_types_that_a_corpus_or_a_machine_cannot_have(encoder: Path, tmp_path: Path) -> None:
    corpus = str(write_corpus(tmp_path / "c.jsonl"))
    with pytest.raises(ConfigError, match="ivf-pq needs at least 256 passages, the corpus has 6"):
        build_index(corpus, tmp_path / "i", small(encoder, type="ivf-pq"))
    with pytest.raises(ConfigError, match="ann.nlist is 7, and the corpus has 6 passages; give fewer cells"):
        build_index(corpus, tmp_path / "i", small(encoder, type="ivf-sq8", **{"ann.nlist": 7}))
    with pytest.raises(ConfigError, match="gpu-flat needs a GPU and faiss-gpu"):
        build_index(corpus, tmp_path / "i", small(encoder, type="gpu-flat"))
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]
