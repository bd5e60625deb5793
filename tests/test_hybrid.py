"""BM25 (its arrays beside those of `bm25s`), fusion, title links and re-ranking: through the commands and
`open_retriever`.
"""

from __future__ import annotations

import asyncio
import filecmp
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import indexes.commands.build
import indexes.commands.evaluate
import indexes.commands.search
from indexes import open_retriever
from indexes.addons import bm25, postings
from indexes.addons.bm25 import Analyser, Bm25Config, add_bm25, terms_of, write_bm25
from indexes.addons.links import mentions, title_words
from indexes.commands.build import build_index
from indexes.corpora.readers import open_source
from indexes.folder.manifest import read_index_manifest, write_add_on
from indexes.ranking.rankings import Ranking, SearchKey, best_rows
from indexes.ranking.searchers import HybridSearcher, RerankedSearcher, fuse_ranks, fuse_scores
from indexes.rows.passage_store import PassageStore, write_passages
from steprag.config.sections import RetrieverConfig
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, DataError, StepragError
from steprag.types import Passage
from tests.indexing import fingerprint, hybrid_index, small, words_index

PASSAGES = [
    Passage("film", "White Deer Plain (film)", "White Deer Plain is a Chinese film directed by Wang Quan'an."),
    Passage("director", "Wang Quan'an", "Born in 1965, he graduated from a film academy in Beijing."),
    Passage("deer", "Deer", "Deer are hoofed animals; the white deer is rare. Deer graze on the plain at night."),
    Passage("cafe", "Café Müller", "Ein Stück von Pina Bausch, uraufgeführt in Wuppertal."),
    Passage("runner", "Runners", "Running runners run; she ran and he runs."),
    Passage("tokyo", "東京", "東京は日本の首都である。"),
]
QUESTION = "Where did the director of White Deer Plain graduate?"


@pytest.fixture(scope="module")
def pristine(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hybrid_index(tmp_path_factory.mktemp("hybrid"), PASSAGES, tiny_encoder)


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "index")


def ids(folder: Path, query: str, top_k: int = 3, **config: Any) -> list[str]:
    (found,) = asyncio.run(
        indexes.commands.search.search_all(open_retriever(folder, RetrieverConfig(**config)), [query], top_k)
    )
    return [passage.id for passage in found]


def test_a_library_user_builds_what_the_command_builds(index: Path, pristine: Path, tiny_encoder: Path) -> None:
    built = build_index(str(pristine.parent / "corpus.jsonl"), index.parent / "mine", small(tiny_encoder), hybrid=True)
    assert built.added == ("bm25", "links")
    for mode in ({"mode": "sparse"}, {"mode": "hybrid", "links": 0.5}):
        assert fingerprint(built.path, **mode) == fingerprint(index, **mode)
    assert build_index(str(pristine.parent / "corpus.jsonl"), index, small(tiny_encoder), hybrid=True).added == ()


@pytest.mark.parametrize("mode", ["auto", "sparse", "hybrid"])
def test_learned_weights_of_earlier_versions_are_refused(index: Path, mode: str) -> None:
    (index / "bm25").rename(index / "lexical")
    with pytest.raises(ConfigError, match="lexical holds token weights of BGE-M3.* delete that folder and add BM25"):
        open_retriever(index, RetrieverConfig.model_validate({"mode": mode}))
    assert ids(index, "deer", 1, mode="dense")


# --- BM25 -----------------------------------------------------------------------------------------------------------
def test_bm25_stems_queries_as_it_does_passages(pristine: Path) -> None:
    assert ids(pristine, "a runner", mode="sparse") == ["runner"]
    assert ids(pristine, "DIRECTOR, graduating!", 1, mode="sparse") == ["director"]
    assert ids(pristine, "cafe muller", mode="sparse") == ["cafe"]
    assert ids(pristine, "首都", mode="sparse") == ["tokyo"]
    assert ids(pristine, "xylophone", mode="sparse") == []
    assert ids(pristine, "runner \ud83d", mode="sparse") == ["runner"]  # half of an emoji, as a cut completion has it
    assert len(ids(pristine, "runner \ud83d", mode="dense")) == 3


@pytest.mark.parametrize("kept", [0, 30, bm25.COLUMNS])
def test_columns_of_frequent_terms_change_no_score(pristine: Path, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25, "COLUMNS", kept)  # 30: of one term
    searcher = bm25.Bm25Searcher(pristine, read_index_manifest(pristine))
    analyse, model = Analyser("english"), bm25s.BM25.load(pristine / "bm25")
    for text in ["deer", *(passage.text for passage in PASSAGES), "deer"]:
        scores = model.get_scores(analyse(text))
        assert searcher.search([(text, 9)]) == [best_rows(scores, 9)]


