"""The LLaMA-Factory back end: what it is asked to do, what its output means, and (slow) real runs on a tiny Qwen2."""

from __future__ import annotations

import json
import math
import stat
import sys
from itertools import accumulate
from pathlib import Path

import pytest
import yaml

from steprag.errors import ConfigError
from tests.training_parts import lines, show_gpus, tensors, train, train_until_killed
from training.config import LlamaFactorySection, TrainConfig
from training.job import OUT_OF_MEMORY, reason
from training.launch.llamafactory import TrainerLog
from training.machine import ROOT, check_recipe, executable

REAL = ROOT / ".venv-llamafactory" / "bin" / "llamafactory-cli"

STAND_IN = """#!{python}
import json, os, pathlib, sys, yaml
recipe = yaml.safe_load(open(sys.argv[2]))
told = {{name: os.environ[name] for name in ("NPROC_PER_NODE", "FORCE_TORCHRUN", "TELLS") if name in os.environ}}
if told:
    import datasets
    rows = datasets.load_from_disk(recipe["tokenized_path"])["train"]
    pairs = [sum(len(row[f"{{name}}_input_ids"]) for name in ("chosen", "rejected")) for row in rows if "TELLS" in told]
    assert not sys.argv[2].count(" "), "its launcher splits there"
    told_in = pathlib.Path(recipe["output_dir"]).parent / "llamafactory" / "told.json"
    told_in.write_text(json.dumps({{"rows": len(rows), "pairs": pairs, **told}}))
out = pathlib.Path(recipe["output_dir"])
out.mkdir(parents=True, exist_ok=True)
if recipe["learning_rate"] > 0.5:
    print("Traceback (most recent call last):")
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
log = [{{"loss": 0.7 - step / 10, "step": step}} for step in (1, 2, 3)]
for row in log:
    with open(out / "trainer_log.jsonl", "a") as stream:
        line = {{"current_steps": row["step"], "total_steps": 3, "loss": row["loss"], "lr": 0.1}}
        stream.write(json.dumps(line) + "\\n")
(out / "trainer_state.json").write_text(json.dumps({{"global_step": 3, "log_history": log}}))
(out / "eval_results.json").write_text(json.dumps({{"eval_loss": 0.5, "epoch": 1.0, "eval_samples_per_second": 9}}))
(out / "adapter_model.safetensors").write_bytes(b"weights")
(out / "adapter_config.json").write_text(json.dumps({{"r": 4, "base_model_name_or_path": "/cache/x"}}))
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    """Options that call a small program with LLaMA-Factory's files in place of LLaMA-Factory."""
    path = tmp_path / "llamafactory-cli"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return ["--trainer", "llamafactory", "--llamafactory.executable", str(path)]


def test_run_writes_files_follows_the_log_and_takes_over_the_adapter(
    qwen2: Path, pairs: Path, tmp_path: Path, stand_in: list[str]
) -> None:
    out = tmp_path / "out"
    assert (
        train(qwen2, pairs, out, "dpo", *stand_in, "--dpo.beta", "0.3", "--held_out", "4", "--max_grad_norm", "0") == 0
    )
    recipe = yaml.safe_load((out / "llamafactory" / "train.yaml").read_text())
    assert recipe["stage"] == "dpo"
    assert recipe["pref_beta"] == 0.3
    assert recipe["max_grad_norm"] == 0, "the Trainer then clips nothing"
    assert recipe["finetuning_type"] == "lora"
    assert recipe["lora_rank"] == 4
    assert recipe["disable_shuffling"] is True
    assert [row["loss"] for row in lines(out / "metrics.jsonl") if "lr" in row] == pytest.approx([0.6, 0.5, 0.4])
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["steps"], manifest["loss_last"]) == (3, pytest.approx(0.4))
    assert manifest["held_out"] == {"eval_loss": 0.5}
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == str(qwen2)
    assert (out / "tokenizer.json").is_file()
    assert not (out / "checkpoints").exists()


def test_a_log_is_read_on_from_where_reading_stopped(tmp_path: Path) -> None:
    """What was read may be gone: only what was added counts, and a line that is half written comes later, whole."""
    log, steps = tmp_path / "log.jsonl", TrainerLog(tmp_path / "log.jsonl")
    assert list(steps.lines()) == []
    log.write_text('{"step": 1}\n{"st')
    assert list(steps.lines()) == [{"step": 1}]
    log.write_text("x" * 12 + '{"step": 2}\n\n[3]\n')
    assert list(steps.lines()) == [{"step": 2}]
    assert list(steps.lines()) == []


