"""Training: data and recipes that are wrong, and whole TRL runs on a tiny model."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import training.trl.sft
from steprag.config.load import load_config
from steprag.console.terminal import guarded
from steprag.engines.models import ModelFiles, adapter_hash, resolve_model
from steprag.engines.weights import load_tokenizer
from steprag.errors import ConfigError, DataError
from steprag.runs.run import read_manifest
from tests.models import make_gemma3
from tests.training_parts import lines, messages, pair_row, reply, searching, tensors, train, train_until_killed, write
from training.checks import check_keys
from training.config import LoraSection, TrainConfig
from training.job import Job, Outcome
from training.machine import check_recipe
from training.memory import Shape
from training.model import save_merged, save_policy
from training.plan import shape_of
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


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--adapter", "WARM", "--lora.rank", "8"], "and lora.rank is 8; set --lora.rank"),
        (["--adapter", "WARM", "--lora.alpha", "64"], "and lora.alpha is 64; set --lora.alpha"),
        (["--adapter", "WARM", "--lora.dropout", "0.5"], "and lora.dropout is 0.5; set --lora.dropout"),
        (["--report_to", '["tensorbord"]'], "unknown tracker 'tensorbord'"),
        (["--report_to", '["clearml"]'], "pip install 'clearml'"),
        (["--dpo.loss", "[sigmoidd]"], "unknown loss 'sigmoidd'; did you mean 'sigmoid'?"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_folder_is_made(
    tiny: Path, pairs: Path, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str],
    complaint: str,
) -> None:  # fmt: skip
    given = [str(warm) if option == "WARM" else option for option in options]
    assert train(tiny, pairs, tmp_path / "out", "dpo", *given) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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


def test_names_of_layers_are_checked(
    tiny: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tiny, pairs, tmp_path / "b", "dpo", "--lora.target", "qproj") == 2
    assert "no layer 'qproj'; it has down_proj, gate_proj," in capsys.readouterr().err


@pytest.mark.parametrize("layers", [None, 1])
def test_of_a_vision_language_model_the_text_decoder_learns(layers: int | None, tmp_path: Path) -> None:
    """Its vision tower has layers of the same names, which no text reaches; the plan counts both."""
    from training.model import freeze_below, load_policy

    files = resolve_model(make_gemma3(tmp_path))
    lora = TrainConfig(lora=LoraSection(rank=4, layers=layers))
    for config in (lora, TrainConfig(finetuning="full")):
        policy = load_policy(files, config)
        freeze_below(policy, config.lora.layers)
        learns = [name for name, weight in policy.named_parameters() if weight.requires_grad]
        assert learns
        assert all("language_model" in name or "lm_head" in name for name in learns)
        if config is lora:
            assert {name.split(".layers.")[1][0] for name in learns} == ({"1"} if layers else {"0", "1"})
            assert sum(w.numel() for w in policy.parameters() if w.requires_grad) == shape(files).lora(4, layers)
    text = sum(weight.numel() for name, weight in policy.named_parameters() if "language_model" in name)
    assert shape(files).parameters - shape(files).beside == text
    assert shape(files).beside > 0


def shape(files: ModelFiles) -> Shape:
    found = shape_of(files)
    assert found
    return found


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
def test_checkpoints_have_the_permissions_that_the_umask_leaves(
    mask: int, mode: int, tiny: Path, tmp_path: Path
) -> None:
    files, policy = resolve_model(str(tiny)), SimpleNamespace(save_pretrained=private_weights)
    tokenizer = load_tokenizer(files)
    policy.merge_and_unload = lambda: policy
    before = os.umask(mask)
    try:
        save_policy(policy, tokenizer, files, tmp_path)
        save_merged(policy, tokenizer, tmp_path)
    finally:
        os.umask(before)
    saved = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(saved) == 12
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


def test_sft_learns_and_leaves_a_checkpoint(tiny: Path, warm: Path) -> None:
    manifest = json.loads((warm / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["steps"] == 8
    assert manifest["loss_last"] < manifest["loss_first"]
    assert manifest["base"]["sha256"]
    assert manifest["prompt"] == {"profile": "transcript", "hash": "abc"}
    assert manifest["rows"] == 16
    assert manifest["trained_parameters"] == sum(tensor.numel() for tensor in tensors(warm).values())
    assert set(manifest["packages"]) >= {"torch", "trl", "peft", "transformers"}
    assert not (warm / "checkpoints").exists()
    assert {"adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {p.name for p in warm.iterdir()}
    assert json.loads((warm / "adapter_config.json").read_text())["base_model_name_or_path"] == str(tiny)
    assert all(key.count("layers") and "ref" not in key for key in tensors(warm))
    assert [row["step"] for row in lines(warm / "metrics.jsonl")] == list(range(1, 9))


def test_second_run_has_nothing_to_do(tiny: Path, pairs: Path, warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (warm / "adapter_model.safetensors").stat().st_mtime_ns
    assert train(tiny, pairs, warm, "sft", "--epochs", "2") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert (warm / "adapter_model.safetensors").stat().st_mtime_ns == before


def test_other_recipe_is_refused(tiny: Path, pairs: Path, warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tiny, pairs, warm, "sft", "--epochs", "3") == 2
    assert "epochs" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["bare", "adapter"])
def test_dpo_starts_at_its_reference_and_learns(
    tiny: Path, pairs: Path, warm: Path, tmp_path: Path, start: str
) -> None:
    options = ["--adapter", str(warm)] if start == "adapter" else []
    assert train(tiny, pairs, tmp_path, "dpo", "--epochs", "2", *options) == 0
    first, *_, last, held_out = lines(tmp_path / "metrics.jsonl")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert first["rewards/chosen"] == pytest.approx(0, abs=1e-3)
    assert first["rewards/rejected"] == pytest.approx(0, abs=1e-3)
    assert last["loss"] < first["loss"]
    assert last["rewards/margins"] > 0
    assert held_out["eval_rewards/accuracies"] == 1.0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["starting_adapter"] is not None) == (start == "adapter")
    assert not (tmp_path / "ref").exists()


def test_in_half_precision_dpo_starts_at_its_reference_to_the_bit(tiny: Path, tmp_path: Path) -> None:
    """Both score a row beside the same rows, though pairs of like prompts have replies of other lengths."""
    rows = [{**pair_row(n), "chosen": reply("I look on. " * (70 * n % 50) + searching(n))} for n in range(16)]
    write(tmp_path / "pairs.train.jsonl", rows)
    assert train(tiny, tmp_path, tmp_path / "out", "dpo", "--max_steps", "2", "--bf16", "true") == 0
    first = lines(tmp_path / "out" / "metrics.jsonl")[0]
    assert first["rewards/chosen"] == pytest.approx(0, abs=1e-7)
    assert first["rewards/rejected"] == pytest.approx(0, abs=1e-7)


def test_an_adapter_that_is_gone_by_the_end_is_named_all_the_same(
    tiny: Path, pairs: Path, warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it is a checkpoint of a run that ends meanwhile and clears its checkpoints away."""
    start = shutil.copytree(warm, tmp_path / "checkpoint")
    trained = training.trl.sft.train

    def train_and_lose_it(job: Job) -> Outcome:
        outcome = trained(job)
        shutil.rmtree(start)
        return outcome

    monkeypatch.setattr(training.trl.sft, "train", train_and_lose_it)
    assert train(tiny, pairs, tmp_path / "out", "sft", "--max_steps", "1", "--adapter", str(start)) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["starting_adapter"] == {"name": str(start), "sha256": adapter_hash(warm)}


