"""Indexes of other programs' files and of words alone (`--encoder none`); what `check` and `plan index` say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

import indexes.commands.adopt
import indexes.commands.build
import indexes.commands.check
import indexes.commands.plan
import indexes.corpora.readers
from indexes import open_retriever
from indexes.commands.adopt import adopt_index
from indexes.commands.build import build_index
from indexes.corpora.readers import open_source
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import Overrides, read_spec
from indexes.folder.manifest import read_index_manifest
from indexes.open import mode_of
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.index_types import TYPES
from steprag.config.sections import RetrieverConfig
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, DataError
from tests.indexing import PASSAGES, ask, fingerprint, hybrid_index, small, write_corpus
from tests.models import make_encoder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """FlashRAG's spelling of the passages."""
    path = tmp_path / "flashrag.jsonl"
    rows = [json.dumps({"id": i, "contents": f'"{title}"\n{text}'}) for i, title, text in PASSAGES]
    path.write_text("\n".join(rows) + "\n")
    return path


IP, L2 = faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2


def flashrag(
    path: Path, encoder: Path, *, kind: str = "Flat", metric: int = IP, ids: int = 0, cut: int = 0, **values: Any
) -> Path:
    """A FAISS file as FlashRAG's builder leaves it; `values` override the encoder's own. `ids`: the first id."""
    model = Encoder(encoder, read_spec("e", encoder, Overrides(**values)))
    vectors = model.encode_passages([f'"{title}"\n{text}' for _, title, text in PASSAGES[cut:]])
    index = faiss.index_factory(vectors.shape[1], kind, metric)
    index.train(np.tile(vectors, (50, 1)))
    if ids or "IDMap" in kind:
        index.add_with_ids(vectors, np.arange(ids, ids + len(vectors)))
    else:
        index.add(vectors)
    faiss.write_index(index, str(path))
    return path