def test_failure_is_told_with_its_cause_and_the_knobs(
    qwen2: Path, pairs: Path, tmp_path: Path, stand_in: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(qwen2, pairs, tmp_path / "out", "dpo", *stand_in, "--learning_rate", "0.9") == 1
    error = capsys.readouterr().err
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB" in error
    assert "halve batch_size" in error
    assert "log.txt" in error
    assert "Traceback" in (tmp_path / "out" / "llamafactory" / "log.txt").read_text()


def test_the_cause_is_found_behind_torchruns_own_error() -> None:
    log = "Traceback\n[rank0]: ValueError: bad key\nmore\ntorch.distributed.elastic.ChildFailedError: x\n"
    log += "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1."
    assert reason(log, 1) == "ValueError: bad key"
    assert OUT_OF_MEMORY in reason("", 247)
    assert "exit status 3; its last words: done with it" in reason("a\ndone with it\n\n", 3)
    bare = "[rank1]:   File x\n[rank1]:     assert ranks > 0\n[rank1]:            ^^^^^^^\n[rank1]: AssertionError"
    assert reason(bare, 1) == "AssertionError at: assert ranks > 0"


def test_missing_environment_names_its_script() -> None:
    missing = TrainConfig(llamafactory=LlamaFactorySection(executable="no/such/llamafactory-cli"))
    with pytest.raises(ConfigError, match="bash scripts/setup_llamafactory.sh"):
        executable(missing)


@pytest.mark.parametrize(
    ("gpus", "variables", "processes", "nodes"),
    [
        (0, {}, 1, 1),
        (8, {}, 8, 1),
        (8, {"CUDA_VISIBLE_DEVICES": "1,3,-1,5"}, 2, 1),
        (8, {"NPROC_PER_NODE": "4", "NNODES": "2"}, 4, 2),
        (0, {"NPROC_PER_NODE": "2", "FORCE_TORCHRUN": "1"}, 2, 1),
    ],
)
def test_the_processes_of_its_launcher_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, variables: dict[str, str], processes: int, nodes: int
) -> None:
    show_gpus(gpus, tmp_path, monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "cli").touch()
    section = LlamaFactorySection(executable=str(tmp_path / "cli"))
    counted = check_recipe(TrainConfig(trainer="llamafactory", llamafactory=section))
    assert (counted.processes, counted.nodes) == (processes, nodes)


