"""BGE-M3's dense vectors and token weights beside FlagEmbedding's, where that is installed: a tiny model of its
architecture.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import indexes.addons.bge_m3
import indexes.addons.postings
import indexes.build
import indexes.check
import indexes.search
from indexes import open_retriever
from indexes.addons.bge_m3 import LexicalEncoder
from indexes.addons.postings import open_arrays
from indexes.corpora.passage_store import PassageStore
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import Overrides, read_spec
from steprag.cli import guarded
from steprag.config import RetrieverConfig
from steprag.errors import ConfigError, DataError
from tests.indexing import PASSAGES, ask, fingerprint, write_corpus


def make_m3(folder: Path) -> Path:
    """XLM-RoBERTa and heads with random weights in a plain transformers folder, known by its name as the hub's are."""
    import torch
    from transformers import BertTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    torch.manual_seed(0)
    letters = [chr(c) for c in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]
    tokenizer = BertTokenizerFast(
        vocab={word: i for i, word in enumerate(words)}, eos_token="[SEP]", model_max_length=512
    )
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = XLMRobertaConfig(
        vocab_size=len(words), pad_token_id=0, max_position_embeddings=514, type_vocab_size=2, **sizes
    )
    XLMRobertaModel(config).save_pretrained(folder)
    head = {"weight": torch.randn(1, 32) / 10, "bias": torch.tensor([0.1])}  # some weights above 0, some not
    torch.save(head, folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(32, 32).state_dict(), folder / "colbert_linear.pt")  # FlagEmbedding wants both or none
    return folder


def test_its_pooling_and_prefixes_are_known_by_its_name(tmp_path: Path) -> None:
    spec = read_spec(str(tmp_path / "bge-m3"), make_m3(tmp_path / "bge-m3"), Overrides())
    assert (spec.pooling, spec.query_prefix, spec.passage_prefix, spec.max_length) == ("cls", "", "", 512)


@pytest.mark.slow
def test_dense_vectors_are_those_of_flagembedding(tmp_path: Path) -> None:
    flag = pytest.importorskip("FlagEmbedding")
    folder, texts = make_m3(tmp_path / "bge-m3"), [text for _, _, text in PASSAGES]
    ours = Encoder(folder, read_spec(str(folder), folder, Overrides()))
    theirs = flag.BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu").encode(texts)["dense_vecs"]
    for found in (ours.encode_passages(texts), ours.encode_queries(texts)):
        assert np.abs(found - theirs).max() < 1e-5


