"""Training: data and recipes that are wrong, and whole TRL runs on a tiny model."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import training.trl.sft
from steprag.config.load import load_config
from steprag.engines.models import adapter_hash, resolve_model
from steprag.engines.weights import load_tokenizer
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import read_json, write_json
from steprag.runs.run import read_manifest
from tests import training_parts as made
from tests.models import make_gemma3
from tests.training_parts import Capture, Refused, lines, moved, tensors, train, train_until_killed, write
from training.checks import check_keys
from training.config import DpoSection, GrpoSection, LoraSection, TrainConfig
from training.job import Job, Outcome, last_checkpoint
from training.machine import check_recipe
from training.model import save_merged, save_policy
from training.plan import shape_of
from training.plots import curves
from training.rows import data_files, read_training
from training.train import gather


def test_a_missing_and_an_empty_file_are_named(tmp_path: Path) -> None:
    for stage in ("sft", "dpo"):
        path, _ = data_files(tmp_path, stage)
        with pytest.raises(ConfigError, match=path.name):
            read_training(path, stage)
    with pytest.raises(DataError, match="holds no rows"):
        read_training(write(tmp_path / "pairs.train.jsonl", []), "dpo")


@pytest.mark.parametrize(("stage", "row", "change", "problem"), [
    *(("dpo", made.pair_row(2), *bad) for bad in (
        ({"chosen": made.reply("So the answer is <answer> nothing </answer>")}, "the same text"),
        ({"rejected": made.reply(" ")}, "rejected: the message is empty"),
        ({"chosen": made.reply("a") + made.reply("b")}, "chosen: expected one assistant message, found 2"),
        ({"prompt": made.messages(1)[:1]}, "its last message is neither the user's nor the assistant's"),
        ({"prompt": [*made.messages(1), *made.reply(" ")]}, "that is to be continued is empty"),
        ({"margin": "wide"}, "margin"),
        ({"label_smoothing": 1.5}, "label_smoothing: 1.5 is not from 0 to 1"))),
    ("critic", made.label_row(2, "So.", 0.5), {"value": 1.01}, r"rows\.jsonl:2: value: 1\.01 is not from 0 to 1"),
])  # fmt: skip
def test_a_bad_row_is_named_with_its_line(
    tmp_path: Path, stage: str, row: dict[str, Any], change: dict[str, Any], problem: str
) -> None:
    path = write(tmp_path / "rows.jsonl", [row, {**row, **change}])
    with pytest.raises(DataError, match=problem) as caught:
        read_training(path, stage)  # pyright: ignore[reportArgumentType]
    assert caught.value.line == 2


@pytest.mark.parametrize(("stage", "row"), [("dpo", made.pair_row), ("critic", made.label_row)])
def test_held_out_rows_are_drawn_from_all_of_the_file(
    stage: str, row: Any, tiny: Path, pairs: Path, tmp_path: Path
) -> None:
    """Whatever its order: 40 unsolved questions first, then 60 others. A critic's siblings stay together."""
    steps = [()] if stage == "dpo" else [("A.", 0.1), ("B.", 0.9)]
    rows = [row(number, *step) for number in range(100) for step in steps]
    train_file, val_file = data_files(shutil.copytree(pairs, tmp_path / "pairs"), stage)
    found = []
    for order in (rows, rows[::-1]):
        write(val_file, order)
        found.append(gather(str(train_file.parent), TrainConfig(stage=stage, model=str(tiny), held_out=20)))  # pyright: ignore
    one, other = found
    assert (one.held_out, one.validation) == (other.held_out, 100 * len(steps))
    late = [row for row in one.held_out if int(row.question) >= 40]
    assert 0 < len(late) < len(one.held_out)
    assert len({row.question for row in one.held_out}) == 20 / len(steps)


def test_bad_data_makes_no_run_folder_and_loads_nothing(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path / "pairs.train.jsonl", [{"prompt": []}])
    refused("dpo", "pairs.train.jsonl:1", model=Path("no/such-model"), rows=tmp_path)


