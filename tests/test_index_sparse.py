"""`--encoder none`: an index of BM25 alone, built, opened, served and checked like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import indexes.commands.adopt
import indexes.commands.build
import indexes.commands.check
from indexes import open_retriever
from indexes.commands.build import build_index
from indexes.folder.manifest import read_index_manifest
from indexes.open import mode_of
from steprag.cli import guarded
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError, DataError
from tests.indexing import PASSAGES, ask, fingerprint, hybrid_index, small, write_corpus

NONE = Path("none")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")


@pytest.fixture(scope="module")
def pristine(corpus: Path) -> Path:
    return build_index(str(corpus), corpus.parent / "index", small(NONE)).path


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "index")


def test_it_finds_passages_without_vectors(pristine: Path) -> None:
    iron, strings = ask(pristine, "the symbol Fe", "strings of a violin")
    assert (iron[0].id, strings[0].id) == ("iron", "violin")
    assert not list(pristine.glob("*.faiss"))
    manifest = read_index_manifest(pristine)
    assert (manifest.encoder.name, manifest.metric, manifest.index.type) == ("none", "bm25", "bm25")
    assert mode_of(pristine, manifest, RetrieverConfig()) == "sparse"


def test_it_ranks_as_bm25_beside_vectors_does(pristine: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    passages = [passage for passage in ask(pristine, *(text for _, _, text in PASSAGES), top_k=1)]
    beside = hybrid_index(tmp_path, [passage for (passage,) in passages], tiny_encoder)
    assert fingerprint(beside, mode="sparse") == fingerprint(pristine)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_modes_that_want_vectors_are_refused(pristine: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match=f"no vectors .*retriever.mode {mode}"):
        open_retriever(pristine, RetrieverConfig.model_validate({"mode": mode}))


def test_the_command_finds_it_built_and_adds_links(
    index: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--corpus", str(corpus), "--out", str(index), "--encoder", "none", "--json"]
    assert guarded(indexes.commands.build.main, argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["reused"], report["bm25"], report["type"], report["dimension"]) == (True, True, "bm25", 0)
    assert guarded(indexes.commands.build.main, [*argv, "--hybrid"]) == 0
    assert (index / "links").is_dir()
    shutil.rmtree(index / "bm25")
    assert guarded(indexes.commands.build.main, argv) == 0
    assert (index / "bm25").is_dir()
    assert guarded(indexes.commands.build.main, [*argv, "--bm25.k1", "0.9"]) == 2


def test_what_does_not_go_with_it(index: Path, corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="type rabitq is a type of vectors"):
        build_index(str(corpus), tmp_path / "new", small(NONE, type="rabitq"))
    with pytest.raises(ConfigError, match="leave one of them out"):
        build_index(str(corpus), tmp_path / "new", small(NONE), vectors_from=index)
    with pytest.raises(ConfigError, match="another encoder"):
        build_index(str(corpus), index, small(tiny_encoder))
    with pytest.raises(ConfigError, match="say with --encoder"):
        indexes.commands.adopt.adopt_index(tmp_path / "x.faiss", str(corpus), tmp_path / "new", small(NONE))
    assert not (tmp_path / "new").exists()


def test_a_corpus_without_words_leaves_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", [("one", "", "the of"), ("two", "", "and a")])
    with pytest.raises(ConfigError, match="holds no word"):
        build_index(str(corpus), tmp_path / "new", small(NONE))
    assert not (tmp_path / "new").exists()


def test_check_hashes_its_files(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(indexes.commands.check.main, ["--index", str(index), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["encoded_again"], "bm25/data.csc.index.npy" in found["files"]) == (0, True)
    (index / "passages.jsonl").write_bytes((index / "passages.jsonl").read_bytes().replace(b"Iron", b"Zinc"))
    with pytest.raises(DataError, match="passages.jsonl"):
        open_retriever(index)