def test_a_step_has_the_rows_of_all_processes(
    qwen2: Path, pairs: Path, tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher is told to start those that the rows were laid out for, so `max_steps` repeats no row in vain."""
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    out, options = tmp_path / "an out", ["--max_steps", "2", "--batch_size", "1", "--accumulation", "2"]
    assert train(qwen2, pairs, out, "sft", *stand_in, *options) == 0
    told = json.loads((out / "llamafactory" / "told.json").read_text())
    assert told == {"rows": 2 * 2 * 2, "pairs": [], "NPROC_PER_NODE": "2", "FORCE_TORCHRUN": "1"}
    assert json.loads((out / "manifest.json").read_text())["identity"]["processes"] == 2


def test_both_trainers_take_the_same_pairs_in_the_same_order(
    qwen2: Path, pairs: Path, tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of one pair counts that pair's tokens: TRL's, as they add up, are those of the pairs laid out."""
    monkeypatch.setenv("TELLS", "the pairs' tokens")
    options = ["--batch_size", "1", "--max_steps", "12"]
    assert train(qwen2, pairs, tmp_path / "lf", "dpo", *stand_in, *options) == 0
    assert train(qwen2, pairs, tmp_path / "trl", "dpo", *options, "--share_prefix", "false") == 0
    told = json.loads((tmp_path / "lf" / "llamafactory" / "told.json").read_text())["pairs"]
    assert len(set(told)) > 2, "pairs of one length would tell nothing"
    seen = [row["num_tokens"] for row in lines(tmp_path / "trl" / "metrics.jsonl") if "loss" in row]
    assert list(accumulate(told)) == seen


@pytest.mark.parametrize(
    ("gpus", "options", "variables", "complaint"),
    [
        (0, ["--deepspeed", "zero3", "--bf16", "true"], {}, "deepspeed: no GPU here that LLaMA-Factory's torch sees; "
         "give --deepspeed none --bf16 false"),
        (0, ["--bf16", "true"], {}, "bf16: no GPU here"),
        (2, [], {"NPROC_PER_NODE": "4"}, "NPROC_PER_NODE: 4 are asked for and 2 GPUs are here"),
        (2, [], {"NNODES": "1:4"}, "NNODES: expected a count from 1, found '1:4'"),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_told_before_anything_is_read(
    tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    gpus: int, options: list[str], variables: dict[str, str], complaint: str,
) -> None:  # fmt: skip
    show_gpus(gpus, tmp_path, monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert train(tmp_path, tmp_path, tmp_path / "out", "sft", *stand_in, *options) == 2
    assert complaint in capsys.readouterr().err


def test_several_processes_are_not_started_from_a_path_with_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a place").mkdir()
    (tmp_path / "a place" / "cli").touch()
    section = LlamaFactorySection(executable=str(tmp_path / "a place" / "cli"))
    recipe = TrainConfig(trainer="llamafactory", llamafactory=section)
    assert check_recipe(recipe)
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    with pytest.raises(ConfigError, match="a place/cli: LLaMA-Factory cannot start several processes from a path with"):
        check_recipe(recipe)


def test_packages_are_looked_for_where_it_is_installed(tmp_path: Path) -> None:
    """Its Python stands beside its command, and says what it has."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "llamafactory-cli").touch()
    section = LlamaFactorySection(executable=str(tmp_path / "llamafactory-cli"))
    lacking = TrainConfig(trainer="llamafactory", deepspeed="zero2", llamafactory=section)
    wanted = "deepspeed: deepspeed is not installed in LLaMA-Factory's environment; run: .*/python -m pip install 'deep"
    with pytest.raises(ConfigError, match=wanted):
        check_recipe(lacking)


def test_qlora_and_deepspeed_reach_the_recipe(
    qwen2: Path, pairs: Path, tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(1, tmp_path, monkeypatch)
    options = ["--quantization", "nf4", "--deepspeed", "zero2", "--report_to", '["tensorboard"]']
    assert train(qwen2, pairs, tmp_path / "out", "sft", *stand_in, *options) == 0
    recipe = yaml.safe_load((tmp_path / "out" / "llamafactory" / "train.yaml").read_text())
    assert (recipe["quantization_bit"], recipe["quantization_type"]) == (4, "nf4")
    assert json.loads(Path(recipe["deepspeed"]).read_text())["zero_optimization"]["stage"] == 2
    assert recipe["report_to"] == ["tensorboard"]


@pytest.fixture
def real() -> list[str]:
    if not REAL.is_file():
        pytest.skip("needs LLaMA-Factory: bash scripts/setup_llamafactory.sh")
    return ["--trainer", "llamafactory", "--held_out", "4"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_dpo_full_starts_where_trl_does(qwen2: Path, pairs: Path, tmp_path: Path, real: list[str]) -> None:
    """The same rows in the same order from the same weights: LLaMA-Factory and TRL log the same losses."""
    options = ["--finetuning", "full", "--learning_rate", "1e-3", "--max_steps", "6"]
    assert train(qwen2, pairs, tmp_path / "lf", "dpo", *real, *options) == 0
    assert train(qwen2, pairs, tmp_path / "trl", "dpo", *options) == 0
    ours, theirs = ([row["loss"] for row in lines(tmp_path / name / "metrics.jsonl") if "loss" in row]
                    for name in ("trl", "lf"))  # fmt: skip
    assert theirs[0] == pytest.approx(math.log(2), abs=1e-3)
    assert len(theirs) == 6
    assert theirs == pytest.approx(ours, rel=1e-4)
    assert theirs[-1] < theirs[0]
    assert json.loads((tmp_path / "lf" / "manifest.json").read_text())["held_out"]["eval_rewards/accuracies"] == 1
    assert (tmp_path / "lf" / "model.safetensors").is_file()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_two_processes_learn_what_one_does(
    qwen2: Path, pairs: Path, tmp_path: Path, real: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same rows a step, taken in the same order, the losses are the same."""
    options = [*real, "--max_steps", "4", "--batch_size", "1"]
    assert train(qwen2, pairs, tmp_path / "one", "sft", *options, "--accumulation", "2") == 0
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    assert train(qwen2, pairs, tmp_path / "two", "sft", *options) == 0
    one, two = ([row["loss"] for row in lines(tmp_path / name / "metrics.jsonl") if "loss" in row]
                for name in ("one", "two"))  # fmt: skip
    assert two == pytest.approx(one, rel=1e-2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_sft_then_dpo_lora_and_merge(qwen2: Path, pairs: Path, tmp_path: Path, real: list[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    assert train(qwen2, pairs, tmp_path / "sft", "sft", *real, "--max_steps", "4") == 0
    dpo = tmp_path / "dpo"
    options = ["--adapter", str(tmp_path / "sft"), "--max_steps", "4", "--merge", "true"]
    assert train(qwen2, pairs, dpo, "dpo", *real, *options) == 0
    losses = [row["loss"] for row in lines(dpo / "metrics.jsonl") if "loss" in row]
    assert len(losses) == 4
    assert losses[0] == pytest.approx(math.log(2), abs=1e-3)  # the reference is base and adapter
    assert losses[-1] < losses[0]
    before, after = tensors(tmp_path / "sft"), tensors(dpo)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    merged = AutoModelForCausalLM.from_pretrained(dpo / "merged", dtype=torch.float32)
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(qwen2, dtype=torch.float32), str(dpo))
    ids = torch.arange(3, 40)[None]
    assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-3)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_run_killed_goes_on(qwen2: Path, pairs: Path, tmp_path: Path, real: list[str]) -> None:
    """SIGKILL of our command ends the trainer too; the same command goes on from the last checkpoint."""
    out = tmp_path / "out"
    options = [*real, "--epochs", "60", "--save_steps", "5"]
    train_until_killed(qwen2, pairs, out, "sft", *options, checkpoint="checkpoint-*")
    assert train(qwen2, pairs, out, "sft", *options) == 0
    metrics = lines(out / "metrics.jsonl")
    resumed = next(number for number, row in enumerate(metrics) if "resumed_from" in row)
    start = int(metrics[resumed]["resumed_from"].split("-")[1])
    assert [row["step"] for row in metrics[resumed + 1 :]] == list(range(start + 1, 241))
    assert json.loads((out / "manifest.json").read_text())["steps"] == 240
