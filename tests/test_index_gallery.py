"""Encoders as they are published: the facts of their configuration files over small weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.commands import main
from indexes.commands.build import build_index
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import POOLINGS, Overrides, encoder_here, find_encoder, read_spec
from indexes.encoding.families import family_of
from indexes.folder.manifest import read_index_manifest
from indexes.web.retriever import EncoderRanker
from steprag.errors import ConfigError
from tests.indexing import small, write_corpus
from tests.models import make_published

Json = dict[str, Any]
BGE = "Represent this sentence for searching relevant passages: "
ZH = "为这个句子生成表示以用于检索相关文章："
TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query"
INSTRUCT = f"{TASK}\nQuery: "


def old(*modes: str) -> Json:
    """A Pooling module's file in the older spelling."""
    return {f"pooling_mode_{key}": mode in modes for key, mode in POOLINGS.items()}


def new(*modes: str) -> Json:
    return {"pooling_mode": modes[0] if len(modes) == 1 else [*modes]}


NORMAL = ("Normalize",)
# the name on the hub, its Pooling module (None: no modules), modules after it, its prompts
PUBLISHED: list[tuple[str, Json | None, tuple[str, ...], Json, tuple[str, str, str]]] = [
    ("BAAI/bge-small-en", old("cls"), NORMAL, {}, ("cls", BGE, "")),
    ("BAAI/bge-base-en-v1.5", old("cls"), NORMAL, {}, ("cls", BGE, "")),
    ("BAAI/bge-large-zh-v1.5", old("cls"), NORMAL, {}, ("cls", ZH, "")),
    ("BAAI/bge-base-zh", None, (), {}, ("cls", ZH, "")),
    ("BAAI/bge-large-zh-noinstruct", None, (), {}, ("cls", "", "")),
    ("BAAI/bge-m3", old("cls"), NORMAL, {}, ("cls", "", "")),
    ("intfloat/e5-small", old("mean"), NORMAL, {}, ("mean", "query: ", "passage: ")),
    ("intfloat/e5-large-v2", None, (), {}, ("mean", "query: ", "passage: ")),
    ("intfloat/multilingual-e5-base", old("mean"), NORMAL, {}, ("mean", "query: ", "passage: ")),
    ("intfloat/multilingual-e5-large-instruct", old("mean"), NORMAL, {}, ("mean", INSTRUCT, "")),
    ("intfloat/e5-mistral-7b-instruct", old("lasttoken"), NORMAL,
     {"web_search_query": INSTRUCT, "sts_query": "Instruct: Retrieve semantically similar text.\nQuery: "},
     ("lasttoken", INSTRUCT, "")),
    ("Salesforce/SFR-Embedding-Mistral", old("lasttoken"), NORMAL, {}, ("lasttoken", INSTRUCT, "")),
    ("Alibaba-NLP/gte-Qwen2-1.5B-instruct", old("lasttoken"), NORMAL, {"query": INSTRUCT}, ("lasttoken", INSTRUCT, "")),
    ("thenlper/gte-base", old("mean"), NORMAL, {}, ("mean", "", "")),
    ("thenlper/gte-large-zh", None, (), {}, ("cls", "", "")),
    ("Alibaba-NLP/gte-modernbert-base", old("cls"), (), {}, ("cls", "", "")),
    ("Snowflake/snowflake-arctic-embed-m", old("cls"), NORMAL, {}, ("cls", BGE, "")),
    ("Snowflake/snowflake-arctic-embed-m-v1.5", old("cls"), NORMAL, {"query": BGE}, ("cls", BGE, "")),
    ("Snowflake/snowflake-arctic-embed-l-v2.0", old("cls"), NORMAL, {"query": "query: "}, ("cls", "query: ", "")),
    ("nomic-ai/nomic-embed-text-v1.5", old("mean"), (), {}, ("mean", "search_query: ", "search_document: ")),
    ("nomic-ai/nomic-embed-text-v2-moe", old("mean"), NORMAL,
     {"query": "search_query: ", "passage": "search_document: ", "Clustering": "clustering: "},
     ("mean", "search_query: ", "search_document: ")),
    ("Qwen/Qwen3-Embedding-0.6B", old("lasttoken"), NORMAL, {"query": f"{TASK}\nQuery:", "document": ""},
     ("lasttoken", f"{TASK}\nQuery:", "")),
    ("mixedbread-ai/mxbai-embed-large-v1", old("cls"), (), {"query": BGE, "passage": ""}, ("cls", BGE, "")),
    ("WhereIsAI/UAE-Large-V1", old("cls"), (), {}, ("cls", BGE, "")),
    ("NovaSearch/stella_en_1.5B_v5", old("mean"), (),
     {"s2p_query": f"{TASK}.\nQuery: ", "s2s_query": "Instruct: Retrieve semantically similar text.\nQuery: "},
     ("mean", f"{TASK}.\nQuery: ", "")),
    ("google/embeddinggemma-300m", new("mean"), NORMAL,
     {"query": "task: search result | query: ", "document": "title: none | text: ", "STS": "task: x | query: "},
     ("mean", "task: search result | query: ", "title: none | text: ")),
    ("sentence-transformers/all-MiniLM-L6-v2", old("mean"), NORMAL, {}, ("mean", "", "")),
    ("sentence-transformers/multi-qa-mpnet-base-cos-v1", old("mean"), NORMAL, {}, ("mean", "", "")),
    ("sentence-transformers/msmarco-distilbert-base-tas-b", None, (), {}, ("cls", "", "")),
    ("facebook/contriever-msmarco", None, (), {}, ("mean", "", "")),
    ("ibm-granite/granite-embedding-125m-english", old("cls"), (), {}, ("cls", "", "")),
    ("maidalun1020/bce-embedding-base_v1", None, (), {}, ("cls", "", "")),
    ("cl-nagoya/ruri-v3-30m", old("mean"), (), {"Retrieval-query": "検索クエリ: ", "Retrieval-document": "検索文書: "},
     ("mean", "検索クエリ: ", "検索文書: ")),
    ("someone/own-embedder-instruct", new("mean"), (), {}, ("mean", INSTRUCT, "")),
    ("someone/own-embedder", new("max", "mean"), (), {"search_query": "q: ", "search_document": "d: "},
     ("max+mean", "q: ", "d: ")),
]  # fmt: skip


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda each: each[0])
def test_published_encoders(published: Any, encoder: Path, tmp_path: Path) -> None:
    name, pooling, modules, prompts, wanted = published
    folder = tmp_path / f"models--{name.replace('/', '--')}" / "snapshots" / "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"
    said = {"prompts": prompts, "default_prompt_name": None}
    make_published(folder, encoder, pooling=pooling, modules=modules, said=said, _name_or_path="bert-base-uncased")
    spec = read_spec(str(folder), folder, Overrides())
    assert (spec.pooling, spec.query_prefix, spec.passage_prefix) == wanted
    assert (spec.normalise, spec.dimension) == (True, 16 * len(wanted[0].split("+")))


