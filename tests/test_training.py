"""Training: data that is wrong, masks, order, and real TRL runs on a tiny model."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from steprag.cli import guarded
from steprag.config import load_config
from steprag.errors import ConfigError, DataError
from tests.models import make_llama
from training.config import DpoSection, LoraSection, TrainConfig
from training.rows import data_files, read_file, read_training, row_order, tokenise
from training.train import main

FAST = ["--threads", "1", "--learning_rate", "0.01", "--batch_size", "4", "--warmup", "0", "--lora.rank", "4"]


def messages(number: int) -> list[dict[str, str]]:
    question = (
        f"Question: which town number {number} lies on the river{' of the north' * (number % 3)}?\nSearch or answer."
    )
    return [{"role": "system", "content": "Answer in small steps."}, {"role": "user", "content": question}]


def reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def step_row(number: int) -> dict[str, Any]:
    text = f"I need the town. So the next query is <query> town number {number} </query>"
    where = {"question_id": str(number), "action": "query", "depth": 1, "source": "test"}
    return {"prompt": messages(number), "completion": reply(text), **where}


def pair_row(number: int) -> dict[str, Any]:
    good = f"I need the town. So the next query is <query> town number {number} </query>"
    bad = "So the answer is <answer> nothing </answer>"
    return {
        **{"prompt": messages(number), "chosen": reply(good), "rejected": reply(bad), "question_id": str(number)},
        **{"tree": "0" * 16, "chosen_node": 1, "rejected_node": 2, "action": "query", "rejected_action": "answer"},
        **{"depth": 1, "chosen_reward": 1.0, "rejected_reward": 0.0, "margin": 1.0},
        **{"chosen_visits": 3, "rejected_visits": 2, "source": "test"},
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("tiny"), [json.dumps(pair_row(n)) for n in range(20)])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write(folder / "sft.train.jsonl", [step_row(n) for n in range(16)])
    write(folder / "pairs.train.jsonl", [pair_row(n) for n in range(16)])
    write(folder / "pairs.val.jsonl", [pair_row(n) for n in range(16, 20)])
    (folder / "manifest.json").write_text(json.dumps({"prompt": {"profile": "transcript", "hash": "abc"}}))
    return folder


def train(tiny: Path, pairs: Path, out: Path, stage: str, *options: str) -> int:
    base = ["--stage", stage, "--model", str(tiny), "--pairs", str(pairs), "--out", str(out)]
    return guarded(main, [*base, *FAST, *options])


@pytest.fixture(scope="module")
def warm(tiny: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter trained for eight steps."""
    out = tmp_path_factory.mktemp("warm")
    assert train(tiny, pairs, out, "sft", "--epochs", "2") == 0
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path / "adapter_model.safetensors")


# --- data and configuration -------------------------------------------------------------------------------------------


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
        ({"prompt": reply("a")}, "its last message is not the user's"),
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
    stages = {path.stem: load_config(TrainConfig, str(path)).stage for path in folder.glob("*.yaml")}
    assert stages == {
        "atlas-warmstart": "sft",
        "atlas-sft": "sft",
        "atlas-dpo": "dpo",
        "qwen2.5-7b-dpo-lora": "dpo",
    }


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate"):
        load_config(TrainConfig, None, {"learningrate": 1})