def test_dpo_goes_on_from_the_adapter_itself(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    """One tiny step from the adapter stays near it, so its weights were loaded and not made anew."""
    import torch

    options = ["--adapter", str(warm), "--max_steps", "1", "--learning_rate", "1e-7"]
    options += ["--scheduler", "constant_with_warmup"]
    assert train(tiny, pairs, tmp_path, "dpo", *options) == 0
    before, after = tensors(warm), tensors(tmp_path)
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[key], after[key], atol=1e-5) for key in before)
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_rows_without_a_manifest_leave_the_adapter_its_prompt(
    tiny: Path, pairs: Path, warm: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    shutil.copytree(pairs, rows, ignore=shutil.ignore_patterns("manifest.json"))
    assert train(tiny, rows, tmp_path / "out", "dpo", "--adapter", str(warm), "--max_steps", "1") == 0
    assert json.loads((tmp_path / "out/manifest.json").read_text())["prompt"] == {
        "profile": "transcript",
        "hash": "abc",
    }


def test_dpo_leaves_the_lower_blocks_as_they_were(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    import torch

    options = ["--adapter", str(warm), "--lora.layers", "1", "--max_steps", "2"]
    assert train(tiny, pairs, tmp_path, "dpo", *options) == 0
    before, after = tensors(warm), tensors(tmp_path)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all(".layers.1." in key for key in changed)


def test_time_limit_ends_the_loop(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    assert train(tiny, pairs, tmp_path, "sft", "--epochs", "50", "--minutes", "0.0001", "--save_steps", "1000") == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["stopped_by"] == "minutes"
    assert manifest["steps"] == 1


@pytest.mark.parametrize(("steps", "complaint"), [("3", "step 2: the gradient is"), ("1", "eval_loss is")])
def test_numbers_that_are_none_end_training(
    steps: str, complaint: str, tiny: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = ["--learning_rate", "1e30", "--max_steps", steps, "--scheduler", "constant_with_warmup"]
    assert train(tiny, pairs, tmp_path, "dpo", *wild, "--max_grad_norm", "0") == 1
    assert f"{complaint} not a number any more; lower learning_rate" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert manifest["status"] != "done"
    assert len(lines(tmp_path / "metrics.jsonl")) == (1 if steps == "3" else 2)


@pytest.mark.slow
def test_killed_run_goes_on_to_the_same_weights(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    import torch

    options = ["--epochs", "15", "--save_steps", "5", "--adapter", str(warm), "--lora.layers", "1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(tiny, pairs, whole, "dpo", *options) == 0
    train_until_killed(tiny, pairs, killed, "dpo", *options, checkpoint="checkpoint-10")
    assert not (killed / "adapter_model.safetensors").exists()
    assert train(tiny, pairs, killed, "dpo", *options) == 0
    assert any("resumed_from" in row for row in lines(killed / "metrics.jsonl"))
    expected, found = tensors(whole), tensors(killed)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_curves_are_drawn_from_what_was_logged(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    from training.plots import curves

    assert train(tiny, pairs, tmp_path, "dpo", "--max_steps", "3") == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    panels = curves(tmp_path / "metrics.jsonl")
    assert list(panels) == ["loss", "reward accuracy", "reward margin"]
    assert [step for step, _ in panels["loss"]["loss"]] == [1, 2, 3]
    assert [step for step, _ in panels["loss"]["eval_loss"]] == [3]


def test_merged_model_is_base_and_adapter_in_one(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert train(tiny, pairs, tmp_path, "sft", "--max_steps", "2", "--merge", "true") == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(tmp_path))
    ids = torch.arange(3, 40)[None]
    assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-4)
    assert not torch.allclose(merged(ids).logits, AutoModelForCausalLM.from_pretrained(tiny)(ids).logits, atol=1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
