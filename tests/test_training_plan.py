"""What a run takes, told before it starts: sizes, memory, refusals, room on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from steprag.config.load import load_config
from steprag.console.terminal import guarded
from steprag.engines.models import ModelFiles, resolve_model
from steprag.engines.weights import load_tokenizer
from tests.training_parts import Capture, Refused, nvidia_smi
from training.config import Optimiser, TrainConfig
from training.lengths import main as lengths_main
from training.machine import Device, gpus, visible_gpus
from training.memory import GIB, OPTIMISERS, PUBLISHED, memory
from training.parity import checked_tokens
from training.plan import RECIPES, hours, main, shape_of
from training.rows import read_file

MADE_FOR = {
    "qwen2.5-7b-dpo": ("a100", 8),
    "qwen2.5-7b-sft": ("a100", 8),
    "qwen2.5-7b-sft-lora": ("a100", 1),
    "qwen2.5-7b-dpo-lora": ("a100", 1),
    "qwen2.5-7b-sft-lora-8": ("a100", 8),
    "qwen2.5-7b-dpo-lora-8": ("a100", 8),
    "qwen2.5-7b-dpo-qlora": ("4090", 1),
    "qwen2.5-7b-grpo": ("a100", 1),
    "qwen2.5-7b-stack-sft": ("4090", 4),
    "qwen2.5-7b-stack-grpo": ("a100", 1),
    "qwen2.5-32b-grpo": ("a100", 2),
}


def recipe(name: str, **overrides: Any) -> TrainConfig:
    return load_config(TrainConfig, str(RECIPES / f"{name}.yaml"), overrides)


def planned(capsys: Capture, *options: str) -> dict[str, Any]:
    """The plan that `steprag plan train` makes with these options."""
    assert guarded(main, [*options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def known(name: str) -> Any:
    """The shape of a model of the hub whose sizes are written down here."""
    return shape_of(ModelFiles(name, hub=name))


@pytest.mark.parametrize("name", MADE_FOR)
def test_recipes_fit_the_hardware_they_are_made_for(name: str, capsys: Capture) -> None:
    device, count = MADE_FOR[name]
    plan = planned(capsys, "--config", name, "--device", device, "--devices", str(count))
    assert plan["fits"]
    assert plan["disk"] > 0
    assert (plan["rows"] is None) == (plan["hours"] is None) == name.endswith("grpo")


def test_figures_by_hand_for_the_published_recipe_on_eight_gpus(capsys: Capture) -> None:
    """With 16 bytes a logit, the gathered weights of both models, and bfloat16 beside float32 in each checkpoint; a
    public run of it took 40 minutes.
    """
    sft, dpo = (planned(capsys, "--config", f"qwen2.5-7b-{stage}", "--device", "a100", "--devices", "8")
                for stage in ("sft", "dpo"))  # fmt: skip
    assert 35 <= dpo["memory_total"] <= 38
    assert 45 <= sft["memory_total"] <= 49
    assert 311 <= dpo["disk"] <= 313
    assert 1 / 3 <= dpo["hours"] <= 2 / 3


def test_hours_follow_from_rows_devices_and_what_is_trained() -> None:
    weights, lora = known("Qwen/Qwen2.5-7B-Instruct").multiplied, "qwen2.5-7b-dpo-lora"

    def taken(devices: int = 1, device: str = "NVIDIA A100-SXM4-80GB", **overrides: Any) -> Any:
        return hours(recipe(lora, **overrides), weights, PUBLISHED, Device(device, 80), devices)

    assert taken(8) == pytest.approx(taken() / 8)
    assert taken(epochs=2) == pytest.approx(2 * taken())
    assert taken(8, max_steps=10) == pytest.approx(taken(1, max_steps=10)), "as many rows for each device"
    assert taken(share_prefix=False) > 1.5 * taken()
    assert taken(finetuning="full") > taken() > taken(gradient_checkpointing=False)
    assert taken(device="NVIDIA H100 80GB HBM3") < taken()
    for other in ("some new one", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "GRID A100-10C"):
        assert taken(device=other) is None
    half = Device("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40, 3 / 7)
    assert hours(recipe(lora), weights, PUBLISHED, half, 1) == pytest.approx(taken() * 7 / 3)


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_eight_gpus_take_the_steps_of_one(stage: str) -> None:
    one, eight = recipe(f"qwen2.5-7b-{stage}-lora"), recipe(f"qwen2.5-7b-{stage}-lora-8")
    assert one.step_rows == eight.step_rows == 32
    assert one == eight.model_copy(update={"processes": 1, "accumulation": one.accumulation})


def test_a_gpu_without_its_driver_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = "GPU 0: NVIDIA A10G (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
    listing += "  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n  MIG 1c.2g.20gb  Device  1: (UUID: MIG-2)"
    rows: list[tuple[str, str, list[Device]]] = [
        ("NVIDIA-SMI has failed", "; exit 9", []),
        ("No devices were found", "", []),
        ("RTX 4090, 24564", "", [Device("RTX 4090", 24564 / 1024)]),
        ("NVIDIA GB10, [N/A]\nRTX 4090, 24564", "", [Device("NVIDIA GB10", None), Device("RTX 4090", 24564 / 1024)]),
        ("NVIDIA A10G, 23028\nNVIDIA A100-SXM4-80GB, 81920", listing, [
            Device("NVIDIA A10G", 23028 / 1024), Device("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40e9 / GIB, 3 / 7),
            Device("NVIDIA A100-SXM4-80GB MIG 1c.2g.20gb", 20e9 / GIB, 2 / 7),
        ]),
    ]  # fmt: skip
    for said, more, found in rows:
        listed, code = ("", more) if more.startswith(";") else (more, "")
        nvidia_smi(f"[ $1 = -L ] && echo '{listed}' || echo '{said}'\n{code.strip('; ')}", tmp_path, monkeypatch)
        assert gpus() == found
    assert visible_gpus() == 1, "CUDA shows a process one slice"


def test_an_unknown_card_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    nvidia_smi("echo 'NVIDIA GB10, [N/A]'", tmp_path, monkeypatch)
    assert guarded(main, ["--config", "qwen2.5-7b-dpo-lora"]) == 0
    said = capsys.readouterr().out
    assert "of an amount that its driver does not tell on each of NVIDIA GB10" in said
    assert "time     not known: unknown card; for that of one which is known give --device t4, l4, a10" in said
    assert guarded(main, ["--config", "qwen2.5-7b-grpo", "--device", "a100"]) == 0
    assert "time     not known: episodes take most of it" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "said"), [
    (("--config", "qwen2.5-7b-dpo", "--devices", "0"), "--devices 0: give 1 or more"),
    (("--config", "qwen2.5-7b-dpo", "--devices", "-1"), "--devices -1: give 1 or more"),
    (("--config", "qwen2.5-7b-grpo", "--pairs", "."), "--pairs: stage grpo learns from its own episodes"),
    (("--model", "someone/unheard-of"), "download it elsewhere and give its folder"),
    (("--model", "."), "has no config.json like a llama's"),
])  # fmt: skip
def test_what_has_no_plan_is_refused(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text("{}")
    assert guarded(main, [*options, "--device", "a100"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "device", "more", "nearest"),
    [
        ("qwen2.5-7b-dpo", "4090", (), "qwen2.5-7b-dpo"),
        ("qwen2.5-7b-dpo", "t4", ("--finetuning", "full"), "qwen2.5-7b-dpo-qlora.yaml"),
        ("qwen2.5-7b-grpo", "4090", (), "atlas-grpo.yaml"),
        ("atlas-critic", "4090", ("--model", "Qwen/Qwen2.5-14B-Instruct"), "atlas-critic.yaml"),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_with_the_nearest_recipe(
    recipe: str, device: str, more: tuple[str, ...], nearest: str, capsys: Capture
) -> None:
    assert guarded(main, ["--config", recipe, "--device", device, *more]) == 2
    error = capsys.readouterr().err
    assert f"GiB are needed on each device and {device.upper()} has " in error
    assert f"nearest recipe that fits: configs/training/{nearest}" in error


def test_parameters_are_the_models_own(qwen2: Path) -> None:
    from transformers import AutoModelForCausalLM

    from training.model import load_policy

    files = ModelFiles("tiny", hf=qwen2)
    shape = shape_of(files)
    assert shape is not None
    model = AutoModelForCausalLM.from_pretrained(qwen2)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    policy = load_policy(files, TrainConfig())
    assert shape.lora(8, None) == sum(w.numel() for w in policy.parameters() if w.requires_grad)


def sizes(kind: str, *numbers: int | None, **more: Any) -> dict[str, Any]:
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    told = {key: number for key, number in zip(keys, numbers, strict=True) if number is not None}
    return {"model_type": kind, "num_hidden_layers": 2, **told, **more}


TIED = {"tie_word_embeddings": True}
QWEN3_MOE = ("qwen3_moe", 2048, 6144, 32, 4, 151936)
SHAPES = {
    "Qwen2.5-0.5B": sizes("qwen2", 896, 4864, 14, 2, 151936, **TIED),
    "Qwen2.5-7B": sizes("qwen2", 3584, 18944, 28, 4, 152064),
    "Qwen3-0.6B": sizes("qwen3", 1024, 3072, 16, 8, 151936, head_dim=128, **TIED),
    "Qwen3-32B": sizes("qwen3", 5120, 25600, 64, 8, 151936, head_dim=128),
    "Llama-3.1-8B": sizes("llama", 4096, 14336, 32, 8, 128256),
    "Llama-3.2-1B": sizes("llama", 2048, 8192, 32, 8, 128256, head_dim=64, **TIED),
    "Falcon3-7B": sizes("llama", 3072, 23040, 12, 4, 131072, head_dim=256),
    "Gemma 2B": sizes("gemma", 2048, 16384, 8, 1, 256000),
    "Gemma 2 9B": sizes("gemma2", 3584, 14336, 16, 8, 256000),
    "Gemma 3 1B": sizes("gemma3_text", 1152, 6912, 4, 1, 262144, head_dim=256),
    "Mistral-Nemo": sizes("mistral", 5120, 14336, 32, 8, 131072, head_dim=128),
    "Phi-3-mini": sizes("phi3", 3072, 8192, 32, 32, 32064),
    "Phi-4-mini": sizes("phi3", 3072, 8192, 24, 8, 200064, **TIED),
    "GLM-4-9B": sizes("glm", 4096, 13696, 32, 2, 151552, head_dim=128, attention_bias=True),
    "GLM-4-9B-0414": sizes("glm4", 4096, 13696, 32, 2, 151552, head_dim=128, attention_bias=False),
    "SmolLM3-3B": sizes("smollm3", 2048, 11008, 16, 4, 128256),
    "OLMo-7B": sizes("olmo", 4096, 11008, 32, 32, 50304),
    "OLMo-2-7B": sizes("olmo2", 4096, 11008, 32, 32, 100352),
    "Granite-3.3-8B": sizes("granite", 4096, 12800, 32, 8, 49159, **TIED),
    "Command R7B": sizes("cohere2", 4096, 14336, 32, 8, 256000, head_dim=128),
    "Nemotron-mini": sizes("nemotron", 3072, 9216, 24, 8, 256000, head_dim=128),
    "StarCoder2-3B": sizes("starcoder2", 3072, 12288, 24, 2, 49152),
    "Pythia-1B": sizes("gpt_neox", 2048, 8192, 8, None, 50304),
    "Arcee 4.5B": sizes("arcee", 2560, 18432, 20, 4, 128004, head_dim=128),
    "EXAONE-4-1.2B": sizes("exaone4", 2048, 4096, 32, 8, 102400, head_dim=64, **TIED),
    "Hunyuan-4B": sizes("hunyuan_v1_dense", 3072, 8192, 32, 8, 120818, head_dim=128, **TIED),
    "Mixtral-8x7B": sizes("mixtral", 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
    "Qwen1.5-MoE": sizes("qwen2_moe", 2048, 5632, 16, 16, 151936, num_experts=60, moe_intermediate_size=1408,
                         shared_expert_intermediate_size=5632, num_experts_per_tok=4),
    "Qwen3-30B-A3B": sizes(*QWEN3_MOE, head_dim=128, num_experts=128, moe_intermediate_size=768, num_experts_per_tok=8),
    "one dense block": sizes(*QWEN3_MOE, head_dim=128, num_experts=16, moe_intermediate_size=768, mlp_only_layers=[0]),
    "OLMoE-1B-7B": sizes("olmoe", 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8),
    "Seed-OSS-36B": sizes("seed_oss", 5120, 27648, 80, 8, 155136, head_dim=128, attention_bias=True),
    "ERNIE-4.5-0.3B": sizes("ernie4_5", 1024, 3072, 16, 2, 103424, head_dim=128),
}  # fmt: skip
"""What published config.json files say of sizes, with two blocks."""
NESTED = {"model_type": "gemma3", "text_config": sizes("gemma3_text", 2560, 10240, None, None, None)}


def written(config: dict[str, Any], folder: Path) -> ModelFiles:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelFiles("shape", hf=folder)


@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_counted_as_transformers_has_them(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    counted, config = shape_of(written(SHAPES[name], tmp_path)), dict(SHAPES[name])
    assert counted
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config.pop("model_type")](**config))
    assert counted.parameters == sum(weight.numel() for weight in model.parameters())
    linear = [part for part in model.get_decoder().layers.modules() if isinstance(part, torch.nn.Linear)]
    assert counted.lora(8, None) == 8 * sum(part.in_features + part.out_features for part in linear)


@pytest.mark.parametrize("kind", ["minicpm", ["a", "b"], None])
def test_an_unknown_type_is_counted_like_a_llama_and_said_so(kind: object, tmp_path: Path, capsys: Capture) -> None:
    written({**SHAPES["Llama-3.1-8B"], "model_type": kind}, tmp_path)
    assert guarded(main, ["--model", str(tmp_path), "--device", "a100"]) == 0
    assert "parameters, counted like a llama's\n" in capsys.readouterr().out


def test_a_nested_config_has_the_defaults_of_its_type_and_its_vision_tower_counts(tmp_path: Path) -> None:
    flat = shape_of(written(sizes("gemma3_text", 2560, 10240, 8, 4, 262208, head_dim=256), tmp_path))
    nested = shape_of(written(NESTED, tmp_path))
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    seeing = shape_of(written({**NESTED, "vision_config": vision}, tmp_path))
    assert flat
    assert nested
    assert seeing
    assert nested.parameters == flat.parameters
    assert seeing.parameters - nested.parameters == pytest.approx(417e6, rel=0.03), "SigLIP's 417 million"


@pytest.mark.parametrize("keys", [
    {"kv_lora_rank": 512}, {"mamba_d_state": 128}, {"linear_conv_kernel_dim": 4}, {"hidden_size_per_layer_input": 256},
    {"text_config": sizes("llama4_text", 64, 64, 4, 4, 100, num_local_experts=16)}, {"num_experts": 8},
    {"num_local_experts": 8}, {"n_routed_experts": 8},
])  # fmt: skip
def test_blocks_of_another_kind_are_not_planned_as_a_llamas(keys: dict[str, Any], tmp_path: Path) -> None:
    assert shape_of(written({**SHAPES["Llama-3.1-8B"], **keys}, tmp_path)) is None


@pytest.mark.parametrize(("name", "parameters"), [
    ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),  # the model cards say 7.61, 32.8 and 72.7 billion
    ("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352),
    ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648),
])  # fmt: skip
def test_a_model_is_planned_by_its_config_alone(name: str, parameters: int, tmp_path: Path, capsys: Capture) -> None:
    """By its name where its sizes are known here, and by a folder with nothing but the config.json of any model."""
    sizes = json.loads((RECIPES / "models.json").read_text())[name]
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    for model in (name, str(tmp_path)):
        plan = planned(capsys, "--config", "qwen2.5-7b-dpo-qlora", "--device", "h200", "--model", model)
        assert plan["parameters"] == parameters


def test_every_knob_that_is_named_for_memory_helps() -> None:
    shape = known("Qwen/Qwen2.5-7B-Instruct")

    def gib(devices: int = 1, **overrides: Any) -> float:
        return memory(recipe("qwen2.5-7b-dpo-lora", **overrides), shape, PUBLISHED, devices).total

    usual = gib()
    assert gib(batch_size=2) < usual
    assert gib(quantization="nf4") < usual - 8
    assert gib(gradient_checkpointing=False) > usual
    assert gib(max_length=1024) < usual
    assert gib(finetuning="full") > usual + 80
    assert gib(quantization="nf4") < gib(quantization="int8") < usual
    assert gib(finetuning="full", optim="adamw_8bit") < gib(finetuning="full") - 40
    assert set(OPTIMISERS) == set(get_args(Optimiser))
    full = {"trainer": "llamafactory", "finetuning": "full"}
    assert gib(8, **full, deepspeed="zero3") < gib(8, **full, deepspeed="zero2") < gib(8, **full)


def test_episodes_take_what_playing_or_learning_does() -> None:
    shape = known("Qwen/Qwen2.5-7B-Instruct")

    def taken(**overrides: Any) -> Any:
        return memory(recipe("qwen2.5-7b-grpo", **overrides), shape, PUBLISHED, 1)

    usual = taken()
    sequences = 16 * 8 * PUBLISHED.longest
    assert usual.cache * GIB == pytest.approx(sequences * 2 * 2 * 512 * 28), "keys and values of 28 blocks, in bf16"
    assert taken(**{"grpo.questions": 8}).cache == pytest.approx(usual.cache / 2)
    assert taken(processes=2, **{"grpo.questions": 16}).cache == pytest.approx(usual.cache / 2)
    engine = taken(**{"grpo.engine": "vllm"})
    assert engine.engine == pytest.approx(usual.cache + 2 * shape.parameters / 2**30, rel=0.01)
    assert taken(**{"grpo.engine": "http://elsewhere/v1"}).engine == engine.cache == 0
    few = {"grpo.questions": 1, "grpo.episodes": 2}
    assert taken(**few, batch_size=16, gradient_checkpointing=False).cache == 0, "learning takes more than playing"
    full = {"finetuning": "full", "bf16": True}
    logged = taken(**full, **{"grpo.beta": 0, "grpo.log_kl": True}).reference
    assert taken(**full).reference == logged == pytest.approx(shape.parameters * 4 / GIB)
    assert taken(**full, **{"grpo.beta": 0}).reference == usual.reference == 0
    shards = recipe("qwen2.5-7b-grpo", **full, deepspeed="zero3", processes=2)
    assert memory(shards, shape, PUBLISHED, 2).reference == pytest.approx(logged / 2)
    sharded = {"processes": 2, "deepspeed": "zero3"}
    halves = memory(recipe("qwen2.5-7b-grpo", **sharded), shape, PUBLISHED, 2)
    assert halves.gathered == pytest.approx(2 * halves.weights), "whole weights play"


def test_sizes_come_from_the_pairs(pairs: Path, qwen2: Path, capsys: Capture) -> None:
    plan = planned(capsys, "--model", str(qwen2), "--pairs", str(pairs), "--device", "cpu")
    assert plan["rows"] == 16
    assert plan["parameters"] == shape_of(ModelFiles("tiny", hf=qwen2)).parameters  # pyright: ignore
    assert "cores" in plan["device"]


QWEN_32B = ("--model", "Qwen/Qwen2.5-32B-Instruct", "--device", "a100", "--devices", "2")


@pytest.mark.parametrize(("options", "parts"), [
    (("--config", "qwen2.5-7b-dpo-lora", *QWEN_32B, "--deepspeed", "zero3"), {"weights": 30.5}),  # two bytes, halved
    (("--config", "qwen2.5-7b-dpo-qlora", *QWEN_32B), {"weights": 17.9}),  # four bits, and embeddings in two bytes
    (("--config", "qwen2.5-32b-grpo", "--device", "a100", "--devices", "2"), {"weights": 17.9, "cache": 18.7}),
])  # fmt: skip
def test_32_billion_weights_fit_two_gpus(options: tuple[str, ...], parts: dict[str, float], capsys: Capture) -> None:
    plan = planned(capsys, *options)
    assert plan["fits"]
    assert {name: plan["memory"][name] for name in parts} == pytest.approx(parts, rel=0.05)


def test_what_to_change_is_said_and_does_fit(capsys: Capture) -> None:
    ask = ["--config", "qwen2.5-7b-sft", "--trainer", "trl", "--deepspeed", "none", *QWEN_32B]
    assert guarded(main, ask) == 2
    said = capsys.readouterr().err
    options = said.partition("this one does with ")[2].partition(" (")[0].split()
    assert options == ["--finetuning", "lora"], "each device holds the whole base in bfloat16"
    assert guarded(main, [*ask, *options]) == 0
    assert guarded(main, ["--config", "qwen2.5-7b-sft", *QWEN_32B[:2], "--device", "t4"]) == 2
    assert "this one does with" not in capsys.readouterr().err, "nothing makes 32 billion fit 16 GB"


def test_lengths_of_questions_and_rows_are_told_and_drawn(
    pairs: Path, tiny: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A pairs folder by its files, in tokens as training counts them; question files in any spelling; in characters."""
    asked = tmp_path / "asked.jsonl"
    asked.write_text(
        '{"_id": "1", "question": "Who?", "answer": "me"}\n{"_id": "2", "question": "Where to?", "answer": "x"}\n'
    )
    out = tmp_path / "out"
    assert guarded(lengths_main, [str(asked), "--out", str(out), "--max_length", "5"]) == 0
    assert "  question      n 2, mean 6.5, median 6.5, p95 8.75, max 9, longer 1\n" in capsys.readouterr().out
    (told,) = json.loads((out / "lengths.json").read_text())["files"].values()
    assert told["golden answer"]["max"] == 2
    assert guarded(lengths_main, [str(pairs), str(asked), "--tokenizer", str(tiny), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"tokens of {tiny}" in said
    told = json.loads((out / "lengths.json").read_text())["files"]
    rows = checked_tokens(read_file(pairs / "pairs.train.jsonl", "dpo"), load_tokenizer(resolve_model(str(tiny))), 999)
    named = told[str(pairs / "pairs.train.jsonl")]
    assert set(named) == {"prompt", "chosen", "rejected", "all"}
    assert named["all"]["max"] == max(row.length for row in rows)
    assert set(told[str(pairs / "steps.val.jsonl")]) == {"prompt", "completion", "all"}
    assert (out / "lengths.png").stat().st_size > 5000
    assert guarded(lengths_main, [str(tmp_path)]) == 2
    assert "is a folder without sft.train.jsonl, pairs.train.jsonl" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("")
    assert guarded(lengths_main, [str(tmp_path / "empty.jsonl")]) == 2


def test_a_disk_without_room_is_refused_first(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    refused("sft", "checkpoints take up to")


def test_out_of_memory_is_told_with_its_knobs() -> None:
    import torch

    from steprag.errors import TrainingError
    from training.trl.common import explained_out_of_memory

    told = r"CUDA out of memory.*halve batch_size.*gradient_checkpointing"
    with pytest.raises(TrainingError, match=told), explained_out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    with pytest.raises(TrainingError, match="halve batch_size"), explained_out_of_memory():
        torch.empty(1 << 50)
    with pytest.raises(RuntimeError, match="shapes"), explained_out_of_memory():
        raise RuntimeError("shapes do not match")