def test_a_title_counts_more_than_text(index: Path) -> None:
    assert ids(index, "White Deer Plain", 1, mode="sparse") == ["film"]
    shutil.rmtree(index / "bm25")
    assert add_bm25(index, read_index_manifest(index), Bm25Config(title_weight=1, b=0.0))
    assert ids(index, "deer", 1, mode="sparse") == ["deer"]


def test_the_analyser() -> None:
    assert Analyser("english")("The Cafés are RUNNING in 1990s") == ["cafe", "run", "1990s"]
    assert Analyser("none")("The cafés") == ["the", "cafes"]
    assert Analyser("english")("to be or not to be") == ["to", "be", "or", "not", "to", "be"]
    assert Analyser("english").passage("It runs") == ["it", "run"]
    with pytest.raises(ConfigError, match="no stemmer for 'klingon'; known: .*english"):
        Analyser("klingon")


def test_marks_are_accents_in_some_scripts_and_letters_in_others() -> None:
    analyse = Analyser("none")
    assert analyse("Ёлка, Ἀθῆναι, مُحَمَّد") == ["елка", "αθηναι", "محمد"]
    assert analyse("हिन्दी में, தமிழ் மொழி") == ["हिन्दी", "में", "தமிழ்", "மொழி"]
    assert Analyser("hindi")("लड़कियाँ") == Analyser("hindi")("लड़की")
    assert analyse("がか、東京") == ["が", "か", "東", "京"]
    assert analyse("ภาษาไทย ก ๑๒") == ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย", "ก", "12"]
    assert analyse("☕️ e=mc²") == ["e", "mc2"]
    assert analyse("𠮷野家 ラーメン ㄅ") == ["𠮷", "野", "家", "ラ", "ー", "メ", "ン", "ㄅ"]
    assert analyse("ශ්\u200dරී ලංකා, می\u200cخواهم") == ["ශ්රී", "ලංකා", "ميخواهم"]
    for capital in ("กรุงเทพ", "ວຽງຈັນ", "ភ្នំពេញ", "နေပြည်တော်"):  # in a sentence without spaces
        assert set(analyse(capital)) <= set(analyse(3 * capital))
    assert {"နေ", "နေပြ"} <= set(analyse.passage("နေပြည်တော်")), "one syllable alone is found"
    assert analyse("ភ្នំ\u200bពេញ") == analyse("ភ្នំពេញ")


@pytest.mark.parametrize(("written", "asked"), [
    ("Łódź", "lodz"), ("smørrebrød", "smorrebrod"), ("Đà Nẵng", "da nang"), ("Æsir", "aesir"), ("œuvre", "oeuvre"),
    ("Straße", "strasse"), ("Diyarbakır İstanbul", "diyarbakir istanbul"), ("Þórður", "thordur"), ("ħal", "hal"),
    ("Əliyev", "aliyev"), ("Hawaiʻi", "hawaii"), ("New_York_City", "new york city"), ("soft\u00adhyphen", "softhyphen"),
    ("کتاب", "كتاب"), ("٢٠٢٠ २०२०", "2020 2020"), ("Ｆｕｌｌ ﬁne", "full fine"),
])  # fmt: skip
def test_letters_that_do_not_decompose_are_found_by_plain_ones(written: str, asked: str) -> None:
    analyse = Analyser("none")
    assert analyse(written) == analyse.passage(written) == analyse(asked)


def test_a_query_of_stop_words_finds_them(tmp_path: Path) -> None:
    hamlet = Passage("hamlet", "Hamlet", "To be, or not to be, that is the question.")
    index = words_index(tmp_path, [hamlet, Passage("sea", "Sea", "Water, salt, fish.")])
    assert [ids(index, query) for query in ("to be or not to be", "it is the sea", "It")] == [["hamlet"], ["sea"], []]


def test_bm25_of_an_earlier_version_is_searched_as_it_was_built(tmp_path: Path) -> None:
    thai, spanish = Passage("bangkok", "", "เมืองหลวงของประเทศไทยคือกรุงเทพ"), Passage("lima", "", "Lima, Perú")
    index = words_index(tmp_path, [thai, spanish])
    assert (ids(index, "ประเทศไทย"), ids(index, "PERU")) == (["bangkok"], ["lima"])
    newer, manifest = fingerprint(index), read_index_manifest(index)
    old, store = Analyser("english", 1), PassageStore(index)
    shutil.rmtree(index / "bm25")

    def write(folder: Path, _: PassageStore) -> None:
        write_bm25(folder, [old(store.read(row).text) for row in range(2)], Bm25Config())

    assert write_add_on(index, manifest, "bm25", Bm25Config().model_dump(), write)
    assert (ids(index, "ประเทศไทย"), ids(index, "PERU")) == ([], ["lima"])
    assert fingerprint(index) != newer
    assert not add_bm25(index, manifest, Bm25Config()), "another build keeps it"
    with pytest.raises(ConfigError, match="has other settings"):
        add_bm25(index, manifest, Bm25Config(k1=0.9))
    shutil.rmtree(index / "bm25")
    assert write_add_on(index, manifest, "bm25", {**Bm25Config().model_dump(), "analyser": 4}, write)
    with pytest.raises(DataError, match="its settings are not those of BM25 here.*delete .* and add it again"):
        open_retriever(index)


