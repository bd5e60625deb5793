"""Training: data and recipes that are wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steprag.cli import guarded
from steprag.config.load import load_config
from steprag.engines.models import ModelFiles
from steprag.errors import ConfigError, DataError
from steprag.runs.run import read_manifest
from tests.training_parts import messages, pair_row, reply, train, write
from training.checks import check_keys, check_recipe
from training.config import TrainConfig
from training.model import save_merged, save_policy
from training.rows import data_files, read_training
from training.train import main


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_missing_file_is_named(tmp_path: Path, stage: str) -> None:
    path, _ = data_files(tmp_path, stage)
    with pytest.raises(ConfigError, match=path.name):
        read_training(path, stage)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        read_training(write(tmp_path / "pairs.train.jsonl", []), "dpo")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chosen": reply("So the answer is <answer> nothing </answer>")}, "the same text"),
        ({"rejected": reply(" ")}, "rejected: the message is empty"),
        ({"chosen": reply("a") + reply("b")}, "chosen: expected one assistant message, found 2"),
        ({"prompt": messages(1)[:1]}, "its last message is neither the user's nor the assistant's"),
        ({"prompt": [*messages(1), *reply(" ")]}, "that is to be continued is empty"),
        ({"margin": "wide"}, "margin"),
    ],
)
def test_bad_pair_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = write(tmp_path / "pairs.train.jsonl", [pair_row(1), {**pair_row(2), **change}])
    with pytest.raises(DataError, match=problem) as caught:
        read_training(path, "dpo")
    assert caught.value.line == 2


def test_bad_data_makes_no_run_folder_and_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "pairs.train.jsonl", [{"prompt": []}])
    out = tmp_path / "out"
    code = guarded(main, ["--pairs", str(tmp_path), "--out", str(out), "--model", "no/such-model"])
    assert code == 2
    assert not out.exists()
    error = capsys.readouterr().err.strip()
    assert "pairs.train.jsonl:1" in error
    assert "\n" not in error


def test_help_needs_no_torch() -> None:
    code = "import sys, training.train; sys.exit('torch' in sys.modules or 'trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_recipes_load() -> None:
    folder = Path(__file__).parent.parent / "configs" / "training"
    recipes = {path.stem: load_config(TrainConfig, str(path)) for path in folder.glob("*.yaml")}
    assert len(recipes) >= 12
    for name, recipe in recipes.items():
        check_keys(recipe)
        assert recipe.stage == "sft" if "warmstart" in name else recipe.stage in name.split("-")
    published = recipes["qwen2.5-7b-dpo"]
    assert (published.dpo.beta, published.learning_rate, published.epochs) == (0.3, 1e-6, 1)
    assert (published.warmup, published.scheduler, published.finetuning, published.bf16) == (
        0.2,
        "cosine",
        "full",
        True,
    )


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate"):
        load_config(TrainConfig, None, {"learningrate": 1})


@pytest.mark.parametrize(("key", "value"), [("rank", "8"), ("alpha", "64"), ("dropout", "0.5")])
def test_an_adapter_of_another_shape_is_refused(
    tiny: Path, pairs: Path, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    assert train(tiny, pairs, tmp_path / "out", "dpo", "--adapter", str(warm), f"--lora.{key}", value) == 2
    assert f"and lora.{key} is {value}; set --lora.{key}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tracker", "complaint"), [("tensorbord", "unknown tracker 'tensorbord'"), ("clearml", "pip install 'clearml'")]
)
def test_trackers_that_are_not_there_are_named_before_training(
    tiny: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tracker: str, complaint: str
) -> None:
    assert train(tiny, pairs, tmp_path / "out", "sft", "--report_to", f'["{tracker}"]') == 2
    assert complaint in capsys.readouterr().err


def test_kernels_of_liger_need_their_package_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"liger: only trainer trl"):
        check_keys(TrainConfig(liger=True, trainer="llamafactory"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"liger: liger_kernel is not installed here; run: pip install"):
        check_recipe(TrainConfig(liger=True))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    with pytest.raises(ConfigError, match="run on a GPU and none is here"):
        check_recipe(TrainConfig(liger=True))


def test_names_of_losses_and_layers_are_checked(
    tiny: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tiny, pairs, tmp_path / "a", "dpo", "--dpo.loss", "[sigmoidd]") == 2
    assert "unknown loss 'sigmoidd'; did you mean 'sigmoid'?" in capsys.readouterr().err
    assert train(tiny, pairs, tmp_path / "b", "dpo", "--lora.target", "qproj") == 2
    assert "no layer 'qproj'; it has down_proj, gate_proj," in capsys.readouterr().err


def test_layers_are_of_adapters_alone(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    """Full fine-tuning trains every block, and says so."""
    counts = []
    for layers in ("1", "none"):
        options = ("--finetuning", "full", "--lora.layers", layers, "--max_steps", "1")
        assert train(tiny, pairs, tmp_path / layers, "dpo", *options) == 0
        counts.append(read_manifest(tmp_path / layers)["trained_parameters"])
    assert counts[0] == counts[1]


def test_model_without_chat_template_is_refused_before_a_folder_is_made(
    tiny: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = shutil.copytree(tiny, tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    assert train(base, pairs, tmp_path / "out", "sft") == 2
    assert "base has no chat template; train an instruct model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_checkpoints_have_the_permissions_that_the_umask_leaves(mask: int, mode: int, tmp_path: Path) -> None:
    tokenizer: Any = SimpleNamespace(save_pretrained=lambda folder: None)
    policy, files = SimpleNamespace(save_pretrained=private_weights), ModelFiles("base", hub="nobody/base")
    policy.merge_and_unload = lambda: policy
    before = os.umask(mask)
    try:
        save_policy(policy, tokenizer, files, tmp_path)
        save_merged(policy, tokenizer, files, tmp_path)
    finally:
        os.umask(before)
    saved = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(saved) == 4
    assert {path.stat().st_mode & 0o777 for path in saved} == {mode}
    assert (tmp_path / "merged").stat().st_mode & 0o777 == 0o777 & ~mask


def private_weights(folder: Path) -> None:
    """What transformers leaves: safetensors makes its files private."""
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch(0o600)


def test_adapter_of_another_hub_model_is_refused(
    pairs: Path, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = shutil.copytree(warm, tmp_path / "adapter")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "Qwen/Qwen2-7B-Instruct"
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    (adapter / "manifest.json").unlink()  # as adapters from elsewhere; else the change itself is refused
    options = ["--adapter", str(adapter)]
    assert train(Path("Qwen/Qwen2.5-7B-Instruct"), pairs, tmp_path / "out", "dpo", *options) == 2
    assert "was made for Qwen/Qwen2-7B-Instruct, not for Qwen/Qwen2.5-7B-Instruct" in capsys.readouterr().err
