"""BGE-M3's scores: equal to FlagEmbedding's, where it is installed, and to sentence-transformers'."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.interop.bge import LayerwiseScorer, M3Scorer, bge_at, linear_of
from indexes.ranking.cross_encoder import CrossEncoder
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
    scorer = bge_at(str(folder), "cpu")
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


@pytest.fixture(scope="module")
def layerwise(m3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the shape of bge-reranker-v2-minicpm-layerwise: its names, its config, code nobody runs."""
    import torch
    from safetensors.torch import save_file

    folder, size, wide, layers = tmp_path_factory.mktemp("layerwise") / "minicpm", 16, 24, 4
    shutil.copytree(m3, folder, ignore=lambda _, names: {*names} - {"tokenizer.json", "tokenizer_config.json"})
    torch.manual_seed(2)
    vocabulary = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    shapes = {"self_attn.q_proj": (size, size), "self_attn.k_proj": (8, size), "self_attn.v_proj": (8, size),
              "self_attn.o_proj": (size, size), "mlp.gate_proj": (wide, size), "mlp.up_proj": (wide, size),
              "mlp.down_proj": (size, wide), "input_layernorm": (size,),
              "post_attention_layernorm": (size,)}  # fmt: skip
    weights = {"model.embed_tokens.weight": torch.randn(vocabulary, size), "model.norm.weight": torch.rand(size)}
    for layer in range(layers):
        weights |= {f"model.layers.{layer}.{name}.weight": torch.randn(shape) / 3 for name, shape in shapes.items()}
    weights |= {f"lm_head.{n}.linear_head.weight": torch.randn(1, size) for n in range(layers - 1)}
    save_file(weights, folder / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LayerWiseMiniCPMForCausalLM"], "model_type": "minicpm", "start_layer": 2,
        "auto_map": {"AutoConfig": "configuration_minicpm_reranker.LayerWiseMiniCPMConfig",
                     "AutoModelForCausalLM": "modeling_minicpm_reranker.LayerWiseMiniCPMForCausalLM"},
        "head_multi": True, "head_type": "simple", "hidden_act": "silu", "hidden_size": size,
        "num_hidden_layers": layers, "intermediate_size": wide, "num_attention_heads": 4,
        "num_key_value_heads": 2, "scale_depth": 1.4,
        "scale_emb": 12, "dim_model_base": 8, "rms_norm_eps": 1e-5, "vocab_size": vocabulary,
        "max_position_embeddings": 2048, "rope_scaling": None, "torch_dtype": "float32"}))  # fmt: skip
    return folder


def published(folder: Path, ids: list[int], cut: int) -> float:
    """The score as the published code has it: MiniCPM's layers up to the cut, the norm, that layer's head."""
    import torch
    from safetensors.torch import load_file
    from torch.nn.functional import silu, softmax

    weights = load_file(folder / "model-00001-of-00001.safetensors")
    places = torch.arange(len(ids))[:, None] / 10000 ** (torch.arange(0, 4, 2) / 4)
    cos, sin = torch.cat([places, places], 1).cos(), torch.cat([places, places], 1).sin()

    def normed(x: Any, name: str) -> Any:
        return weights[f"model.{name}.weight"] * x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()

    def turned(x: Any) -> Any:
        return x * cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * sin

    hidden = weights["model.embed_tokens.weight"][ids] * 12
    for layer in range(cut):
        own = {key.split(".")[4].split("_")[0]: one.T for key, one in weights.items()
               if key.startswith(f"model.layers.{layer}.") and "_proj" in key}  # fmt: skip
        x = normed(hidden, f"layers.{layer}.input_layernorm")
        q, k, v = ((x @ own[one]).view(len(ids), -1, 4).transpose(0, 1) for one in "qkv")
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        likeness = turned(q) @ turned(k).transpose(1, 2) / 2 + torch.full((len(ids),) * 2, -torch.inf).triu(1)
        mixed = (softmax(likeness, -1) @ v).transpose(0, 1).reshape(len(ids), -1)
        hidden = hidden + mixed @ own["o"] * 1.4 / 4**0.5
        x = normed(hidden, f"layers.{layer}.post_attention_layernorm")
        hidden = hidden + (silu(x @ own["gate"]) * (x @ own["up"])) @ own["down"] * 1.4 / 4**0.5
    return float(normed(hidden, "norm")[-1] @ weights[f"lm_head.{cut - 2}.linear_head.weight"][0])


@pytest.mark.parametrize(("cut", "layer"), [(None, 4), ([3], 3), (2, 2)])
def test_a_layerwise_reranker_scores_as_published(layerwise: Path, cut: Any, layer: int, tmp_path: Path) -> None:
    folder = shutil.copytree(layerwise, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **({"cutoff_layers": cut} if cut else {})}))
    scorer = bge_at(str(folder), "cpu")
    assert isinstance(scorer, LayerwiseScorer)
    scorer.load()
    expected = [published(folder, ids, layer) for ids in scorer._prompts(QUERY, TEXTS)]
    assert np.allclose(scorer.score(QUERY, TEXTS), expected, atol=1e-4)
    told = "".join(scorer._tokenizer.convert_ids_to_tokens(*scorer._prompts(QUERY, ["B" * 2000])))
    told = told.replace("Ġ", " ").replace("Ċ", "\n").replace("> ", ">").replace(" \n ", "\n")
    assert told.startswith(f"<s>A: {QUERY}\nB: B")
    assert told.endswith("'Yes' or 'No'.")


def test_a_layerwise_reranker_of_another_shape_is_refused(layerwise: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(layerwise, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for odd in ({"cutoff_layers": 1}, {"head_type": "raw"}):
        (folder / "config.json").write_text(json.dumps({**config, **odd}))
        with pytest.raises(ConfigError, match="or give BAAI/bge-reranker-v2-m3"):
            bge_at(str(folder), "cpu")
    lightweight = {"architectures": ["CostWiseGemmaForCausalLM"], "start_layer": 8, "model_type": "cost_wise_gemma"}
    (folder / "config.json").write_text(json.dumps(lightweight))
    assert bge_at(str(folder), "cpu") is None
    with pytest.raises(ConfigError, match="give a cross-encoder, such as BAAI/bge-reranker-v2-m3"):
        CrossEncoder(str(folder))


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