def test_recipes_load() -> None:
    folder = Path(__file__).parent.parent / "configs" / "training"
    recipes = {path.stem: load_config(TrainConfig, str(path)) for path in folder.glob("*.yaml")}
    assert len(recipes) >= 12
    for name, recipe in recipes.items():
        check_keys(recipe)
        assert recipe.stage == "sft" if "warmstart" in name else recipe.stage in name.split("-")
    published = recipes["qwen2.5-7b-dpo"]
    assert (published.dpo.beta, published.learning_rate, published.epochs) == (0.3, 1e-6, 1)
    assert (published.warmup, published.scheduler, published.finetuning) == (0.2, "cosine", "full")
    assert published.bf16


@pytest.mark.parametrize(("options", "complaint"), [
    (["--adapter", "WARM", "--lora.rank", "8"], "and lora.rank is 8; set --lora.rank"),
    (["--adapter", "WARM", "--lora.alpha", "64"], "and lora.alpha is 64; set --lora.alpha"),
    (["--adapter", "WARM", "--lora.dropout", "0.5"], "and lora.dropout is 0.5; set --lora.dropout"),
    (["--report_to", '["tensorbord"]'], "unknown tracker 'tensorbord'"),
    (["--report_to", "mlflow, tensorbord"], "unknown tracker 'tensorbord'"),
    (["--report_to", '["clearml"]'], "pip install 'clearml'"),
    (["--dpo.loss", "[sigmoidd]"], "unknown loss 'sigmoidd'; did you mean 'sigmoid'?"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(warm: Path, refused: Refused, options: list[str], complaint: str) -> None:
    refused("dpo", complaint, *(str(warm) if option == "WARM" else option for option in options))


LLAMA: dict[str, Any] = {"trainer": "llamafactory"}
GRPO: dict[str, Any] = {"stage": "grpo"}


@pytest.mark.parametrize(("values", "complaint"), [
    ({**LLAMA, "processes": 2}, r"^processes: llamafactory takes every GPU by itself"),
    ({**LLAMA, "nodes": 2}, r"^nodes: llamafactory has variables of its own"),
    ({"nodes": 2, "report_to": "none"}, r"^rendezvous: several nodes need a place to meet"),
    ({"rendezvous": "a:1"}, r"^rendezvous: one machine meets nobody"),
    ({"deepspeed": "zero2", "stage": "critic"}, r"^deepspeed: a critic is trained on whole weights"),
    ({"deepspeed": "zero3", "merge": True}, r"^merge: under zero3 no process has the whole weights"),
    ({**GRPO, "deepspeed": "zero3", "quantization": "nf4"}, r"^deepspeed: zero3 cannot .* \(github.com/"),
    ({**LLAMA, "quantization": "int8"}, r"^quantization: llamafactory is given nf4 alone"),
    ({**GRPO, **LLAMA}, r"^stage grpo: llamafactory has none"),
    ({**LLAMA, "dpo": DpoSection(loss=("robust",))}, "one of sigmoid, hinge, ipo"),
    ({**LLAMA, "quantization": "nf4", "finetuning": "full"}, "4-bit base cannot be trained"),
    ({**LLAMA, "quantization": "nf4", "deepspeed": "zero3"}, "zero3 cannot shard a 4-bit base"),
    ({**LLAMA, "merge": True, "finetuning": "full"}, "a whole model already"),
    ({**LLAMA, "minutes": 3}, "bounded by max_steps"),
    ({**GRPO, "processes": 2, "grpo": GrpoSection(questions=3)}, r"^grpo.questions: has to be a multiple of processes"),
    ({**GRPO, "grpo": GrpoSection(gain=0.5, turns="gold")}, r"^grpo.gain: turns, branch and credit state say"),
    ({**GRPO, "grpo": GrpoSection(branch=2, turns="gold")}, r"^grpo.branch: it compares outcomes by stretches"),
    ({**GRPO, "grpo": GrpoSection(branch=2, weigh="episode")}, r"^grpo.branch: shared turns have one worth"),
    ({**GRPO, "grpo": GrpoSection(rewards={"f2": 1.0})}, r"unknown reward 'f2'; did you mean 'f1'\?"),
    ({**GRPO, "accumulation": 2}, r"^accumulation: a step of grpo takes all completions"),
    ({**GRPO, "quantization": "nf4", "finetuning": "full"}, r"^quantization: the 4-bit base cannot be trained itself"),
    ({**GRPO, "grpo": GrpoSection(max_tokens=2000)}, r"^grpo.max_tokens: leaves no room for a prompt"),
])  # fmt: skip
def test_keys_that_do_not_go_together_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_keys(TrainConfig(**values))


def test_what_comes_on_demand_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wanted: list[tuple[dict[str, Any], str]] = [
        ({"report_to": ("tensorboard",)}, r"^report_to: tensorboard is not installed here; run: .*'\.\[tensorboard\]'"),
        ({"optim": "adamw_8bit"}, r"^optim adamw_8bit: bitsandbytes is not installed here; run: .*'\.\[gpu\]'"),
        ({"deepspeed": "zero3"}, r"^deepspeed: deepspeed is not installed here; run: .*'\.\[gpu\]'"),
    ]
    for values, complaint in wanted:
        with pytest.raises(ConfigError, match=complaint):
            check_recipe(TrainConfig(**values))


def test_names_of_layers_are_checked(tiny: Path, pairs: Path, tmp_path: Path, capsys: Capture) -> None:
    assert train(tiny, pairs, tmp_path / "b", "dpo", "--lora.target", "qproj") == 2
    assert "no layer 'qproj'; it has down_proj, gate_proj," in capsys.readouterr().err


@pytest.mark.parametrize("layers", [None, 1])
def test_of_a_vision_language_model_the_text_decoder_learns(layers: int | None, tmp_path: Path) -> None:
    """Its vision tower has layers of the same names, which no text reaches; the plan counts both."""
    from training.model import freeze_below, load_policy

    files = resolve_model(make_gemma3(tmp_path))
    shape: Any = shape_of(files)
    lora = TrainConfig(lora=LoraSection(rank=4, layers=layers))
    for config in (lora, TrainConfig(finetuning="full")):
        policy = load_policy(files, config)
        freeze_below(policy, config.lora.layers)
        learns = [name for name, weight in policy.named_parameters() if weight.requires_grad]
        assert learns
        assert all("language_model" in name or "lm_head" in name for name in learns)
        if config is lora:
            assert {name.split(".layers.")[1][0] for name in learns} == ({"1"} if layers else {"0", "1"})
            assert sum(w.numel() for w in policy.parameters() if w.requires_grad) == shape.lora(4, layers)
    text = sum(weight.numel() for name, weight in policy.named_parameters() if "language_model" in name)
    assert shape.parameters - shape.beside == text
    assert shape.beside > 0


def test_layers_are_of_adapters_alone(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    """Full fine-tuning trains every block, and says so."""
    counts = []
    for layers in ("1", "none"):
        options = ("--finetuning", "full", "--lora.layers", layers, "--max_steps", "1")
        assert train(tiny, pairs, tmp_path / layers, "dpo", *options) == 0
        counts.append(read_manifest(tmp_path / layers)["trained_parameters"])
    assert counts[0] == counts[1]


def test_a_model_without_chat_template_is_refused(tiny: Path, tmp_path: Path, refused: Refused) -> None:
    base = shutil.copytree(tiny, tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    refused("sft", "base has no chat template; train an instruct model", model=base)
    (base / "chat_template.json").write_text('{"chat_template": "x"}')  # as of older vision-language models
    refused("sft", "base has no chat template; write the text in its chat_template.json into a chat_template.jinja",
            model=base)  # fmt: skip


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_checkpoints_have_the_permissions_of_the_umask(mask: int, mode: int, tiny: Path, tmp_path: Path) -> None:
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
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "config.json").write_text("{}")
    Path(folder, "model.safetensors").touch(0o600)


def test_adapter_of_another_hub_model_is_refused(warm: Path, tmp_path: Path, refused: Refused) -> None:
    adapter = shutil.copytree(warm, tmp_path / "adapter")
    settings = read_json(adapter / "adapter_config.json") | {"base_model_name_or_path": "Qwen/Qwen2-7B-Instruct"}
    write_json(adapter / "adapter_config.json", settings)
    (adapter / "manifest.json").unlink()  # as adapters from elsewhere; else the change itself is refused
    told = "was made for Qwen/Qwen2-7B-Instruct, not for Qwen/Qwen2.5-7B-Instruct"
    refused("dpo", told, "--adapter", str(adapter), model=Path("Qwen/Qwen2.5-7B-Instruct"))


def test_sft_learns_and_leaves_a_checkpoint(tiny: Path, warm: Path) -> None:
    manifest = read_manifest(warm)
    assert (manifest["status"], manifest["steps"], manifest["rows"]) == ("done", 8, 16)
    assert manifest["loss_last"] < manifest["loss_first"]
    assert manifest["base"]["sha256"]
    assert manifest["prompt"] == {"profile": "transcript", "hash": "abc"}
    assert manifest["trained_parameters"] == sum(tensor.numel() for tensor in tensors(warm).values())
    assert set(manifest["packages"]) >= {"torch", "trl", "peft", "transformers"}
    assert not (warm / "checkpoints").exists()
    assert {"adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {p.name for p in warm.iterdir()}
    assert read_json(warm / "adapter_config.json")["base_model_name_or_path"] == str(tiny)
    assert all(key.count("layers") and "ref" not in key for key in tensors(warm))
    assert [row["step"] for row in lines(warm / "metrics.jsonl")] == list(range(1, 9))
    _, front, card = (warm / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(front) == {"library_name": "peft", "pipeline_tag": "text-generation", "license": "unknown",
                                     "tags": ["steprag", "agentic-rag", "sft", "lora"]}  # fmt: skip
    for said in (f"steprag train --stage sft --model {tiny}", "profile transcript, hash abc\n", "steps 8",
                 *manifest["data"].values(), manifest["base"]["sha256"], "learning_rate", "not measured"):  # fmt: skip
        assert said in card


def test_a_second_run_does_nothing_another_is_refused(tiny: Path, pairs: Path, warm: Path, capsys: Capture) -> None:
    before = (warm / "adapter_model.safetensors").stat().st_mtime_ns
    assert train(tiny, pairs, warm, "sft", "--epochs", "2") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert train(tiny, pairs, warm, "sft", "--epochs", "3") == 2
    assert "epochs" in capsys.readouterr().err
    assert (warm / "adapter_model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("start", ["bare", "adapter"])
def test_dpo_starts_at_its_reference_to_learn(tiny: Path, pairs: Path, warm: Path, tmp_path: Path, start: str) -> None:
    options = ["--adapter", str(warm)] if start == "adapter" else []
    assert train(tiny, pairs, tmp_path, "dpo", "--epochs", "2", *options) == 0
    first, *_, last, held_out = lines(tmp_path / "metrics.jsonl")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert first["rewards/chosen"] == pytest.approx(0, abs=1e-3)
    assert first["rewards/rejected"] == pytest.approx(0, abs=1e-3)
    assert last["loss"] < first["loss"]
    assert last["rewards/margins"] > 0
    assert held_out["eval_rewards/accuracies"] == 1.0
    assert (read_manifest(tmp_path)["starting_adapter"] is not None) == (start == "adapter")
    assert not (tmp_path / "ref").exists()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    panels = curves(tmp_path / "metrics.jsonl")
    assert list(panels) == ["loss", "reward accuracy", "reward margin"]
    assert [[step for step, _ in points] for points in panels["loss"].values()] == [[*range(1, 9)], [8]]


def test_in_half_precision_dpo_starts_at_its_reference_to_the_bit(tiny: Path, tmp_path: Path) -> None:
    """Both score a row beside the same rows, though pairs of like prompts have replies of other lengths."""
    chosen = [made.reply("I look on. " * (70 * n % 50) + made.searching(n)) for n in range(16)]
    rows = [{**made.pair_row(n), "chosen": text} for n, text in enumerate(chosen)]
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
    named = read_manifest(tmp_path / "out")["starting_adapter"]
    assert named == {"name": str(start), "sha256": adapter_hash(warm)}


def test_dpo_goes_on_from_the_adapter_itself(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    """One tiny step from the adapter stays near it, so its weights were loaded and not made anew."""
    options = ["--adapter", str(warm), "--max_steps", "1", "--learning_rate", "1e-7"]
    options += ["--scheduler", "constant_with_warmup"]
    assert train(tiny, pairs, tmp_path, "dpo", *options) == 0
    assert tensors(warm).keys() == tensors(tmp_path).keys()
    assert not moved(warm, tmp_path, by=1e-5)
    assert moved(warm, tmp_path)


def test_dropout_of_lora_acts_in_dpo_and_not_on_the_reference(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    """TRL turns all dropout off there, an adapter's own too."""
    for name, share in (("none", "0.0"), ("half", "0.5"), ("again", "0.5")):
        assert train(tiny, pairs, tmp_path / name, "dpo", "--max_steps", "3", "--lora.dropout", share) == 0
    assert moved(tmp_path / "none", tmp_path / "half", by=1e-4)
    assert not moved(tmp_path / "half", tmp_path / "again")
    goes_on = ["--adapter", str(tmp_path / "half"), "--max_steps", "1", "--learning_rate", "1e-9"]
    assert train(tiny, pairs, tmp_path / "next", "dpo", *goes_on, "--lora.dropout", "0.5") == 0
    held_out = lines(tmp_path / "next" / "metrics.jsonl")[-1]
    assert held_out["eval_loss"] == pytest.approx(math.log(2), abs=1e-4), "scored without dropout, as its reference was"


def test_rows_of_no_manifest_leave_the_adapter_its_prompt(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    rows = shutil.copytree(pairs, tmp_path / "rows", ignore=shutil.ignore_patterns("manifest.json"))
    assert train(tiny, rows, tmp_path / "out", "dpo", "--adapter", str(warm), "--max_steps", "1") == 0
    assert read_manifest(tmp_path / "out")["prompt"] == {"profile": "transcript", "hash": "abc"}


def test_dpo_leaves_the_lower_blocks_as_they_were(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    options = ["--adapter", str(warm), "--lora.layers", "1", "--max_steps", "2"]
    assert train(tiny, pairs, tmp_path, "dpo", *options) == 0
    assert moved(warm, tmp_path)
    assert all(".layers.1." in name for name in moved(warm, tmp_path))


def test_time_limit_ends_the_loop(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    assert train(tiny, pairs, tmp_path, "sft", "--epochs", "50", "--minutes", "0.0001", "--save_steps", "1000") == 0
    manifest = read_manifest(tmp_path)
    assert (manifest["stopped_by"], manifest["steps"]) == ("minutes", 1)


@pytest.mark.parametrize(("steps", "complaint"), [("3", "step 2: the gradient is"), ("1", "eval_loss is")])
def test_numbers_that_are_none_end_training(
    steps: str, complaint: str, tiny: Path, pairs: Path, tmp_path: Path, capsys: Capture
) -> None:
    wild = ["--learning_rate", "1e30", "--max_steps", steps, "--scheduler", "constant_with_warmup"]
    assert train(tiny, pairs, tmp_path, "dpo", *wild, "--max_grad_norm", "0") == 1
    assert f"{complaint} not a number any more; lower learning_rate" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert manifest["status"] != "done"
    assert len(lines(tmp_path / "metrics.jsonl")) == (1 if steps == "3" else 2)


@pytest.mark.slow
def test_killed_run_goes_on_to_the_same_weights(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    options = ["--epochs", "15", "--save_steps", "5", "--adapter", str(warm), "--lora.layers", "1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(tiny, pairs, whole, "dpo", *options) == 0
    train_until_killed(tiny, pairs, killed, "dpo", *options, checkpoint="checkpoint-10")
    assert not (killed / "adapter_model.safetensors").exists()
    assert train(tiny, pairs, killed, "dpo", *options) == 0
    assert any("resumed_from" in row for row in lines(killed / "metrics.jsonl"))
    assert not moved(whole, killed)


def test_a_run_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    for step, state in ((5, '{"step": 5}'), (10, '{"step": 10}'), (20, '{"step": '), (30, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_merged_model_is_base_and_adapter_in_one(tiny: Path, pairs: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert train(tiny, pairs, tmp_path, "sft", "--max_steps", "2", "--merge", "true") == 0
    assert "library_name: transformers\n" in (tmp_path / "merged/README.md").read_text(encoding="utf-8")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(tmp_path))
    ids = torch.arange(3, 40)[None]
    assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-4)
    assert not torch.allclose(merged(ids).logits, AutoModelForCausalLM.from_pretrained(tiny)(ids).logits, atol=1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