@pytest.mark.parametrize(("spelt", "query"), [
    ("BAAI_bge-base-en-v1.5", BGE), ("bge_base_en_v1.5", BGE), ("bge-base-zh-v1___5", ZH), ("e5_base_v2", "query: "),
    ("BAAI/bge-base-en-v1.5@main", BGE), ("bge-base-en-v1.5/checkpoint-300", BGE), ("E5-Base-v2-ft", "query: "),
    ("e5-base-tests/my-encoder", None), ("mye5-base", None),
])  # fmt: skip
def test_a_family_is_known_by_whole_words_of_the_name(spelt: str, query: str | None) -> None:
    family = family_of(f"/models/{spelt}")
    assert (family.query if family else None) == query


@pytest.mark.parametrize(("said", "query", "passage", "untaken"), [
    ({"prompts": {"retrieval.query": "Q", "retrieval.passage": "P", "separation": "S"}}, "Q", "P", "separation"),
    ({"prompts": {"query": "", "document": "", "web_search_query": "W", "sts_query": "S"}}, "W", "", "sts_query"),
    ({"prompts": {"msmarco": "M"}, "default_prompt_name": "msmarco"}, "M", "M", ""),
    ({"prompts": {"code_query": "C", "query": "Q"}, "default_prompt_name": "code_query"}, "Q", "", "code_query"),
    ({"prompts": {"code_query": "C"}, "default_prompt_name": "code_query"}, "C", "", ""),
    ({"prompts": {"query": "", "document": ""}}, "query: ", "passage: ", ""),
    ({"prompts": {"STS": "S"}}, "query: ", "passage: ", "STS"),
])  # fmt: skip
def test_prompts_by_any_of_their_names(
    said: Json, query: str, passage: str, untaken: str, encoder: Path, tmp_path: Path
) -> None:
    folder = make_published(tmp_path / "e5-base", encoder, pooling=old("mean"), said=said)
    spec = read_spec(str(folder), folder, Overrides())
    assert (spec.query_prefix, spec.passage_prefix, spec.untaken) == (query, passage, untaken)