def test_adapter_of_another_rank_is_refused(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    assert train(tiny, pairs, tmp_path / "out", "dpo", "--adapter", str(warm), "--lora.rank", "8") == 2
    assert not (tmp_path / "out").exists()


# --- tokens, masks, order ---------------------------------------------------------------------------------------------


def test_rows_learn_the_step_and_the_end_of_turn_once(tiny: Path, pairs: Path) -> None:
    from transformers import AutoTokenizer

    from training.trl_sft import as_dataset

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    (row, *_) = tokenise(read_file(pairs / "sft.train.jsonl", "sft"), tokenizer, 512)
    data = as_dataset([row])[0]
    learnt = [token for token, label in zip(data["input_ids"], data["labels"], strict=True) if label != -100]
    assert tokenizer.decode(learnt) == step_row(0)["completion"][0]["content"] + "<|im_end|>"
    prompt = data["input_ids"][: len(data["input_ids"]) - len(learnt)]
    assert (
        prompt == tokenizer.apply_chat_template(messages(0), add_generation_prompt=True, return_dict=True)["input_ids"]
    )


def test_long_rows_are_left_out_whole(tiny: Path, pairs: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    rows = read_file(pairs / "pairs.train.jsonl", "dpo")
    lengths = [row.length for row in tokenise(rows, tokenizer, 10_000)]
    limit = sorted(lengths)[8]
    assert [row.length for row in tokenise(rows, tokenizer, limit)] == [n for n in lengths if n <= limit]


def test_order_covers_every_row_each_epoch_with_little_padding() -> None:
    lengths = [50 + 37 * n % 101 for n in range(100)]
    order = row_order(lengths, 4, 2, seed=1)
    assert sorted(order) == sorted([*range(100), *range(100)])
    assert order == row_order(lengths, 4, 2, seed=1)
    assert order != row_order(lengths, 4, 2, seed=2)

    def padding(rows: list[int]) -> int:
        groups = [[lengths[row] for row in rows[start : start + 4]] for start in range(0, len(rows), 4)]
        return sum(max(group) * len(group) - sum(group) for group in groups)

    assert padding(order) < padding(list(range(100)) * 2) / 3
    assert len(row_order(lengths, 4, 0.25, seed=1)) == 25


def test_lora_reaches_the_top_blocks_alone(tiny: Path) -> None:
    from steprag.engines.models import resolve_model
    from training.policy import load_policy

    policy = load_policy(resolve_model(str(tiny)), TrainConfig(lora=LoraSection(layers=1)))
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".layers.1." in name for name in trained)


def test_chosen_likelihood_joins_as_a_loss() -> None:
    from training.trl_dpo import losses

    assert losses(DpoSection(sft_weight=0.1)) == {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.1]}
    assert losses(DpoSection()) == {"loss_type": ["sigmoid"], "loss_weights": [1.0]}


def test_cheap_head_gives_the_same_loss_and_gradients(tiny: Path) -> None:
    import torch
    import trl.trainer.utils

    from steprag.engines.models import resolve_model
    from training.policy import load_policy
    from training.trl_common import completion_only_head

    assert hasattr(trl.trainer.utils, "_use_triton"), "TRL moved its switch; prompts are scored against the vocabulary"
    policy = load_policy(resolve_model(str(tiny)), TrainConfig())
    trl.trainer.utils.add_fused_lm_head(policy.get_base_model(), outputs=("log_probs", "entropy", "is_top1"))
    ids = torch.arange(40).view(2, 20)
    labels = ids.masked_fill(torch.arange(20) < 12, -100)

    def gradients() -> tuple[float, list[Any]]:
        policy.zero_grad()
        loss = -policy(input_ids=ids, labels=labels, fused_lm_head=True).log_probs.sum()
        loss.backward()
        return loss.item(), [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    stock_loss, stock = gradients()
    with completion_only_head():
        cheap_loss, cheap = gradients()
    assert cheap_loss == pytest.approx(stock_loss, rel=1e-5)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(stock, cheap, strict=True))


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_sft_learns_and_leaves_a_checkpoint(tiny: Path, warm: Path) -> None:
    manifest = json.loads((warm / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["steps"] == 8
    assert manifest["loss_last"] < manifest["loss_first"]
    assert manifest["base"]["sha256"]
    assert manifest["prompt"] == {"profile": "transcript", "hash": "abc"}
    assert manifest["rows"] == 16
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


def test_dpo_goes_on_from_the_adapter_itself(tiny: Path, pairs: Path, warm: Path, tmp_path: Path) -> None:
    """One tiny step from the adapter stays near it, so its weights were loaded and not made anew."""
    import torch

    options = [
        "--adapter",
        str(warm),
        "--max_steps",
        "1",
        "--learning_rate",
        "1e-7",
        "--scheduler",
        "constant_with_warmup",
    ]
    assert train(tiny, pairs, tmp_path, "dpo", *options) == 0
    before, after = tensors(warm), tensors(tmp_path)
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[key], after[key], atol=1e-5) for key in before)
    assert any(not torch.equal(before[key], after[key]) for key in before)


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


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_killed_run_goes_on_to_the_same_weights(
    tiny: Path, pairs: Path, warm: Path, tmp_path: Path, stage: str
) -> None:
    import torch

    options = [
        "--epochs",
        "15",
        "--save_steps",
        "5",
        "--adapter",
        str(warm),
        "--lora.layers",
        "1",
        "--lora.dropout",
        "0",
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(tiny, pairs, whole, stage, *options) == 0
    base = ["--stage", stage, "--model", str(tiny), "--pairs", str(pairs), "--out", str(killed), *FAST, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "training.train", *base], env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    while not list(killed.glob("checkpoints/checkpoint-10/trainer_state.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "adapter_model.safetensors").exists()
    assert train(tiny, pairs, killed, stage, *options) == 0
    assert any("resumed_from" in row for row in lines(killed / "metrics.jsonl"))
    expected, found = tensors(whole), tensors(killed)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
