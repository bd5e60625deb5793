"""The law of tensors: what a folder of others holds is used, refused, or named as left out, at every door."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steprag.engines import tensors
from steprag.engines.adapters import gguf_adapter
from steprag.engines.models import resolve_model
from steprag.engines.weights import check_weights, merged_folder
from steprag.errors import StepragError
from steprag.records.jsonl import read_json, write_json
from tests.models import edited, make_encoder, make_llama, make_tokenizer, template
from tests.training_parts import pair_row, train, write
from training.config import LoraSection, TrainConfig

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
Tensors = dict[str, Any]
Capture = pytest.CaptureFixture[str]
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
Q, EMBEDDING = "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("law") / "base", ["who?"])


@pytest.fixture(scope="module")
def adapter(base: Path) -> Path:
    return make_adapter(base, base.parent / "adapter")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tensors, "_said", set())


def make_adapter(base: Path, into: Path, rows: int | None = None, **config: Any) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    if rows:
        model.resize_token_embeddings(rows)
    settings: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "lora_alpha": 8}
    get_peft_model(model, LoraConfig(r=4, **(settings | config))).save_pretrained(str(into))
    return into


def changed(folder: Path, into: Path, change: Callable[[Tensors], Tensors], **config: Any) -> Path:
    """A copy of a model or adapter with other tensors."""
    from safetensors.torch import load_file, save_file

    file = next(edited(folder, into, **config) / name for name in WEIGHTS if (folder / name).is_file())
    made = {name: tensor.clone().contiguous() for name, tensor in change(load_file(file)).items()}
    save_file(made, file, metadata={"format": "pt"})
    return into


def named(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda found: {name.replace(old, new, 1) if old else new + name: one for name, one in found.items()}


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda found: {name: one for name, one in found.items() if part not in name}


def put(name: str, change: Callable[[Any], Any]) -> Callable[[Tensors], Tensors]:
    return lambda found: found | {name: change(found.get(name))}


def spoilt(value: float) -> Callable[[Any], Any]:
    def change(one: Any) -> Any:
        one.view(-1)[3] = value
        return one

    return change


def as_it_is(found: Tensors) -> Tensors:
    return found


def complaint(door: Callable[[], object]) -> str:
    try:
        door()
    except StepragError as error:
        return str(error)
    return ""


def learns(model: Path, adapter: Path | None = None) -> None:
    from training.model import load_policy

    load_policy(resolve_model(model, adapter), TrainConfig(lora=LoraSection(rank=4)))


@pytest.mark.parametrize("wrapper", [
    "_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module.", "_fsdp_wrapped_module.", "base_model.model.",
    "_forward_module.", "language_model.",
])  # fmt: skip
@pytest.mark.parametrize("of", ["base", "adapter"])
def test_what_training_wrappers_put_into_names_is_taken_off_and_said(
    wrapper: str, of: str, base: Path, adapter: Path, tmp_path: Path, capsys: Capture
) -> None:
    from training.model import load_policy

    files = resolve_model(base, adapter)
    sound = load_policy(files, TrainConfig(lora=LoraSection(rank=4))).state_dict()
    assert not capsys.readouterr().err, "nothing is said of sound folders"
    if wrapper == "base_model.model." and of == "adapter":
        wrapper = "module."
    folder = changed(base if of == "base" else adapter, tmp_path / "base", named("", wrapper))
    given = (folder, adapter) if of == "base" else (base, folder)
    found = load_policy(resolve_model(*given), TrainConfig(lora=LoraSection(rank=4))).state_dict()
    assert all(torch.equal(found[name], sound[name]) for name in sound)
    told = [line for line in capsys.readouterr().err.splitlines() if "training wrapper" in line]
    assert len(told) == 1
    assert f"({wrapper}" in told[0]


def few_bits(found: Tensors) -> Tensors:
    return found | {Q: (found[Q] * 100).to(torch.int8), f"{Q}_scale": torch.ones(64, 1)}


def gptq(found: Tensors) -> Tensors:
    return without(Q)(found) | {Q.replace("weight", "qweight"): torch.zeros(8, 64, dtype=torch.int32)}


@pytest.mark.parametrize(("change", "config", "said"), [
    (named("", "state_dict."), {}, r"lacks 21 weights of its architecture \(.*holds 20 .* does not read \(state_dict"),
    (named("model.", "decoder."), {}, "lacks 21 weights"),
    (without("layers.1.mlp.down_proj"), {}, r"lacks 1 weights of its architecture \(model.layers.1.mlp.down_proj"),
    (as_it_is, {"num_hidden_layers": 3}, "lacks 9 weights"),
    (as_it_is, {"num_hidden_layers": 1}, r"holds 9 that LlamaForCausalLM does not read \(model.layers.1"),
    (as_it_is, {"intermediate_size": 64}, r"of another shape \(.*down_proj.weight \(64, 128\) for \(64, 64\)"),
    (as_it_is, {"attention_bias": True}, "lacks 8 weights"),
    (as_it_is, {"tie_word_embeddings": False}, "lacks 1 weights .*lm_head.weight.* set tie_word_embeddings"),
    (put("lm_head.weight", lambda _: torch.ones(261, 64)), {}, "its head and its embeddings differ"),
    (put(EMBEDDING, lambda one: torch.cat([one, one])), {}, r"of another shape \(model.embed_tokens"),
    (put(f"_orig_mod.{Q}", lambda _: torch.ones(64, 64)), {}, f"holds {Q} twice"),
    (put(Q, spoilt(float("nan"))), {}, f"{Q} holds NaN"),
    (put("model.norm.weight", spoilt(float("-inf"))), {}, "model.norm.weight holds NaN or infinity"),
    (few_bits, {}, f"{Q} I8 is stored in few bits; they look quantised: add the quantization_config"),
    (put(Q, lambda one: one.to(torch.float8_e4m3fn)), {}, "F8_E4M3 is stored in few bits"),
    (gptq, {}, "look quantised"),
    (named("q_proj.", "q_proj.base_layer."), {}, "they hold an adapter: merge it first"),
    (put("v_head.weight", lambda _: torch.ones(1, 64)), {}, ""),
    (put("lm_head.weight", lambda _: None), {}, ""),
    (put("model.layers.0.self_attn.rotary_emb.inv_freq", lambda _: torch.ones(16)), {}, ""),
])  # fmt: skip
def test_a_base_whose_tensors_are_not_those_of_its_configuration_is_refused(
    change: Callable[[Tensors], Tensors], config: dict[str, Any], said: str, base: Path, tmp_path: Path, capsys: Capture
) -> None:
    def alike(found: Tensors) -> Tensors:  # a head that is stored beside embeddings that are the same
        return {name: found[EMBEDDING] if one is None else one for name, one in change(found).items()}

    folder = changed(base, tmp_path / "base", alike, **config)
    trained = complaint(lambda: learns(folder))
    assert complaint(lambda: check_weights(resolve_model(folder))) == trained, "vLLM, LLaMA-Factory, transformers"
    assert complaint(lambda: merged_folder(resolve_model(folder))) == trained
    if not said:
        assert trained == ""
        told = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
        assert len(told) == ("v_head.weight" in str(told)), "a value head is left out, and named once"
        return
    assert re.search(said, trained), trained


@pytest.mark.parametrize(("files", "said"), [
    ({"model.embed_tokens.weight": "model-2.safetensors"}, "names model-2.safetensors, which is not in the folder"),
    ({"model.embed_tokens.weight": "../base/model.safetensors"}, "names ../base/model.safetensors, which is not in"),
    (None, "is not as it was written"),
])  # fmt: skip
def test_an_index_of_shards_names_files_of_its_folder(
    files: dict[str, str] | None, said: str, base: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(base, tmp_path / "shards")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    write_json(folder / "model.safetensors.index.json", {"weight_map": files} if files else {})
    assert said in complaint(lambda: learns(folder))


@pytest.mark.parametrize(("change", "config", "said"), [
    (named("model.layers", "thinker.layers"), {}, r"lacks 8 weights .* under its adapter_config.json does not read"),
    (without("lora_B"), {}, "lacks 4 weights .*give the base that it was made for"),
    (without("layers.1."), {}, "lacks 4 weights"),
    (as_it_is, {"target_modules": ["q_proj"]}, "holds 4 that LlamaForCausalLM .* does not read"),
    (as_it_is, {"target_modules": ["q_proj", "v_proj", "k_proj"]}, "lacks 4 weights"),
    (as_it_is, {"r": 8}, "holds 8 of another shape"),
    (lambda found: {name: spoilt(float("nan"))(one) for name, one in found.items()}, {}, "holds NaN"),
    (lambda found: {name.replace("layers.1", "layers.2"): one for name, one in found.items()}, {}, "layers.2"),
])  # fmt: skip
def test_an_adapter_whose_tensors_are_not_those_of_its_base_is_refused(
    change: Callable[[Tensors], Tensors], config: dict[str, Any], said: str, base: Path, adapter: Path, tmp_path: Path
) -> None:
    folder = changed(adapter, tmp_path / "adapter", change, **config)
    files = resolve_model(base, folder)
    told = complaint(lambda: check_weights(files))
    assert re.search(said, told), told
    assert complaint(lambda: learns(base, folder)) == told
    assert complaint(lambda: merged_folder(files)) == told
    assert complaint(lambda: gguf_adapter(folder, files)), "llama.cpp's door"


def test_an_adapter_of_another_base_is_named(base: Path, adapter: Path, tmp_path: Path, capsys: Capture) -> None:
    other = changed(base, tmp_path / "other", put(Q, torch.neg))
    same = shutil.copytree(base, tmp_path / "same")
    for given, warned in ((same, 0), (other, 1)):
        files = resolve_model(given, adapter)
        assert capsys.readouterr().err.count(f"warning: {adapter} was made for {base}") == warned
        assert not complaint(lambda files=files: check_weights(files))
    resized = make_adapter(base, tmp_path / "resized", rows=270)
    assert "its vocabulary is another one: merge it" in complaint(lambda: learns(base, resized))


def test_an_adapters_own_tokenizer_and_template_are_named(
    base: Path, adapter: Path, tmp_path: Path, capsys: Capture
) -> None:
    own = shutil.copytree(adapter, tmp_path / "own")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(base / name, own)
    resolve_model(base, own)
    assert not capsys.readouterr().err, "its base's are not its own"
    (own / "chat_template.jinja").write_text(template("qwen2-5"))
    told = read_json(own / "tokenizer.json")
    told["added_tokens"].append({**told["added_tokens"][0], "id": 261, "content": "<tool>"})
    write_json(own / "tokenizer.json", told)
    resolve_model(base, own)
    said = capsys.readouterr().err
    assert "has a chat template of its own" in said
    assert "has a vocabulary of its own ('<tool>')" in said


def test_embeddings_that_an_adapter_brings_are_kept(base: Path, adapter: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    name = f"base_model.model.{EMBEDDING}"
    brings = changed(adapter, tmp_path / "brings", put(name, lambda _: torch.ones(261, 64)))
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    write(pairs / "pairs.train.jsonl", [pair_row(n) for n in range(4)])
    options = ("--adapter", str(brings), "--lora.alpha", "8", "--lora.dropout", "0", "--max_steps", "1")
    assert train(base, pairs, tmp_path / "out", "dpo", *options) == 0
    assert load_file(tmp_path / "out" / WEIGHTS[1])[name].eq(1).all()


def test_layers_of_other_families_are_trained(tmp_path: Path, capsys: Capture) -> None:
    from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    kinds = {"gpt2": (GPT2LMHeadModel, GPT2Config), "bloom": (BloomForCausalLM, BloomConfig),
             "mamba": (MambaForCausalLM, MambaConfig)}  # fmt: skip
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    write(pairs / "pairs.train.jsonl", [pair_row(n) for n in range(4)])
    for name, (model, config) in kinds.items():
        words = len(make_tokenizer(tmp_path / name, ["who?"], template("qwen2-5")))
        model(config(vocab_size=words, **sizes)).save_pretrained(tmp_path / name)
    steps = ("--max_steps", "1")
    for name, options, said in (
        ("gpt2", ("--lora.target", "c_attn"), ""), ("gpt2", ("--lora.target", "q"), "it has c_attn, c_fc, c_proj"),
        ("bloom", (), "share_prefix is not for BloomForCausalLM"), ("bloom", ("--share_prefix", "false"), ""),
        ("mamba", ("--share_prefix", "false"), "'out_proj' is incompatible"),
    ):  # fmt: skip
        out = tmp_path / f"{name}{len(options)}{options[-1:]}"
        assert train(tmp_path / name, pairs, out, "dpo", *steps, *options) == (2 if said else 0)
        assert said in capsys.readouterr().err


def test_a_tokenizer_with_tokens_that_the_weights_lack_is_refused(base: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = changed(base, tmp_path / "base", put(EMBEDDING, lambda one: one[:250]), vocab_size=250)
    (tmp_path / "pairs.train.jsonl").write_text(json.dumps(pair_row(1)))
    assert train(folder, tmp_path, tmp_path / "out", "dpo") == 2
    assert "a token or a place that its weights lack" in capsys.readouterr().err


@pytest.mark.parametrize(("change", "said"), [
    (named("", "_orig_mod."), ""), (named("", "module."), ""), (named("", "lm_q."), "lacks 21 weights"),
    (put("encoder.layer.0.output.dense.bias", spoilt(float("nan"))), "holds NaN"),
    (put("embeddings.word_embeddings.weight", lambda one: one[:150]), "of another shape"),
])  # fmt: skip
def test_encoders_are_compared(change: Callable[[Tensors], Tensors], said: str, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from indexes.encoding.embed import Encoder
    from indexes.encoding.encoders import Overrides, read_spec
    from inference.scoring.bertscore import BertScorer

    folder = changed(make_encoder(tmp_path / "made", 0), tmp_path / "encoder", change)
    for door in (lambda: Encoder(folder, read_spec("e", folder, Overrides())), lambda: BertScorer(str(folder))):
        told = complaint(door)
        assert said in told if said else told == ""
