"""What a run takes, told before it starts: sizes, memory, refusals, room on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from steprag.config.load import load_config
from steprag.console.terminal import guarded
from steprag.engines.models import ModelFiles
from tests.training_parts import make_qwen2, train
from training.config import TrainConfig
from training.hours import PEAK, PUBLISHED, hours
from training.machine import Device, gpus
from training.memory import GIB, memory
from training.plan import DEVICES, RECIPES, main, shape_of

MADE_FOR = {
    "qwen2.5-7b-dpo": ("a100", 8),
    "qwen2.5-7b-sft": ("a100", 8),
    "qwen2.5-7b-sft-lora": ("a100", 1),
    "qwen2.5-7b-dpo-lora": ("a100", 1),
    "qwen2.5-7b-sft-lora-8": ("a100", 8),
    "qwen2.5-7b-dpo-lora-8": ("a100", 8),
    "qwen2.5-7b-dpo-qlora": ("4090", 1),
    "qwen2.5-1.5b-sft": ("4090", 1),
    "qwen2.5-1.5b-dpo": ("4090", 1),
    "qwen2.5-0.5b-sft": ("4090", 1),
    "qwen2.5-0.5b-dpo": ("4090", 1),
    "qwen2.5-1.5b-critic": ("4090", 1),
    "qwen2.5-7b-grpo": ("a100", 1),
    "qwen2.5-7b-stack-sft": ("4090", 4),
    "qwen2.5-7b-stack-grpo": ("a100", 1),
    "qwen2.5-1.5b-grpo": ("4090", 1),
}


def recipe(name: str, **overrides: Any) -> TrainConfig:
    return load_config(TrainConfig, str(RECIPES / f"{name}.yaml"), overrides)


def known(name: str) -> Any:
    """The shape of a model of the hub whose sizes are written down here."""
    return shape_of(ModelFiles(name, hub=name))


@pytest.mark.parametrize("name", MADE_FOR)
def test_recipes_fit_the_hardware_they_are_made_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    device, count = MADE_FOR[name]
    options = ["--config", str(RECIPES / f"{name}.yaml"), "--device", device, "--devices", str(count), "--json"]
    assert guarded(main, options) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"]
    assert plan["disk"] > 0
    assert (plan["rows"] is None) == (plan["hours"] is None) == name.endswith("grpo")


def test_figures_by_hand_for_the_published_recipe_on_eight_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """With 16 bytes a logit, the gathered weights of both models, and bfloat16 beside float32 in each checkpoint; a
    public run of it took 40 minutes.
    """
    plans = {}
    for name in ("sft", "dpo"):
        options = ["--config", str(RECIPES / f"qwen2.5-7b-{name}.yaml"), "--device", "a100", "--devices", "8"]
        assert guarded(main, [*options, "--json"]) == 0
        plans[name] = json.loads(capsys.readouterr().out)
    assert 35 <= plans["dpo"]["memory_total"] <= 38
    assert 45 <= plans["sft"]["memory_total"] <= 49
    assert 311 <= plans["dpo"]["disk"] <= 313
    assert 1 / 3 <= plans["dpo"]["hours"] <= 2 / 3


def test_hours_follow_from_rows_devices_and_what_is_trained() -> None:
    weights, lora = known("Qwen/Qwen2.5-7B-Instruct").multiplied, "qwen2.5-7b-dpo-lora"

    def taken(devices: int = 1, device: str = "NVIDIA A100-SXM4-80GB", **overrides: Any) -> Any:
        return hours(recipe(lora, **overrides), weights, PUBLISHED, Device(device, 80), devices)

    assert PEAK.keys() == DEVICES.keys()
    assert taken(8) == pytest.approx(taken() / 8)
    assert taken(epochs=2) == pytest.approx(2 * taken())
    assert taken(8, max_steps=10) == pytest.approx(taken(1, max_steps=10)), "as many rows for each device"
    assert taken(share_prefix=False) > 1.5 * taken()
    assert taken(finetuning="full") > taken() > taken(gradient_checkpointing=False)
    assert taken(device="NVIDIA H100 80GB HBM3") < taken()
    assert taken(device="some new one") is None


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_eight_gpus_take_the_steps_of_one(stage: str) -> None:
    one, eight = recipe(f"qwen2.5-7b-{stage}-lora"), recipe(f"qwen2.5-7b-{stage}-lora-8")
    assert one.step_rows == eight.step_rows == 32
    assert one == eight.model_copy(update={"processes": 1, "accumulation": one.accumulation})


def test_a_gpu_without_its_driver_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for said, found in (("NVIDIA-SMI has failed; exit 9", None), ("RTX 4090, [N/A]", None), ("RTX 4090, 24564", 24564)):
        text, _, code = said.partition("; ")
        tool.write_text(f"#!/bin/sh\necho '{text}'\n{code}\n")
        tool.chmod(0o755)
        assert gpus() == ([] if found is None else [Device("RTX 4090", found / 1024)])


def test_fewer_devices_than_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config", str(RECIPES / "qwen2.5-7b-dpo.yaml"), "--device", "a100", "--devices"]
    for count in ("0", "-1"):
        assert guarded(main, [*options, count]) == 2
        assert f"--devices {count}: give 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "device", "more", "nearest"),
    [
        ("7b-dpo", "4090", (), "7b-dpo"),
        ("7b-dpo", "t4", ("--finetuning", "full"), "7b-dpo-qlora.yaml"),
        *((f"1.5b-{stage}", "4090", ("--model", "Qwen/Qwen2.5-14B-Instruct"), f"1.5b-{stage}.yaml")
          for stage in ("grpo", "critic")),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_with_the_nearest_recipe(
    recipe: str, device: str, more: tuple[str, ...], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(main, ["--config", str(RECIPES / f"qwen2.5-{recipe}.yaml"), "--device", device, *more]) == 2
    error = capsys.readouterr().err
    assert f"GiB are needed on each device and {device.upper()} has " in error
    assert f"nearest recipe that fits: configs/training/qwen2.5-{nearest}" in error


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_mixture_of_experts_is_not_planned_as_one_of_them(key: str, tmp_path: Path) -> None:
    folder = make_qwen2(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: 8}))
    assert shape_of(ModelFiles("tiny", hf=folder)) is None


def test_parameters_are_the_models_own(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from training.model import load_policy

    files = ModelFiles("tiny", hf=make_qwen2(tmp_path))
    shape = shape_of(files)
    assert shape is not None
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    policy = load_policy(files, TrainConfig())
    assert shape.lora(8, None) == sum(w.numel() for w in policy.parameters() if w.requires_grad)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),  # the model cards say 7.61, 32.8 and 72.7 billion
        ("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352),
        ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648),
    ],
)
def test_a_model_is_planned_by_its_config_alone(
    name: str, parameters: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name where its sizes are known here, and by a folder with nothing but the config.json of any model."""
    sizes = json.loads((RECIPES / "models.json").read_text())[name]
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    options = ["--config", str(RECIPES / "qwen2.5-7b-dpo-qlora.yaml"), "--device", "h200", "--json"]
    for model in (name, str(tmp_path)):
        assert guarded(main, [*options, "--model", model]) == 0
        assert json.loads(capsys.readouterr().out)["parameters"] == parameters


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
    few = {"grpo.questions": 1, "grpo.episodes": 2}
    assert taken(**few, batch_size=16, gradient_checkpointing=False).cache == 0, "learning takes more than playing"
    full = {"finetuning": "full", "bf16": True}
    assert taken(**full).reference > taken(**full, **{"grpo.beta": 0}).reference == 0


