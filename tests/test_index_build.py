"""Index folders: from a corpus to passages that are found, and what may stand at --out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import indexes.build
import indexes.search
from indexes.build import build_index
from indexes.built import Built
from steprag.cli import guarded
from steprag.errors import ConfigError
from steprag.inputs import read_passages
from tests.indexing import PASSAGES, ask, small, write_corpus
from tests.models import make_encoder


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
    source = {passage.id: passage for passage in read_passages(Path(minilm.manifest.corpus.path))}
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
    assert set(manifest["files"]) == {"index.faiss", "vectors.faiss", "passages.jsonl", "passages.offsets.npy"}
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


def test_two_builds_of_one_folder(encoder: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / ".i.building").mkdir()
    with FileLock(tmp_path / ".i.building" / ".lock"), pytest.raises(ConfigError, match="another process"):
        build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", small(encoder))
