"""Index folders: from a corpus to passages that are found; what may stand at --out; folders that are damaged."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import indexes.commands.build
import indexes.commands.search
import steprag.records.sealed
from indexes import open_retriever
from indexes.commands.build import IndexConfig, build_index
from indexes.folder.sealing import Built
from indexes.rows.passage_store import PassageStore, write_passages
from steprag.config.sections import RetrieverConfig
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, DataError, StepragError
from steprag.records.inputs import read_passages
from steprag.types import Passage
from tests.indexing import PASSAGES, ask, edit_manifest, fingerprint, small, write_corpus
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
    said = {"name": "minilm", "pooling": "mean", "dimension": 384, "max_length": 256}
    assert said.items() <= manifest["encoder"].items()
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
    assert guarded(indexes.commands.build.main, argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passages"], report["reused"], report["dimension"]) == (len(PASSAGES), False, 16)
    assert guarded(indexes.commands.build.main, argv) == 0
    assert json.loads(capsys.readouterr().out)["reused"] is True
    assert guarded(indexes.commands.search.main, ["--index", str(out), "iron", "bread", "--top_k", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["query"] for row in rows] == ["iron", "bread"]
    assert [len(row["passages"]) for row in rows] == [2, 2]
    assert guarded(indexes.commands.search.main, ["--index", str(out), "iron"]) == 0
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


@pytest.mark.parametrize("row", ['{"id":"a","title":7,"text":"x"}', '{"id":"a","title":"T","text":null}'])
def test_a_stored_passage_whose_values_are_no_text_is_damage(tmp_path: Path, row: str) -> None:
    write_passages(tmp_path, [Passage("a", "T", "x" * 99)])
    (tmp_path / "passages.jsonl").write_text(row.ljust((tmp_path / "passages.jsonl").stat().st_size))
    with PassageStore(tmp_path) as store, pytest.raises(DataError, match="passages.jsonl:1: the row is not a passage"):
        store.read(0)


@pytest.mark.parametrize("offsets", [np.empty(0, dtype="<i8"), np.array(["b"]), np.zeros((2, 2), dtype="<i8")])
def test_offsets_that_are_no_list_of_numbers_are_damage(tmp_path: Path, offsets: np.ndarray) -> None:
    write_passages(tmp_path, [Passage("a", "T", "x")])
    np.save(tmp_path / "passages.offsets.npy", offsets)
    with pytest.raises(DataError, match="build the index again"):
        PassageStore(tmp_path)


def test_damaged_folders_are_refused(index: Path, pristine: Path, tmp_path: Path) -> None:
    def damaged(name: str, content: bytes) -> None:
        copy = shutil.copytree(pristine, tmp_path / "copy")
        (copy / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}(:\d+)?: .*build the index again"):
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


@pytest.mark.parametrize(("keys", "value", "message"), [
    (("encoder", "dimension"), 384, "has 16 dimensions, the manifest says 384"),
    (("corpus", "rows"), 7, "6 vectors, 6 passages, and the manifest says 7"),
    (("encoder", "query_prefix"), "", "its fingerprint does not fit"),
    (("encoder",), "minilm", "manifest.json:1: IndexManifest: encoder"),
    (("format",), 99, "format 99"),
    (("stage",), "generate", "not an index folder"),
])  # fmt: skip
def test_manifests_that_do_not_fit(keys: tuple[str, ...], value: object, message: str, index: Path) -> None:
    edit_manifest(index, *keys, value=value)
    with pytest.raises(StepragError, match=message) as caught:
        open_retriever(index)
    assert caught.value.exit_code == 2


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

    one = fingerprint(index)
    assert built("same", small(encoder, batch_tokens=20)) == one
    fewer, prefix = built("fewer", small(encoder), PASSAGES[:-1]), built("prefix", small(encoder, query_prefix="q: "))
    assert len({one, fewer, prefix, built("weights", small(make_encoder(tmp_path / "e", seed=1)))}) == 4


def test_a_large_file_is_sampled_at_opening(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is too large to be hashed at every opening."""
    monkeypatch.setattr(steprag.records.sealed, "HASHED_BYTES", 0)
    fingerprint(index)
    vectors = index / "vectors.faiss"
    content = vectors.read_bytes()
    vectors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="vectors.faiss: is not the file that was written"):
        open_retriever(index)


@pytest.mark.parametrize(("key", "file", "entry", "value"), [
    ("weight_hash", "model.safetensors", "", None),
    ("pooling", "1_Pooling/config.json", "pooling_mode", "mean"),
    ("query_prefix", "config_sentence_transformers.json", "prompts", {"query": "ask: "}),
    ("max_length", "tokenizer_config.json", "model_max_length", 32),
])  # fmt: skip
def test_an_encoder_that_changed_is_refused(key: str, file: str, entry: str, value: object, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "one", seed=0)
    (folder / "sentence_bert_config.json").unlink(missing_ok=True)
    index = build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", small(folder)).path
    if entry:
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**content, entry: value}))
    else:
        shutil.copy(make_encoder(tmp_path / "two", seed=1) / file, folder)
    with pytest.raises(ConfigError, match=f"not the one that made the index .{key}"):
        open_retriever(index)


def test_weights_can_wait_for_the_first_search(index: Path) -> None:
    retriever = open_retriever(index, RetrieverConfig(preload=False))
    assert [p.id for p in asyncio.run(retriever.search("iron", 2))] == [p.id for p in ask(index, "iron", top_k=2)[0]]


def test_a_folder_of_an_earlier_version_opens_and_gets_another_type(index: Path, encoder: Path, tmp_path: Path) -> None:
    """Without fp16 vectors, samples and the newer fields of the manifest."""
    found = ask(index, "iron")
    (index / "vectors.faiss").unlink()
    path = index / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["files"]["vectors.faiss"], manifest["origin"], manifest["corpus"]["skipped"]
    for facts in manifest["files"].values():
        del facts["sample"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert ask(index, "iron") == found
    built = build_index(str(write_corpus(tmp_path / "c.jsonl")), index, small(encoder, type="flat-fp16"))
    assert not built.reused
    assert [p.id for p in ask(index, "iron")[0]] == [p.id for p in found[0]]