def test_pairs_are_not_for_a_stage_that_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config", str(RECIPES / "qwen2.5-7b-grpo.yaml"), "--device", "a100", "--pairs", str(tmp_path)]
    assert guarded(main, options) == 2
    assert "--pairs: stage grpo learns from its own episodes" in capsys.readouterr().err


def test_sizes_come_from_the_pairs(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_qwen2(tmp_path)
    assert guarded(main, ["--model", str(model), "--pairs", str(pairs), "--device", "cpu", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rows"] == 16
    assert plan["parameters"] == shape_of(ModelFiles("tiny", hf=model)).parameters  # pyright: ignore
    assert "cores" in plan["device"]


def test_a_model_that_cannot_be_had_or_is_no_llama_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert guarded(main, ["--model", "someone/unheard-of", "--device", "a100"]) == 2
    assert "download it elsewhere and give its folder" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert guarded(main, ["--model", str(tmp_path), "--device", "a100"]) == 2
    assert "has no config.json like a llama's" in capsys.readouterr().err


def test_a_disk_without_room_is_refused_before_anything_is_made(
    tiny: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    out = tmp_path / "deep" / "out"
    assert train(tiny, pairs, out, "sft") == 2
    assert "checkpoints take up to" in capsys.readouterr().err
    assert not out.exists()


def test_out_of_memory_is_told_with_its_knobs() -> None:
    import torch

    from steprag.errors import TrainingError
    from training.trl.common import memory_told

    with (
        pytest.raises(TrainingError, match=r"CUDA out of memory.*halve batch_size.*gradient_checkpointing"),
        memory_told(),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    with pytest.raises(TrainingError, match="halve batch_size"), memory_told():
        torch.empty(1 << 50)
    with pytest.raises(RuntimeError, match="shapes"), memory_told():
        raise RuntimeError("shapes do not match")