def test_a_build_adds_what_is_missing_and_refuses_other_settings(
    index: Path, pristine: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = pristine.parent / "corpus.jsonl"
    argv = ["--corpus", str(corpus), "--out", str(index), "--encoder", str(tiny_encoder), "--hybrid", "--json"]
    before = fingerprint(index)
    shutil.rmtree(index / "bm25")
    assert fingerprint(index) == fingerprint(index, mode="dense")
    assert guarded(indexes.commands.build.main, argv) == 0
    assert json.loads(capsys.readouterr().out)["bm25"] is True
    assert fingerprint(index) == before
    assert guarded(indexes.commands.build.main, [*argv, "--bm25.k1", "0.9"]) == 2
    assert "bm25 has other settings; delete that folder" in capsys.readouterr().err


def test_bm25_files_that_are_refused(index: Path, pristine: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(StepragError, match=said):
            open_retriever(index, RetrieverConfig(mode="sparse"))

    data = index / "bm25" / "data.csc.index.npy"
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    refused(r"data.csc.index.npy: .*SHA-256 differs")
    manifest = index / "bm25" / "manifest.json"
    row = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**row, "settings": {**row["settings"], "language": "none"}}))
    refused("fingerprint does not fit")
    manifest.write_text(json.dumps({**row, "passages": "of another corpus"}))
    refused("other passages")
    shutil.rmtree(index / "bm25")
    refused("no bm25 folder; .*--hybrid")


