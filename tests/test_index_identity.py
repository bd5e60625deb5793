"""An index belongs to all that its encoder reads, and says what the encoder does not read of it."""

from __future__ import annotations

import gc
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.commands import main
from indexes.commands.build import build_index
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import Overrides, read_spec
from indexes.folder.manifest import fingerprint, read_index_manifest
from indexes.folder.sealing import Built
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import read_json, write_json
from tests.indexing import PASSAGES, ask, edit_manifest, small, write_corpus
from tests.indexing import fingerprint as opened
from tests.models import make_published, make_tokenizer

Json = dict[str, Any]


def edited(file: Path, **changes: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    write_json(file, (read_json(file) if file.is_file() else {}) | changes)


def other_words(folder: Path) -> None:
    """The tokenizer gives its words each other's numbers."""
    told = read_json(folder / "tokenizer.json")
    words = told["model"]["vocab"]
    plain = [word for word in words if not word.startswith("[")]
    words.update(zip(plain, [words[word] for word in plain[::-1]], strict=True))
    write_json(folder / "tokenizer.json", told)


@pytest.fixture
def built(encoder: Path, tmp_path: Path) -> Built:
    """An index whose encoder lies beside it, at `e`."""
    shutil.copytree(encoder, tmp_path / "e")
    return build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", small(tmp_path / "e", pooling="mean"))


@pytest.mark.parametrize(("file", "changes"), [
    ("tokenizer.json", None), ("tokenizer_config.json", {"truncation_side": "left"}),
    ("special_tokens_map.json", {"pad_token": "[UNK]"}), ("added_tokens.json", {"x": 9}), ("vocab.txt", {}),
    ("chat_template.jinja", {}), ("preprocessor_config.json", {}), ("config.json", {"hidden_act": "relu"}),
    ("sentence_bert_config.json", {"do_lower_case": True}), ("1_Pooling/config.json", {"include_prompt": False}),
])  # fmt: skip
def test_an_encoder_that_reads_other_files_is_another(
    file: str, changes: Json | None, built: Built, tmp_path: Path
) -> None:
    other_words(tmp_path / "e") if changes is None else edited(tmp_path / "e" / file, **changes)
    with pytest.raises(ConfigError, match="not the one that made the index .its tokenizer or the configuration"):
        opened(built.path)
    config = small(tmp_path / "e", pooling="mean")
    with pytest.raises(ConfigError, match="holds an index of another encoder .config_hash"):
        build_index(str(tmp_path / "c.jsonl"), built.path, config)
    anew = build_index(str(tmp_path / "c.jsonl"), tmp_path / "anew", config)
    assert anew.manifest.fingerprint != built.manifest.fingerprint


@pytest.mark.parametrize("file", ["README.md", "onnx/model.onnx", "openvino/openvino_model.xml", "pytorch_model.bin",
                                  "trainer_state.json", "generation_config.json"])  # fmt: skip
def test_what_no_loader_reads_decides_nothing(file: str, built: Built, tmp_path: Path) -> None:
    (tmp_path / "e" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "e" / file).write_text("changed")
    assert opened(built.path) == built.manifest.fingerprint


def aged(folder: Path) -> None:
    """The index as earlier versions wrote it: without `config_hash`."""
    manifest = read_index_manifest(folder)
    old = replace(manifest.encoder, config_hash="")
    name = fingerprint(old, manifest.index, manifest.files["passages.jsonl"].sha256)
    for keys, value in ((("encoder", "config_hash"), ""), (("identity", "encoder"), old.decisive),
                        (("fingerprint",), name)):  # fmt: skip
        edit_manifest(folder, *keys, value=value)


def test_an_index_that_noted_less_is_compared_by_its_vectors(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, config = str(tmp_path / "c.jsonl"), small(tmp_path / "e", pooling="mean")
    found = ask(built.path, "iron")
    aged(built.path)
    capsys.readouterr()
    assert ask(built.path, "iron") == found
    assert build_index(corpus, built.path, config).reused
    assert capsys.readouterr().err == ""
    fresh = build_index(corpus, built.path, config.model_copy(update={"type": "flat-fp16"})).manifest
    assert fresh.encoder.config_hash == built.manifest.encoder.config_hash
    assert fresh.corpus.left_out[-1]["count"] is None, "what nobody counted is not known"
    aged(built.path)
    other_words(tmp_path / "e")
    for again in (lambda: ask(built.path, "iron"), lambda: build_index(corpus, built.path, config)):
        with pytest.raises(DataError, match="row . is not its passage's vector .*restore its encoder"):
            again()
    edit_manifest(built.path, "origin", value="adopted: e5_Flat.index")  # of which nobody knows how titles were written
    ask(built.path, "iron")
    assert "whether it is the same is not known" in capsys.readouterr().err
    gc.collect()  # the model in the error's frames, before Python 3.11 compiles anything


@pytest.mark.parametrize(("promised", "around"), [
    ({}, (0, 0)), ({"add_eos_token": True}, (0, 1)), ({"add_bos_token": True}, (1, 0)),
    ({"add_bos_token": True, "add_eos_token": True}, (1, 1)), ({"add_eos_token": True, "eos_token": None}, None),
])  # fmt: skip
def test_tokens_around_a_text_that_a_folder_promises(
    promised: Json, around: tuple[int, int] | None, tmp_path: Path
) -> None:
    from transformers import GPT2Config, GPT2Model

    words = len(make_tokenizer(tmp_path, ["iron and bread"], "{{ messages }}", bos_token="<|im_start|>"))
    shape: Json = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 2}
    GPT2Model(GPT2Config(vocab_size=words, **shape)).save_pretrained(tmp_path)
    edited(tmp_path / "tokenizer_config.json", model_max_length=8, **promised)
    spec = read_spec("e", tmp_path, Overrides(pooling="lasttoken"))
    if around is None:
        with pytest.raises(ConfigError, match="says add_eos_token, and its tokenizer cannot add them"):
            Encoder(tmp_path, spec)
        return
    found = Encoder(tmp_path, spec).tokenise(["iron", "iron and bread " * 9])
    assert found.cut == 1
    for ids in map(list, found.ids or ()):
        assert ([1] * around[0], [2] * around[1]) == (ids[: around[0]], ids[len(ids) - around[1] :])
        assert not {1, 2} & {*ids[around[0] : len(ids) - around[1]]}
        assert len(ids) <= 8


LONG = [(id, title, text * 9) if id in ("sea", "iron") else (id, title, "short") for id, title, text in PASSAGES]
CUT = "passages longer than the encoder's 64 tokens"


def test_passages_longer_than_what_the_encoder_reads_are_counted_and_said(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["index", "build", "--encoder", str(encoder), "--out", str(tmp_path / "i"), "--corpus"]

    def found(*more: str) -> tuple[list[tuple[str, int, float]], str]:
        assert main([*argv, *more]) == 0
        left = read_index_manifest(tmp_path / "i").corpus.left_out
        return [(one["kind"], one["count"], one["share"]) for one in left], capsys.readouterr().err

    corpus = str(write_corpus(tmp_path / "c.jsonl", LONG))
    left, said = found(corpus)
    assert left == [(CUT, 2, 0.3333)]
    assert "2 of 6 passages are longer than the encoder's 64 tokens; the rest of them cannot be found by vec" in said
    assert found(corpus, "--type", "flat-fp16")[0] == left
    write_corpus(tmp_path / "c.jsonl", [*LONG[1:], ("more", "", "word " * 99)])
    assert found(corpus, "--update")[0] == left, "one went, one came, one was carried over"
    write_corpus(tmp_path / "c.jsonl", [(id, "", text[:20]) for id, _, text in PASSAGES])
    left, said = found(corpus, "--update")
    assert (left, "are longer" in said) == ([], False)


def test_a_query_longer_than_what_the_encoder_reads_is_said_once(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(index, "iron", "iron " * 99, "bread " * 99)
    assert capsys.readouterr().err.count("a query is longer than the 64 tokens") == 1


@pytest.mark.parametrize(("measure", "modules", "said"), [
    (None, (), ""), ("cosine", (), ""), ("dot", (), ""), ("euclidean", ("Normalize",), ""),
    ("euclidean", (), "'euclidean'; they are ranked by the cosine"), ("manhattan", ("Normalize",), "'manhattan'"),
])  # fmt: skip
def test_a_measure_that_ranks_nothing_here_is_said(
    measure: str | None, modules: tuple[str, ...], said: str, encoder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    told = {"similarity_fn_name": measure}
    folder = make_published(tmp_path / "e", encoder, pooling={"pooling_mode": "mean"}, modules=modules, said=told)
    manifest = build_index(str(write_corpus(tmp_path / "c.jsonl")), tmp_path / "i", small(folder)).manifest
    assert manifest.encoder.similarity == (measure if said else "")
    shown = capsys.readouterr().err
    assert (said in shown, "compares vectors" in shown) == (True, bool(said))


def test_vectors_that_hold_no_numbers_are_refused(encoder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(encoder, tmp_path / "e")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"] * np.float32(1e35)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="gives a vector that holds NaN"):
        Encoder(folder, read_spec("e", folder, Overrides()))


@pytest.mark.parametrize("whole", [False, True])
def test_an_adapter_is_named(whole: bool, encoder: Path, tmp_path: Path) -> None:
    """Beside weights too: transformers would load its base in their place."""
    folder = shutil.copytree(encoder, tmp_path / "e") if whole else tmp_path
    edited(folder / "adapter_config.json", base_model_name_or_path="intfloat/e5-base-v2")
    with pytest.raises(ConfigError, match="holds an adapter of intfloat/e5-base-v2, .*merge_and_unload"):
        read_spec("e", folder, Overrides())


def test_weights_of_another_form_are_named(encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(encoder, tmp_path / "e")
    (folder / "onnx").mkdir()
    (folder / "model.safetensors").rename(folder / "onnx" / "model.onnx")
    with pytest.raises(ConfigError, match="holds no safetensors weights but onnx/model.onnx"):
        read_spec("e", folder, Overrides())