@pytest.mark.parametrize(("kind", "metric"), [
    ("Flat", IP), ("Flat", L2), ("IVF2,Flat", IP), ("IVF2,Flat", L2), ("HNSW8", IP), ("HNSW8", L2), ("SQ8", IP),
    ("SQfp16", L2), ("IDMap,Flat", IP), ("IDMap,IVF2,SQ8", L2), ("OPQ4,PQ4x4", IP),
])  # fmt: skip
def test_a_faiss_file_is_adopted_and_searched(
    kind: str, metric: int, corpus: Path, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = flashrag(tmp_path / "e5_Flat.index", encoder, kind=kind, metric=metric)
    argv = ["--faiss", str(file), "--corpus", str(corpus), "--out", str(tmp_path / "i"), "--encoder", str(encoder)]
    assert guarded(indexes.commands.adopt.main, argv) == 0
    assert "files of people you trust only" in capsys.readouterr().err
    queries = Encoder(encoder, read_spec("e", encoder, Overrides())).encode_queries(["iron", "bread"])
    scores, rows = faiss.read_index(str(file)).search(queries, 1)
    best = [found[0].score or 0.0 for found in ask(tmp_path / "i", "iron", "bread")]
    assert best == pytest.approx(1 - scores[:, 0] / 2 if metric == L2 else scores[:, 0], abs=1e-4)
    assert read_index_manifest(tmp_path / "i").origin == "adopted: e5_Flat.index"


@pytest.mark.parametrize("kind", ["Flat", "HNSW8", "PQ8x4"])
def test_vectors_of_their_own_length_are_adopted_by_their_direction(
    kind: str, corpus: Path, encoder: Path, tmp_path: Path
) -> None:
    """Another row's inner product may be greater than a passage's own."""
    file = flashrag(tmp_path / "dot", encoder, normalise=False)
    vectors = faiss.read_index(str(file)).reconstruct_n(0, len(PASSAGES)) * np.array([[1], [5], [1], [1], [1], [1]])
    index, vectors = faiss.index_factory(16, kind, IP), vectors.astype(np.float32)
    index.train(np.tile(vectors, (50, 1)))
    index.add(vectors)
    faiss.write_index(index, str(file))
    adopted = adopt_index(file, str(corpus), tmp_path / "i", small(encoder, normalise=False))
    assert (adopted.manifest.encoder.normalise, adopted.manifest.measured["agreeing"]) == (False, 1.0)
    assert {found[0].id for found in ask(tmp_path / "i", "iron", "bread")} == {"violin"}


def test_a_row_without_text_keeps_its_place(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    lines = corpus.read_text().splitlines()
    corpus.write_text("\n".join([lines[0], '{"id": "none", "contents": ""}', *lines[2:]]) + "\n")
    index = adopt_index(flashrag(tmp_path / "f", encoder), str(corpus), tmp_path / "i", small(encoder))
    assert (index.manifest.corpus.rows, index.manifest.measured["encoded_again"]) == (6, 5)
    assert [p.id for p in ask(index.path, "iron", top_k=6)[0]].count("iron") == 1


def test_an_adopted_flat_index_gives_its_vectors_to_other_types(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    file = flashrag(tmp_path / "f.index", encoder)
    adopt_index(file, str(corpus), tmp_path / "i", small(encoder))
    adopted = file.read_bytes()
    built = build_index(str(corpus), tmp_path / "i", small(encoder, type="hnsw-sq8"))
    assert not built.reused
    stored = VectorFile(built.path / VECTORS, len(PASSAGES), 16).take(np.arange(len(PASSAGES)))
    original = faiss.read_index(str(file)).reconstruct_n(0, len(PASSAGES))
    assert np.allclose(stored, original, atol=1e-3)
    assert built.manifest.origin == "adopted: f.index"
    assert guarded(indexes.commands.check.main, ["--index", str(built.path)]) == 0
    assert file.read_bytes() == adopted


@pytest.mark.parametrize(("names", "given", "joined"), [
    (["part_aa", "part_ab"], "part_aa", "part_* > {}/whole.index"), (["part_aa", "part_ab"], ".", "part_* > {}/whole"),
    (["e5.index.part.00", "e5.index.part.01"], "e5.index.part.01", "e5.index.part.* > {}/e5.index"),
    (["e5.index_part_aa", "e5.index_part_ab"], "e5.index", "e5.index_part_* > {}/e5.index"),
])  # fmt: skip
def test_a_file_in_parts_is_refused_with_what_joins_them(
    names: list[str], given: str, joined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"IxFI")
    argv = ["--faiss", str(tmp_path / given), "--corpus", "c", "--out", str(tmp_path / "i")]
    assert guarded(indexes.commands.adopt.main, argv) == 2
    assert f"cat {tmp_path}/{joined.format(tmp_path)}" in capsys.readouterr().err


def test_files_that_do_not_belong_together_are_refused(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    def refused(message: str, file: Path, **values: object) -> None:
        with pytest.raises((ConfigError, DataError), match=message):
            adopt_index(file, str(corpus), tmp_path / "i", small(encoder, **values))
        assert not list(tmp_path.glob(".i.building")) + list(tmp_path.glob("i"))

    made = r"row \d is not what is made of its passage .* \(cls\); "
    refused(made + "the encoder is right with --pooling mean", flashrag(tmp_path / "mean", encoder, pooling="mean"))
    far: dict[str, Any] = {"pooling": "mean", "passage_prefix": "!@#$% " * 9}
    bare = flashrag(tmp_path / "bare", encoder, pooling="mean")
    refused(made.replace("cls", "mean") + "the encoder is right with --passage_prefix ''", bare, **far)
    refused(made + "no other pooling fits", flashrag(tmp_path / "else", make_encoder(tmp_path / "two", seed=1)))
    refused("holds 5 vectors, .* 6 passages", flashrag(tmp_path / "five", encoder, cut=1))
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    refused("is no FAISS index", tmp_path / "nonsense")
    for kind in ("Flat", "HNSW8"):
        refused("not of length 1", flashrag(tmp_path / "distance", encoder, kind=kind, metric=L2, normalise=False))
    wide = faiss.IndexFlatL2(32)
    faiss.write_index(wide, str(tmp_path / "wide"))
    refused("vectors of 32 dimensions, encoder .* makes 16", tmp_path / "wide")
    faiss.write_index(faiss.IndexFlat(16, faiss.METRIC_L1), str(tmp_path / "manhattan"))
    refused("neither by inner product nor by distance", tmp_path / "manhattan")
    for kind, first in (("IDMap,Flat", 1000), ("IDMap2,Flat", 1), ("IVF1,Flat", 1)):
        named = flashrag(tmp_path / "named", encoder, kind=kind, ids=first)
        refused(r"ids are no row numbers of the corpus \(0 to 5\)", named)
    write_corpus(corpus, PASSAGES[::-1])
    refused("is not what", flashrag(tmp_path / "order", encoder, pooling="mean"), pooling="mean")


def test_check_finds_what_opening_does_not_look_for(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(indexes.commands.check.main, ["--index", str(index), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["passages"], found["encoded_again"]) == (6, 6)
    assert found["lowest_cosine"] > 0.999
    content = bytearray((index / VECTORS).read_bytes())
    content[-3] ^= 0x40
    (index / VECTORS).write_bytes(content)
    assert guarded(indexes.commands.check.main, ["--index", str(index)]) == 2
    assert "vectors.faiss: is not the file that was written" in capsys.readouterr().err


def test_plan_counts_compares_and_recommends(
    corpus: Path, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--corpus", str(corpus), "--encoder", str(encoder), "--out", str(tmp_path)]
    assert guarded(indexes.commands.plan.main, [*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passages"], report["dimension"], report["recommended"]) == (6, 16, "flat")
    assert [line["type"] for line in report["types"]] == [*TYPES, "bm25"]
    assert guarded(indexes.commands.plan.main, [*argv[:-1], str(tmp_path / "not" / "yet")]) == 0
    assert "recommended: --type flat" in capsys.readouterr().out
    assert guarded(indexes.commands.plan.main, []) == 2


def test_plan_of_an_index_without_vectors(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--encoder", "none", "--out", str(tmp_path)]
    assert guarded(indexes.commands.plan.main, ["--corpus", str(corpus), *argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passages"], report["recommended"], report["encoding_seconds"]) == (6, "bm25", None)
    assert [line["type"] for line in report["types"]] == ["bm25"]
    assert guarded(indexes.commands.plan.main, ["--rows", "1000000", *argv]) == 0
    assert "recommended: --encoder none" in capsys.readouterr().out


def test_what_bm25_takes_as_planned_and_as_built(corpus: Path, tmp_path: Path) -> None:
    source, config = open_source(str(corpus)), small(Path("none"))
    index = build_index(str(corpus), tmp_path / "index", config).path
    trial = indexes.commands.plan.try_bm25(source, config.bm25)
    assert (index / "bm25" / "indices.csc.index.npy").stat().st_size == 128 + 4 * round(6 * trial.postings)


def test_plan_recommends_what_memory_and_disk_allow() -> None:
    rows, dimension = 21_015_324, 768
    for memory, disk, wanted in ((128, 200, "ivf-sq8"), (16, 200, "rabitq"), (2, 200, None), (128, 20, None)):
        machine = indexes.commands.plan.Room(memory * 2**30, disk * 2**30, 4)
        lines = indexes.commands.plan.plan(rows, dimension, small(Path("x")).ann, machine, timed=False)
        assert indexes.commands.plan.recommend(lines, rows, dimension) == wanted
        flat = next(line for line in lines if line.type == "flat")
        assert flat.memory == rows * dimension * 4


def test_large_corpora_are_counted_from_their_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    import zstandard

    monkeypatch.setattr(indexes.corpora.readers, "COUNTED", 0)
    content = b'{"id": "1", "title": "", "text": "one"}\n' * 5000
    files = {"c.jsonl": content, "c.jsonl.gz": gzip.compress(content), "c.jsonl.zst": zstandard.compress(content)}
    for name, packed in files.items():
        (tmp_path / name).write_bytes(packed)
        rows, exact = indexes.corpora.readers.count_rows(indexes.commands.plan.open_source(str(tmp_path / name)))
        assert (rows, exact) == (5000, False)


# --- words alone: built, opened, served and checked like any other ----------------------------------------------------
NONE = Path("none")


@pytest.fixture(scope="module")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of words alone; its corpus lies beside it."""
    corpus = write_corpus(tmp_path_factory.mktemp("words") / "corpus.jsonl")
    return build_index(str(corpus), corpus.parent / "index", small(NONE)).path


@pytest.fixture
def copied(wordy: Path, tmp_path: Path) -> Path:
    return shutil.copytree(wordy, tmp_path / "index")


def test_it_finds_passages_without_vectors(wordy: Path) -> None:
    iron, strings = ask(wordy, "the symbol Fe", "strings of a violin")
    assert (iron[0].id, strings[0].id) == ("iron", "violin")
    assert not list(wordy.glob("*.faiss"))
    manifest = read_index_manifest(wordy)
    assert (manifest.encoder.name, manifest.metric, manifest.index.type) == ("none", "bm25", "bm25")
    assert mode_of(wordy, manifest, RetrieverConfig()) == "sparse"


def test_it_ranks_as_bm25_beside_vectors_does(wordy: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    passages = [passage for passage in ask(wordy, *(text for _, _, text in PASSAGES), top_k=1)]
    beside = hybrid_index(tmp_path, [passage for (passage,) in passages], tiny_encoder)
    assert fingerprint(beside, mode="sparse") == fingerprint(wordy)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_modes_that_want_vectors_are_refused(wordy: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match=f"no vectors .*retriever.mode {mode}"):
        open_retriever(wordy, RetrieverConfig.model_validate({"mode": mode}))


def test_the_command_finds_it_built_and_adds_links(
    copied: Path, wordy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--corpus", str(wordy.parent / "corpus.jsonl"), "--out", str(copied), "--encoder", "none", "--json"]
    assert guarded(indexes.commands.build.main, argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["reused"], report["bm25"], report["type"], report["dimension"]) == (True, True, "bm25", 0)
    assert guarded(indexes.commands.build.main, [*argv, "--hybrid"]) == 0
    assert (copied / "links").is_dir()
    shutil.rmtree(copied / "bm25")
    assert guarded(indexes.commands.build.main, argv) == 0
    assert (copied / "bm25").is_dir()
    assert guarded(indexes.commands.build.main, [*argv, "--bm25.k1", "0.9"]) == 2


def test_what_does_not_go_with_it(copied: Path, wordy: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    corpus = wordy.parent / "corpus.jsonl"
    with pytest.raises(ConfigError, match="type rabitq is a type of vectors"):
        build_index(str(corpus), tmp_path / "new", small(NONE, type="rabitq"))
    with pytest.raises(ConfigError, match="leave one of them out"):
        build_index(str(corpus), tmp_path / "new", small(NONE), vectors_from=copied)
    with pytest.raises(ConfigError, match="another encoder"):
        build_index(str(corpus), copied, small(tiny_encoder))
    with pytest.raises(ConfigError, match="say with --encoder"):
        indexes.commands.adopt.adopt_index(tmp_path / "x.faiss", str(corpus), tmp_path / "new", small(NONE))
    (tmp_path / "pyserini").mkdir()
    (tmp_path / "pyserini/index").write_bytes(b"x")
    with pytest.raises(DataError, match=r"is a folder of index \(name the index file in it\)"):
        indexes.commands.adopt.adopt_index(tmp_path / "pyserini", str(corpus), tmp_path / "new", small(tiny_encoder))
    assert not (tmp_path / "new").exists()


def test_a_corpus_without_words_leaves_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", [("one", "", "… ?"), ("two", "", "—")])
    with pytest.raises(ConfigError, match="holds no word"):
        build_index(str(corpus), tmp_path / "new", small(NONE))
    assert not (tmp_path / "new").exists()


def test_check_hashes_its_files(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(indexes.commands.check.main, ["--index", str(copied), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["encoded_again"], "bm25/data.csc.index.npy" in found["files"]) == (0, True)
    (copied / "passages.jsonl").write_bytes((copied / "passages.jsonl").read_bytes().replace(b"Iron", b"Zinc"))
    with pytest.raises(DataError, match="passages.jsonl"):
        open_retriever(copied)