def test_a_build_of_bm25_that_is_cut_off_leaves_the_index_as_it_was(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    shutil.rmtree(index / "bm25")
    before = sorted(path.name for path in index.iterdir())
    manifest = read_index_manifest(index)
    with monkeypatch.context() as patch:
        patch.setattr("indexes.folder.manifest.write_json", full)
        with pytest.raises(ConfigError, match="cannot write .*bm25: No space left.*the index is as it was"):
            add_bm25(index, manifest, Bm25Config())
    assert [name for name in sorted(path.name for path in index.iterdir()) if "lock" not in name] == before
    (index / ".bm25.building").mkdir()  # what a kill leaves
    (index / ".bm25.building" / "half").write_bytes(b"x")
    assert add_bm25(index, manifest, Bm25Config())
    assert "half" not in {path.name for path in (index / "bm25").iterdir()}


# --- fusion ---------------------------------------------------------------------------------------------------------
def test_reciprocal_rank_fusion() -> None:
    fused = fuse_ranks([[(1, 0.9), (2, 0.8)], [(2, 7.0), (3, 6.0)]], (0.5, 0.5))
    assert [row for row, _ in fused] == [2, 1, 3]
    assert fused[0][1] == pytest.approx((61 / 62 + 1) / 2, abs=1e-6)
    assert fuse_ranks([[(1, 1.0)], [(1, 1.0)]], (0.3, 0.7)) == [(1, 1.0)]


def test_fusion_of_scores() -> None:
    dense, sparse = [(1, 0.9), (2, 0.7), (3, 0.5)], [(2, 20.0), (4, 10.0)]
    assert fuse_scores([dense, sparse], (0.4, 0.6)) == [(2, 0.8), (1, 0.4), (3, 0.0), (4, 0.0)]
    assert fuse_scores([[], sparse], (0.4, 0.6))[0] == (2, 0.6)
    assert fuse_scores([[(5, 0.2)], []], (0.5, 0.5)) == [(5, 0.5)]


class Fixed:
    """A searcher whose ranking is given."""

    def __init__(self, ranked: Ranking) -> None:
        self.fingerprint, self._ranked = str(ranked), ranked

    def load(self) -> None:
        """Nothing."""

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        return [self._ranked[:top_k] for _, top_k in asked]


def test_a_hybrid_ranking_does_not_depend_on_its_company() -> None:
    one, other = [(row, 1.0 - row / 500) for row in range(300)], [(299 - row, 9.0 - row / 500) for row in range(300)]
    hybrid = HybridSearcher([Fixed(one), Fixed(other)], (0.5, 0.5))
    (alone,) = hybrid.search([("q", 5)])
    together, deep = hybrid.search([("q", 5), ("other", 250)])
    assert alone == together
    assert len(deep) == 250


def test_every_mode_has_a_fingerprint_of_its_own(pristine: Path) -> None:
    modes: list[dict[str, Any]] = [{"mode": "dense"}, {"mode": "sparse"}, {}, {"dense_weight": 0.7}, {"fusion": "rrf"},
                                   {"links": 0.6}, {"links": 0.5}, {"mode": "sparse", "links": 0.5}]  # fmt: skip
    prints = [fingerprint(pristine, **mode) for mode in modes]
    assert len(set(prints)) == len(modes)
    assert fingerprint(pristine, mode="hybrid", timeout=9.0) == prints[2]


# --- links ----------------------------------------------------------------------------------------------------------
def test_a_passage_that_the_best_one_mentions_moves_up(pristine: Path) -> None:
    assert ids(pristine, "Who made White Deer Plain?", 2, mode="sparse") == ["film", "deer"]
    assert ids(pristine, "Who made White Deer Plain?", 2, mode="sparse", links=0.9) == ["film", "director"]


def test_mentions() -> None:
    titles = {
        title_words(title): row for row, title in enumerate(["New York (state)", "York", "The", "It (film)", "Iron"])
    }
    found = list(mentions("The New York of old. York! It is iron.", titles))
    assert found == [("New", "York"), ("York",)]
    assert title_words("Wang Quan'an") == ("Wang", "Quan", "an")


# --- re-ranking -----------------------------------------------------------------------------------------------------
class LongestFirst:
    """A cross-encoder by hand: long texts are good."""

    hash = "longest"

    def load(self) -> None:
        """Nothing."""

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        return np.array([float(len(text)) for text in texts])


def test_a_reranker_orders_the_first_candidates_anew(tmp_path: Path) -> None:
    write_passages(tmp_path, [Passage(str(row), "", "x" * (row + 1)) for row in range(9)])
    base = Fixed([(row, 1 - row / 9) for row in range(9)])
    with PassageStore(tmp_path) as store:
        reranked = RerankedSearcher(base, store, LongestFirst(), 4)
        assert [row for row, _ in reranked.search([("q", 2)])[0]] == [3, 2]
        assert [row for row, _ in reranked.search([("q", 6)])[0]] == [5, 4, 3, 2, 1, 0]
        assert RerankedSearcher(base, store, LongestFirst(), 5).fingerprint != reranked.fingerprint


def test_a_real_cross_encoder(pristine: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(tmp_path / "cross")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words), num_labels=1, max_position_embeddings=512, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "cross")
    base = {"mode": "sparse", "candidates": 3}
    plain = ids(pristine, QUESTION, 3, **base)
    again = ids(pristine, QUESTION, 3, **base, reranker=str(tmp_path / "cross"))
    assert sorted(again) == sorted(plain)
    with pytest.raises(ConfigError, match="no safetensors"):
        (tmp_path / "cross" / "model.safetensors").unlink()
        open_retriever(pristine, RetrieverConfig(**base, reranker=str(tmp_path / "cross")))


# --- recall ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def questions(tmp_path: Path) -> Path:
    support = {"White Deer Plain": ["film", "cafe"], "runners": ["runner"], "nothing known": []}
    rows = [{"id": question, "question": question, "golden_answers": ["x"], "metadata": {"supporting_ids": ids}}
            for question, ids in support.items()]  # fmt: skip
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path / "q.jsonl"


def test_evaluate(pristine: Path, questions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--index", str(pristine), "--questions", str(questions), "--retriever.mode", "sparse", "--at", "[1,5]"]
    assert guarded(indexes.commands.evaluate.main, [*argv, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["questions"] == 2
    assert (figures["@1"]["recall"], figures["@1"]["any"], figures["@1"]["all"]) == (75.0, 100.0, 50.0)
    assert guarded(indexes.commands.evaluate.main, argv) == 0
    assert "@1       75.0" in capsys.readouterr().out
    questions.write_text('{"id": "3", "question": "q", "golden_answers": ["x"], "metadata": {}}\n')
    assert guarded(indexes.commands.evaluate.main, argv) == 2
    assert "no question names its passages in metadata.supporting_ids" in capsys.readouterr().err


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


@pytest.mark.parametrize(("rows", "found", "digits"), [(20_000, 9_000, 2), (20_000, 4, 2), (700, 650, 0), (50, 0, 2)])
def test_the_best_of_many_rows_are_those_of_a_full_sort(rows: int, found: int, digits: int) -> None:
    rng = np.random.default_rng(rows + found)
    scores = np.zeros(rows, dtype=np.float32)
    scores[rng.permutation(rows)[:found]] = rng.gamma(1.0, size=found).round(digits) + 0.01  # with ties
    whole = sorted(((row, round(float(scores[row]), 4)) for row in np.flatnonzero(scores)), key=lambda r: (-r[1], r[0]))
    assert best_rows(scores, 10) == whole[:10]