@pytest.mark.slow
def test_token_weights_are_those_of_flagembedding(tmp_path: Path) -> None:
    flag = pytest.importorskip("FlagEmbedding")
    folder, texts = make_m3(tmp_path / "bge-m3"), [*(text for _, _, text in PASSAGES), "aa 日 aa 日", "日"]
    theirs = flag.BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu").encode(texts, return_sparse=True)
    ours: list[dict[str, float]] = [{} for _ in texts]
    for term, row, score in weights_of(folder, texts).tolist():
        ours[row][str(term)] = score
    assert [found.keys() for found in ours] == [found.keys() for found in theirs["lexical_weights"]]
    for found, wanted in zip(ours, theirs["lexical_weights"], strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


# --- The index, with such weights in BM25's place --------------------------------------------------------------------


def weights_of(folder: Path, texts: list[str]) -> np.ndarray:
    return LexicalEncoder(folder, read_spec(str(folder), folder, Overrides())).postings(texts)


def command(folder: Path, encoder: Path, *more: str) -> list[str]:
    corpus = write_corpus(folder / "corpus.jsonl")
    return ["--corpus", str(corpus), "--out", str(folder / "index"), "--encoder", str(encoder), "--hybrid", *more]


@pytest.fixture(scope="module")
def m3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_m3(tmp_path_factory.mktemp("model") / "bge-m3")


@pytest.fixture(scope="module")
def pristine(m3: Path, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lexical")
    assert guarded(indexes.build.main, command(folder, tiny_encoder, "--sparse", str(m3))) == 0
    return folder / "index"


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "index")


def test_weights_are_the_largest_of_a_token_and_marks_have_none(m3: Path) -> None:
    """Against the model itself, a text at a time."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(m3), AutoModel.from_pretrained(m3, use_safetensors=True)
    head = torch.load(m3 / "sparse_linear.pt", weights_only=True)
    texts = ["aa b 日 aa", "a violin is played with a bow and has strings", ""]
    wanted: dict[tuple[int, int], float] = {}
    for row, text in enumerate(texts):
        given: Any = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            weights = (model(**given).last_hidden_state[0] @ head["weight"][0] + head["bias"]).tolist()
        for term, weight in zip(given["input_ids"][0].tolist(), weights, strict=True):
            if term not in tokenizer.all_special_ids and weight > wanted.get((row, term), 0.0):
                wanted[row, term] = weight
    found = {(row, term): score for term, row, score in weights_of(m3, texts).tolist()}
    assert {row for row, _ in found} == {0, 1}
    assert found == pytest.approx(wanted, abs=1e-5)
    assert list(found) == sorted(found)


def test_a_query_scores_the_dot_product_of_weights(pristine: Path, m3: Path) -> None:
    query = "laws of planetary motion"
    found = ask_sparse(pristine, query, top_k=len(PASSAGES))
    with PassageStore(pristine) as store:
        texts = [query, *store.texts(range(len(PASSAGES)))]
    of: list[dict[int, float]] = [{} for _ in texts]
    for term, row, score in weights_of(m3, texts).tolist():
        of[row][term] = score
    dots = [sum(weight * passage.get(term, 0.0) for term, weight in of[0].items()) for passage in of[1:]]
    wanted = {name: dot for (name, _, _), dot in zip(PASSAGES, dots, strict=True) if dot}
    assert dict(found) == pytest.approx(wanted, abs=2e-4)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def ask_sparse(path: Path, query: str, top_k: int) -> list[tuple[str, float]]:
    retriever = open_retriever(path, RetrieverConfig(mode="sparse"))
    (found,) = asyncio.run(indexes.search.search_all(retriever, [query], top_k))
    return [(passage.id, passage.score) for passage in found]


def test_blocks_and_ranges_leave_no_trace(
    pristine: Path, m3: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes.addons.bge_m3, "CHUNK", 4)
    monkeypatch.setattr(indexes.addons.postings, "BLOCK", 5)
    monkeypatch.setattr(indexes.addons.postings, "RANGE", 7)
    assert guarded(indexes.build.main, command(tmp_path, tiny_encoder, "--sparse", str(m3))) == 0
    here, there = (open_arrays(folder / "lexical") for folder in (tmp_path / "index", pristine))
    assert len(here[0]) > 100
    assert np.allclose(here[0], there[0], atol=1e-6)  # other batches
    assert np.array_equal(here[1], there[1])
    assert np.array_equal(here[2], there[2])


def test_the_default_mode_fuses_them_with_vectors(pristine: Path) -> None:
    assert fingerprint(pristine) == fingerprint(pristine, mode="hybrid") != fingerprint(pristine, mode="sparse")
    (found,) = ask(pristine, "laws of planetary motion")
    assert len(found) == 3


def test_the_command_finds_it_built_and_an_index_has_one_sparse_ranking(
    index: Path, m3: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = command(index.parent, tiny_encoder, "--json")
    assert guarded(indexes.build.main, [*argv, "--sparse", str(m3)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["reused"], report["bm25"], report["lexical"]) == (True, False, True)
    assert guarded(indexes.build.main, argv) == 2
    assert "delete that folder to have bm25/" in capsys.readouterr().err
    assert guarded(indexes.build.main, [*argv, "--sparse", str(m3), "--max_length", "16"]) == 2
    shutil.rmtree(index / "lexical")
    assert guarded(indexes.build.main, argv) == 0
    assert (index / "bm25").is_dir()


def test_what_does_not_go_with_it(tmp_path: Path, m3: Path) -> None:
    assert guarded(indexes.build.main, command(tmp_path, Path("none"), "--sparse", str(m3))) == 2
    argv = [word for word in command(tmp_path, m3, "--sparse", str(m3)) if word != "--hybrid"]
    assert guarded(indexes.build.main, argv) == 2
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("changed", ["sparse_linear.pt", "model.safetensors"])
def test_another_model_than_the_builds_is_refused(changed: str, tmp_path: Path, tiny_encoder: Path) -> None:
    folder = make_m3(tmp_path / "bge-m3")
    assert guarded(indexes.build.main, command(tmp_path, tiny_encoder, "--sparse", str(folder))) == 0
    data = bytearray((folder / changed).read_bytes())
    data[-1] ^= 1
    (folder / changed).write_bytes(data)
    with pytest.raises(ConfigError, match="is not the one that made the index"):
        open_retriever(tmp_path / "index")
    (folder / changed).unlink()
    with pytest.raises(ConfigError, match=f"no {changed}|no safetensors"):
        open_retriever(tmp_path / "index")


def test_damage_is_found(index: Path) -> None:
    assert guarded(indexes.check.main, ["--index", str(index)]) == 0
    data = bytearray((index / "lexical" / "data.csc.index.npy").read_bytes())
    data[-1] ^= 1
    (index / "lexical" / "data.csc.index.npy").write_bytes(data)
    with pytest.raises(DataError, match="data.csc"):
        open_retriever(index)


class _Trap:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def test_a_head_that_is_more_than_tensors_is_refused_and_not_run(tmp_path: Path, tiny_encoder: Path) -> None:
    import torch

    folder, sprung = make_m3(tmp_path / "bge-m3"), tmp_path / "sprung"
    spec = read_spec(str(folder), folder, Overrides())
    torch.save({"weight": _Trap(sprung)}, folder / "sparse_linear.pt")
    with pytest.raises(ConfigError, match="no sparse head of BGE-M3"):
        LexicalEncoder(folder, spec)
    (folder / "sparse_linear.pt").write_bytes(pickle.dumps(_Trap(sprung)))
    with pytest.raises(ConfigError, match="no sparse head of BGE-M3"):
        LexicalEncoder(folder, spec)
    torch.save(torch.nn.Linear(16, 1).state_dict(), folder / "sparse_linear.pt")
    with pytest.raises(ConfigError, match="no sparse head of BGE-M3"):
        LexicalEncoder(folder, spec)
    assert not sprung.exists()
    assert guarded(indexes.build.main, command(tmp_path, tiny_encoder, "--sparse", str(tiny_encoder))) == 2
    assert not (tmp_path / "index").exists()