@pytest.mark.parametrize("pooling", [
    *(spell(mode) for spell in (old, new) for mode in POOLINGS.values()), old("mean", "cls"), new("mean", "lasttoken"),
    {"pooling_mode_mean_tokens": False}, {"include_prompt": False} | new("mean"),
], ids=lambda each: ",".join(str(value if key == "pooling_mode" else key) for key, value in each.items() if value),
)  # fmt: skip
def test_vectors_of_every_pooling_are_those_of_sentence_transformers(
    pooling: Json, encoder: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    said = {"prompts": {"query": "find: ", "document": "text: "}}
    folder = make_published(tmp_path / "e", encoder, pooling=pooling, modules=NORMAL, said=said)
    texts = ["iron", "a violin has four strings", "bread " * 40]
    own, ours = SentenceTransformer(str(folder), device="cpu"), Encoder(folder, read_spec("e", folder, Overrides()))
    assert np.allclose(ours.encode_passages(texts), own.encode_document(texts), atol=1e-5)
    assert np.allclose(ours.encode_queries(texts), own.encode_query(texts), atol=1e-5)


@pytest.mark.parametrize("own", [
    {"query_length": 4}, {"document_length": 4}, {"do_lower_case": True}, {"max_seq_length": 7},
    {"processing_kwargs": {"text": {"max_length": 6}}},
], ids=str)  # fmt: skip
def test_what_a_folder_asks_of_its_transformer_is_kept(own: Json, encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = make_published(tmp_path / "e", encoder, pooling=new("mean"), modules=NORMAL)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64} | own))
    own_model, ours = SentenceTransformer(str(folder)), Encoder(folder, read_spec("e", folder, Overrides()))
    texts = ["Iron is a metal", "bread"]
    assert np.allclose(ours.encode_queries(texts), own_model.encode_query(texts), atol=1e-5)
    assert np.allclose(ours.encode_passages(texts), own_model.encode_document(texts), atol=1e-5)


def test_a_dense_layer_a_shorter_vector_and_inner_products(encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense

    said = {"similarity_fn_name": "dot", "truncate_dim": 5}
    folder = make_published(tmp_path / "e", encoder, pooling=old("cls", "max"), modules=("Dense",), said=said)
    Dense(32, 8).save(str(folder / "2_Dense"))
    spec = read_spec("e", folder, Overrides())
    assert (spec.dimension, spec.normalise) == (5, False)
    wanted = SentenceTransformer(str(folder), device="cpu").encode(["iron"])
    for found in (Encoder(folder, spec).encode_passages(["iron"]), Encoder(folder, spec).encode_queries(["iron"])):
        assert np.allclose(found, wanted, atol=1e-5)
    assert asyncio.run(EncoderRanker(str(folder)).scores("iron", ["iron"])) == [1.0]
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="2_Dense holds no safetensors"):
        read_spec("e", folder, Overrides())


