"""BGE-M3's scores: equal to FlagEmbedding's, where it is installed, and to sentence-transformers'."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from indexes.interop.bge import M3Scorer, linear_of, m3_at
from indexes.ranking.searchers import RerankedSearcher
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError
from steprag.types import Passage
from tests.indexing import ask, words_index

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
    scorer = m3_at(str(folder), "cpu")
    assert scorer
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
