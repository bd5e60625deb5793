"""M3's scores and layerwise rerankers: equal to FlagEmbedding's where it is installed, and to what is worked out."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from indexes.interop.bge import LayerwiseScorer, M3Scorer, linear_of, scorer_at
from indexes.ranking.searchers import RerankedSearcher
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, write_json
from steprag.types import Passage
from tests.indexing import ask, words_index
from tests.models import TEMPLATE, make_tokenizer

QUERY, TEXTS = "who made it?", ["Kepler", "The violin has four strings and is played with a bow.", "it?"]


@pytest.fixture(scope="module")
def m3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in BGE-M3's shape: XLM-RoBERTa, two heads as torch saves them, the numbers in halves."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    folder = tmp_path_factory.mktemp("m3") / "bge-m3"
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    named = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **named).save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = XLMRobertaConfig(vocab_size=len(tokenizer.get_vocab()), max_position_embeddings=66, **sizes)
    XLMRobertaModel(config).save_pretrained(folder)
    for name, width in (("sparse_linear.pt", 1), ("colbert_linear.pt", 16)):
        torch.save(torch.nn.Linear(16, width, dtype=torch.float16).state_dict(), folder / name)
    return folder


def scored(folder: Path) -> dict[str, np.ndarray]:
    scorer = scorer_at(str(folder), "cpu")
    assert isinstance(scorer, M3Scorer)
    scorer.load()
    parts = scorer.parts(QUERY, TEXTS)
    assert np.allclose(
        scorer.score(QUERY, TEXTS), 0.4 * parts["dense"] + 0.2 * parts["sparse"] + 0.4 * parts["colbert"]
    )
    return parts


def test_m3_dense_is_sentence_transformers_and_its_words_are_common_words(m3: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    parts = scored(m3)
    modules = [Transformer(str(m3), max_seq_length=64), Pooling(16, pooling_mode="cls")]
    vectors = SentenceTransformer(modules=modules, device="cpu").encode([QUERY, *TEXTS], normalize_embeddings=True)
    assert np.allclose(parts["dense"], vectors[1:] @ vectors[0], atol=1e-6)
    scorer = M3Scorer(m3)
    scorer.load()
    assert scorer.parts("Kepler", ["violin bow"])["sparse"].shape == (1,)
    same = scorer.parts(QUERY, [QUERY])
    assert same["dense"][0] == pytest.approx(1, abs=1e-5)
    assert same["colbert"][0] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_m3_scores_are_the_packages(m3: Path) -> None:
    package = pytest.importorskip("FlagEmbedding", reason="FlagEmbedding is not installed")
    theirs = package.BGEM3FlagModel(str(m3), use_fp16=False, devices="cpu").compute_score(
        [[QUERY, text] for text in TEXTS], max_passage_length=64, weights_for_different_modes=[0.4, 0.2, 0.4]
    )
    parts = scored(m3)
    for name, ours in parts.items():
        assert np.allclose(ours, theirs[name], atol=1e-5), name
    whole = 0.4 * parts["dense"] + 0.2 * parts["sparse"] + 0.4 * parts["colbert"]
    assert np.allclose(whole, theirs["colbert+sparse+dense"], atol=1e-5)


def test_m3_reranks_an_index(m3: Path, tmp_path: Path) -> None:
    from indexes import open_retriever

    index = words_index(tmp_path, [Passage(str(n), "", text) for n, text in enumerate((*TEXTS, "who made the bow"))])
    retriever = open_retriever(index, RetrieverConfig(reranker=str(m3)))
    assert isinstance(retriever._searcher, RerankedSearcher)  # pyright: ignore
    assert retriever.fingerprint != open_retriever(index).fingerprint
    import asyncio

    found = asyncio.run(retriever.search("bow made", 2))
    scorer = M3Scorer(m3)
    scorer.load()
    wanted = {p.id: float(score) for p, score in zip(ask(index, "bow made")[0], scorer.score("bow made", [
        p.text for p in ask(index, "bow made")[0]]), strict=True)}  # fmt: skip
    assert {p.id: p.score for p in found} == {p.id: pytest.approx(wanted[p.id], abs=1e-3) for p in found}


def test_heads_are_read_without_running_their_pickle(m3: Path, tmp_path: Path) -> None:
    import torch

    layer = torch.nn.Linear(16, 3, dtype=torch.bfloat16)
    torch.save(layer.state_dict(), tmp_path / "l.pt")
    assert torch.equal(linear_of(tmp_path / "l.pt", 16).weight, layer.weight.float())
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", b"cos\nsystem\n(S'touch /nothing'\ntR.")
    (tmp_path / "plain.pt").write_bytes(b"\x80\x02")
    for name, width in (("evil.pt", 16), ("plain.pt", 16), ("l.pt", 8), ("none.pt", 16)):
        with pytest.raises(ConfigError, match=f"{name} holds no linear layer over {width} numbers"):
            linear_of(tmp_path / name, width)


def test_a_layer_is_one_that_a_layerwise_reranker_has(m3: Path, encoder: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    with pytest.raises(ConfigError, match="only a layerwise one scores after a layer; leave @3 out"):
        scorer_at(f"{encoder}@3", "cpu")
    assert scorer_at(str(encoder), "cpu") is None
    folder = tmp_path / "layerwise"
    shutil.copytree(encoder, folder)
    shape = {"architectures": ["LayerWiseMiniCPMForCausalLM"], "start_layer": 2, "num_hidden_layers": 4}
    write_json(folder / "config.json", read_json(folder / "config.json") | shape)
    found = {"spec": None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found["spec"])
    with pytest.raises(ConfigError, match=r"needs FlagEmbedding; pip install -e '.\[flagembedding\]'"):
        scorer_at(str(folder), "cpu")
    found["spec"] = object()  # pyright: ignore
    with pytest.raises(ConfigError, match="scores after layers 2 to 4"):
        scorer_at(f"{folder}@5", "cpu")
    assert scorer_at(f"{folder}@2", "cpu").hash != scorer_at(str(folder), "cpu").hash


@pytest.mark.slow
def test_a_layerwise_reranker(tmp_path: Path) -> None:
    """Random weights in MiniCPM's shape, scored after two of their layers."""
    pytest.importorskip("FlagEmbedding", reason="FlagEmbedding is not installed")
    import torch
    from FlagEmbedding.inference.reranker.decoder_only.models.modeling_minicpm_reranker import (  # pyright: ignore
        LayerWiseMiniCPMConfig,
        LayerWiseMiniCPMForCausalLM,
    )

    words = make_tokenizer(tmp_path, ["Given a query A and a passage B Yes No"], TEMPLATE, bos_token="<|im_start|>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
             "num_key_value_heads": 2, "dim_model_base": 64}  # fmt: skip
    heads = {"start_layer": 2, "head_type": "simple", "head_multi": True}
    LayerWiseMiniCPMForCausalLM(LayerWiseMiniCPMConfig(vocab_size=len(words), **sizes, **heads)).save_pretrained(
        tmp_path
    )
    scores = []
    for layer in (2, 4):
        scorer = scorer_at(f"{tmp_path}@{layer}", "cpu")
        assert isinstance(scorer, LayerwiseScorer)
        scorer.load()
        scores.append(scorer.score(QUERY, TEXTS))
        assert scores[-1].shape == (3,)
        assert scorer.score(QUERY, TEXTS[1:])[0] == pytest.approx(scores[-1][1], abs=1e-4)
    assert not np.allclose(*scores)