def test_a_transformer_in_a_folder_of_its_own(encoder: Path, tmp_path: Path) -> None:
    folder = make_published(tmp_path / "e", encoder, pooling=old("cls"), said={})
    (folder / "0_Transformer").mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                 "sentence_bert_config.json"):  # fmt: skip
        (folder / file).rename(folder / "0_Transformer" / file)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    found, wanted = (Encoder(at, read_spec("e", at, Overrides(query_prefix=""))) for at in (folder, encoder))
    assert np.allclose(found.encode_queries(["iron"]), wanted.encode_queries(["iron"]), atol=1e-6)


def test_normalisation_is_as_asked_for_whatever_the_modules_say(encoder: Path, tmp_path: Path) -> None:
    folder = make_published(tmp_path / "e", encoder, pooling=old("cls"), modules=NORMAL, said={})
    for asked in (None, True, False):
        spec = read_spec("e", folder, Overrides(normalise=asked))
        length = np.linalg.norm(Encoder(folder, spec).encode_passages(["iron"]))
        assert (abs(length - 1) < 1e-5) == (asked is not False)


@pytest.mark.parametrize(("config", "tokens"), [
    ({"max_position_embeddings": 48}, 48), ({"max_position_embeddings": 48, "model_type": "roberta"}, 46),
    ({"max_position_embeddings": -1}, 100), ({"max_position_embeddings": None, "n_positions": 70}, 70),
    ({"text_config": {"max_position_embeddings": 30}}, 30),
])  # fmt: skip
def test_tokens_that_are_read(config: Json, tokens: int, encoder: Path, tmp_path: Path) -> None:
    folder = make_published(tmp_path / "bge-m3", encoder, pooling=None, pad_token_id=1, **config)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"model_max_length": 100}))
    assert read_spec(str(folder), folder, Overrides()).max_length == tokens
    (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 20}')
    assert read_spec(str(folder), folder, Overrides()).max_length == 20


XLM: Json = {"model_type": "xlm-roberta", "max_position_embeddings": 66}


@pytest.mark.parametrize(("own", "tokenizer", "config", "tokens"), [
    (66, 64, XLM | {"pad_token_id": 1}, 64), (66, 10**30, XLM | {"pad_token_id": None}, 64), (10**30, 100, {}, 100),
    (None, 10**30, {}, 128), (None, 1e30, {}, 128), (500, 10**30, {}, 128), (10**30, 10**30, {"n_positions": 90}, 90),
    (10**30, 10**30, {}, None),
])  # fmt: skip
def test_a_length_that_is_no_limit_or_beyond_the_positions(
    own: int | None, tokenizer: float, config: Json, tokens: int | None, encoder: Path, tmp_path: Path
) -> None:
    positions = {"max_position_embeddings": 128 if tokens == 128 or tokens == 100 else None}
    folder = make_published(tmp_path / "e", encoder, pooling=old("cls"), **positions | config)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"model_max_length": tokenizer}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": own}))
    if tokens is None:
        with pytest.raises(ConfigError, match="does not say how many tokens the model reads; give --max_length"):
            read_spec("e", folder, Overrides())
    else:
        assert read_spec("e", folder, Overrides()).max_length == tokens


def test_texts_as_long_as_the_positions_are_encoded_and_longer_ones_refused(encoder: Path, tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    shape: Json = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    folder = make_published(tmp_path / "e", encoder, pooling=old("cls"))
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 42}')
    RobertaModel(RobertaConfig(vocab_size=400, max_position_embeddings=42, **shape)).save_pretrained(folder)
    for name, places in ((folder, 40), (encoder, 128)):
        longest = read_spec("e", name, Overrides(max_length=places if name == encoder else None))
        assert longest.max_length == places
        assert Encoder(name, longest).encode_passages(["bread " * 200]).shape == (1, 16)
        with pytest.raises(ConfigError, match=f"has places for {places} tokens, and is to read {places + 2}; give"):
            Encoder(name, read_spec("e", name, Overrides(max_length=places + 2)))


