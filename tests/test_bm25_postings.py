"""BM25's arrays, built a block at a time, beside those of `bm25s`'s own builder."""

from __future__ import annotations

import filecmp
from collections.abc import Sequence
from pathlib import Path

import bm25s
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexes.addons import postings
from indexes.addons.bm25 import Analyser, Bm25Config, terms_of, write_bm25
from indexes.corpora.readers import open_source
from steprag.types import Passage

FILES = {"data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "params.index.json", "vocab.index.json"}


def by_bm25s(folder: Path, documents: Sequence[Sequence[str]], config: Bm25Config) -> Path:
    vocabulary: dict[str, int] = {}
    rows = [[vocabulary.setdefault(term, len(vocabulary)) for term in document] for document in documents]
    model = bm25s.BM25(method="lucene", k1=config.k1, b=config.b, backend="numpy")
    model.index((rows, vocabulary), show_progress=False)
    model.save(folder, show_progress=False)
    return folder


def same_files(one: Path, other: Path) -> None:
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()} == FILES
    assert set(filecmp.cmpfiles(one, other, FILES, shallow=False)[0]) == FILES


@pytest.mark.parametrize(("block", "span"), [(postings.BLOCK, postings.RANGE), (999, 5000)])
def test_real_text_gives_the_bytes_of_bm25s(
    block: int, span: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postings, "BLOCK", block)
    monkeypatch.setattr(postings, "RANGE", span)
    analyse, config = Analyser("english"), Bm25Config()
    passages = [value for _, _, value in open_source("atlas").items() if isinstance(value, Passage)]
    documents = [terms_of(passage, analyse, config.title_weight) for passage in passages]
    assert len(documents) > 2000
    write_bm25(tmp_path / "ours", documents, config)
    same_files(by_bm25s(tmp_path / "theirs", documents, config), tmp_path / "ours")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), min_size=1, max_size=12).filter(any),
    block=st.integers(1, 9),
    span=st.integers(1, 9),
    k1=st.sampled_from([0.0, 0.9, 1.5]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_any_blocks_and_ranges_give_the_bytes_of_bm25s(
    documents: list[list[str]], block: int, span: int, k1: float, b: float,
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(postings, "BLOCK", block)
    monkeypatch.setattr(postings, "RANGE", span)
    folder, config = tmp_path_factory.mktemp("bm25"), Bm25Config(k1=k1, b=b)
    write_bm25(folder / "ours", documents, config)
    same_files(by_bm25s(folder / "theirs", documents, config), folder / "ours")


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "RANGE", 1)
    monkeypatch.setattr(postings, "FILES", 4)
    documents = [[f"w{number}", f"w{number // 2}", "all"] for number in range(300)]
    write_bm25(tmp_path / "ours", documents, Bm25Config())
    same_files(by_bm25s(tmp_path / "theirs", documents, Bm25Config()), tmp_path / "ours")