def test_layers_in_folders_of_any_name_are_fetched_loaded_and_hashed_alone(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import filter_repo_objects
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import LayerNorm

    whole = make_published(tmp_path / "stella", encoder, pooling=old("mean"), modules=("Dense_8", "LayerNorm", "Dense"))
    listed = (whole / "modules.json").read_text().replace("models.Dense_8", "models.Dense")
    (whole / "modules.json").write_text(listed)
    for layer, place in ((Dense(16, 8), "2_Dense_8"), (LayerNorm(8), "3_LayerNorm"), (Dense(8, 4), "4_Dense"),
                         (Dense(16, 12), "2_Dense"), (Dense(16, 4), "2_Dense_4")):  # fmt: skip
        (whole / place).mkdir(exist_ok=True)
        layer.save(str(whole / place))
    spec = read_spec("e", whole, Overrides())
    wanted = SentenceTransformer(str(whole), device="cpu").encode(["iron"], normalize_embeddings=True)
    assert np.allclose(Encoder(whole, spec).encode_passages(["iron"]), wanted, atol=1e-5)
    asked: list[str] = []
    snapshot = "huggingface_hub.snapshot_download"
    monkeypatch.setattr(snapshot, lambda _, allow_patterns, **__: asked.extend(allow_patterns))
    with pytest.raises(TypeError):  # this hub gives no folder
        find_encoder("NovaSearch/stella")
    files = [str(file.relative_to(whole)) for file in whole.rglob("*") if file.suffix in (".json", ".safetensors")]
    assert {*filter_repo_objects(files, allow_patterns=asked)} == {*files}
    copy = shutil.copytree(whole, tmp_path / "copy", ignore=shutil.ignore_patterns("2_Dense", "2_Dense_4"))
    for before, after in (("4_Dense", "4_Dense_4"), ("", "0_Transformer")):  # as another program's copy names them
        listed = json.loads((copy / "modules.json").read_text())
        (copy / after).mkdir()
        for file in (copy / (before or ".")).glob("*.*"):
            if file.is_file() and "modules" not in file.name:
                file.rename(copy / after / file.name)
        listed = [entry | {"path": after} if entry["path"] == before else entry for entry in listed]
        (copy / "modules.json").write_text(json.dumps(listed))
        assert read_spec("e", copy, Overrides()).weight_hash == spec.weight_hash


@pytest.mark.parametrize(("name", "config", "modules", "said", "reason"), [
    ("colbertv2.0", {"architectures": ["HF_ColBERT"]}, None, {}, "a vector of every token"),
    ("GTE-ModernColBERT-v1", {}, ["pylate.models.Dense.Dense"], {}, "a vector of every token"),
    ("e", {}, ["sentence_transformers.models.Dense"], {"model_type": "MultiVectorEncoder"}, "a vector of every token"),
    ("splade-v3", {"architectures": ["BertForMaskedLM"]}, None, {}, "weights of words .* --hybrid"),
    ("e", {}, ["sentence_transformers.sparse_encoder.models.SpladePooling"], {}, "weights of words"),
    ("bge-reranker-base", {"architectures": ["XLMRobertaForSequenceClassification"]}, None, {}, "is a reranker"),
    ("MedCPT-Query-Encoder", {}, None, {}, "queries and passages by a model each"),
    ("e", {"architectures": ["DPRContextEncoder"]}, None, {}, "queries and passages by a model each"),
    ("e", {}, ["sentence_transformers.models.StaticEmbedding"], {}, "static embeddings"),
    ("potion-base-8M", {"architectures": ["StaticModel"]}, None, {}, "static embeddings"),
    ("e", {"hidden_size": 10**60}, None, {}, "its vectors have 10+...0+ numbers; mend its configuration"),
    ("e", {"hidden_size": -32}, None, {}, "its vectors have -32 numbers"),
])  # fmt: skip
def test_a_model_of_another_kind_is_refused_with_the_reason(
    name: str, config: Json, modules: list[str] | None, said: Json, reason: str, encoder: Path, tmp_path: Path
) -> None:
    folder = make_published(tmp_path / name, encoder, pooling=None, said=said, **config)
    if modules:
        (folder / "modules.json").write_text(json.dumps([{"type": kind, "path": ""} for kind in modules]))
    with pytest.raises(ConfigError, match=reason):
        read_spec(str(folder), folder, Overrides(pooling="cls"))


@pytest.mark.parametrize("auto", [
    {"AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig"},
    {"AutoModel": "modeling.NewModel"},
])  # fmt: skip
def test_an_architecture_of_its_own_is_refused_by_name(auto: Json, encoder: Path, tmp_path: Path) -> None:
    folder = make_published(tmp_path / "e", encoder, pooling=old("mean"), auto_map=auto)
    with pytest.raises(ConfigError, match=f"Python code of its own .*{next(iter(auto.values()))}"):
        read_spec("e", folder, Overrides())
    known = make_published(tmp_path / "k", encoder, pooling=old("mean"), auto_map={"AutoModel": "modeling.BertModel"})
    assert read_spec("k", known, Overrides()).pooling == "mean"


def test_weights_that_the_architecture_has_and_the_file_has_not(encoder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = make_published(tmp_path / "e", encoder, pooling=old("mean"))
    weights = load_file(folder / "model.safetensors")
    for unread, lacking in (("pooler", False), ("position", True)):
        weights = {name: weight for name, weight in weights.items() if unread not in name}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        spec = read_spec("e", folder, Overrides())
        if lacking:
            said = r"lacks 1 weights of its architecture .embeddings.position_embeddings.weight"
            with pytest.raises(ConfigError, match=said):
                Encoder(folder, spec)
        else:
            assert Encoder(folder, spec).encode_passages(["iron"]).shape == (1, 16)


def test_a_pooling_that_is_none(encoder: Path, tmp_path: Path) -> None:
    folder = make_published(tmp_path / "e", encoder, pooling=new("attention"))
    with pytest.raises(ConfigError, match="pooling 'attention' is not known; give one of cls, max, mean,"):
        read_spec("e", folder, Overrides())
    assert read_spec("e", folder, Overrides(pooling="cls_token+mean")).dimension == 32


def test_a_language_model_without_a_padding_token(tmp_path: Path) -> None:
    """The last token is found behind padding too, and padding moves no place of a token."""
    from transformers import GPT2Config, GPT2Model

    from tests.models import make_tokenizer

    tokenizer = make_tokenizer(tmp_path, ["iron and bread"], "{{ messages }}")
    shape: Json = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 2}
    GPT2Model(GPT2Config(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"padding_side": "left", "model_max_length": 64, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    encoder = Encoder(tmp_path, read_spec("e", tmp_path, Overrides(pooling="lasttoken")))
    texts = ["iron", "iron and bread and bread"]
    for way in (encoder.encode_passages, encoder.encode_queries):
        assert np.allclose(way(texts), np.concatenate([way([text]) for text in texts]), atol=1e-5)


def test_a_build_says_how_it_encodes(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = str(write_corpus(tmp_path / "c.jsonl"))
    said = {"prompts": {"document": "text: ", "sts_query": "Instruct: same\nQuery: "}}
    folder = make_published(tmp_path / "own-instruct", encoder, pooling=old("cls"), said=said)
    argv = ["index", "build", "--corpus", corpus, "--encoder", str(folder), "--out", str(tmp_path / "i")]
    assert main([*argv, "--passage_prefix", "p\n", "--json"]) == 0
    shown = capsys.readouterr()
    told = {"pooling": "cls", "normalise": True, "query_prefix": "", "passage_prefix": "p\n",
            "prompts_not_taken": "sts_query"}  # fmt: skip
    said = json.loads(shown.out)
    assert {key: said[key] for key in told} == told
    for part in ("pooling cls, vectors of length 1, before queries ''", "its prompts sts_query are not taken",
                 "an instruct model and gets no instruction"):  # fmt: skip
        assert part in shown.err
    assert read_index_manifest(tmp_path / "i").encoder.untaken == "sts_query"


def test_an_index_keeps_having_no_prefix_where_this_version_knows_one(encoder: Path, tmp_path: Path) -> None:
    folder = make_published(tmp_path / "bge-base-zh", encoder, pooling=old("cls"))
    config = small(folder, query_prefix="", passage_prefix="")
    index = build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", config)
    assert encoder_here(index.manifest.encoder, {}) == folder
