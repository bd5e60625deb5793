"""What the training tests share: rows, a tiny chat model, and the command with fast settings."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steprag.console.terminal import guarded
from steprag.engines.models import resolve_model
from tests.models import make_tokenizer, template
from training.config import LoraSection, TrainConfig
from training.rows import TokenRow
from training.train import main

Capture = pytest.CaptureFixture[str]
"""What a command wrote: the fixture `capsys`."""
Refused = Callable[..., None]
"""Checks a refusal: the fixture `refused`."""
FAST = ["--threads", "1", "--learning_rate", "0.01", "--batch_size", "4", "--warmup", "0", "--lora.rank", "4"]


def messages(number: int) -> list[dict[str, str]]:
    asked = f"Question: which town number {number} lies on the river{' of the north' * (number % 3)}?"
    turns = {"system": "Answer in small steps.", "user": f"{asked}\nSearch or answer."}
    return [{"role": role, "content": content} for role, content in turns.items()]


def reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def step_row(number: int) -> dict[str, Any]:
    where = {"question_id": str(number), "action": "query", "depth": 1, "source": "test"}
    return {"prompt": messages(number), "completion": reply(searching(number)), **where}


def pair_row(number: int) -> dict[str, Any]:
    good = searching(number)
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


def make_qwen2(folder: Path) -> Path:
    """A random Qwen2 of two blocks with grouped key-value heads, tied embeddings and Qwen2.5's template."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    tokenizer = make_tokenizer(folder, [json.dumps(pair_row(n)) for n in range(20)], template("qwen2-5"))
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    words = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "tie_word_embeddings": True}
    Qwen2ForCausalLM(Qwen2Config(**words, **shape, **heads)).save_pretrained(folder)
    return folder


def show_gpus(count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an nvidia-smi on the path that names so many GPUs."""
    nvidia_smi(f"for gpu in $(seq {count}); do echo 'A100, 81920'; done", folder, monkeypatch)


def nvidia_smi(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an nvidia-smi on the path that runs the script."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)


def train(tiny: Path, pairs: Path, out: Path, stage: str, *options: str) -> int:
    return guarded(main, _argv(tiny, pairs, out, stage, *options))


def _argv(model: Path, pairs: Path, out: Path, stage: str, *options: str) -> list[str]:
    return ["--stage", stage, "--model", str(model), "--pairs", str(pairs), "--out", str(out), *FAST, *options]


def train_until_killed(model: Path, pairs: Path, out: Path, stage: str, *options: str, checkpoint: str) -> None:
    """Trains in a process of its own, which is killed as `killed_at` says."""
    killed_at(checkpoint, out, _argv(model, pairs, out, stage, *options))


def killed_at(checkpoint: str, out: Path, argv: list[str]) -> None:
    """`steprag train` in a process that gets SIGKILL once a checkpoint of that name (a pattern) is written."""
    command = [sys.executable, "-m", "apps.commands", "train", *argv]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()})
    while not list(out.glob(f"checkpoints/{checkpoint}/trainer_state.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path / "adapter_model.safetensors")


def moved(one: Path, other: Path, by: float = 0.0) -> set[str]:
    """The weights of two adapters that lie further apart; one that only the first has is an error."""
    before, after = tensors(one), tensors(other)
    return {name for name in before if not before[name].allclose(after[name], rtol=1e-5 if by else 0, atol=by)}


def some_rows(seed: int = 0) -> list[TokenRow]:
    """Six pairs: three siblings of one prompt, two prompts that share their beginning, one that shares nothing."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(3, 300) for _ in range(count)]

    system, first, steps = ids(12), ids(30), [[*ids(n), 2] for n in (7, 3, 12, 9, 5, 8, 4, 6)]
    siblings = [(0, 1), (0, 2), (1, 2)]
    rows = [TokenRow(system + first, (steps[one], steps[other])) for one, other in siblings]
    rows += [TokenRow(system + ids(21), (steps[3], steps[4])), TokenRow(system + ids(33), (steps[5], steps[6]))]
    return [*rows, TokenRow(ids(5), (steps[7], steps[0]))]


def stock_trainer(
    model: Path, out: Path, finetuning: Any, loss: list[str], checkpointing: bool = False, smoothing: float = 0.0
) -> tuple[Any, Any, Any]:
    """TRL's DPOTrainer on the rows, the policy, and one batch of all of them."""
    from trl.trainer.dpo_config import DPOConfig

    from training.trl.dpo import StepDPOTrainer, as_dataset

    options: dict[str, Any] = {"gradient_checkpointing": checkpointing, "label_smoothing": smoothing, **ON_A_CPU}
    arguments = DPOConfig(str(out), loss_type=loss, beta=0.5, precompute_ref_log_probs=True, **options)
    trainer, policy, batch = _stock(StepDPOTrainer, arguments, as_dataset(some_rows()), model, finetuning)
    batch["ref_chosen_logps"] = batch["ref_chosen_logps"] + 0.7  # away from the point where both terms are alike
    if checkpointing:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
    return trainer, policy, batch


def stock_sft_trainer(model: Path, out: Path, finetuning: Any) -> tuple[Any, Any, Any]:
    """TRL's SFTTrainer on the chosen completions of the rows, the policy, and one batch of all of them."""
    from trl.trainer.sft_config import SFTConfig

    from training.trl.sft import StepSFTTrainer, as_dataset

    arguments = SFTConfig(str(out), max_length=None, **ON_A_CPU)
    return _stock(StepSFTTrainer, arguments, as_dataset(some_rows()), model, finetuning)


ON_A_CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": "none"}


def _stock(kind: Any, arguments: Any, dataset: Any, model: Path, finetuning: Any) -> tuple[Any, Any, Any]:
    from transformers import AutoTokenizer

    from training.model import load_policy
    from training.trl.common import quiet

    quiet()
    policy = load_policy(resolve_model(str(model)), TrainConfig(finetuning=finetuning, lora=LoraSection(rank=4)))
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = kind(model=policy, args=arguments, train_dataset=dataset, processing_class=tokenizer)
    return trainer, policy, trainer.data_collator([trainer.train_dataset[i] for i in range(len(dataset))])


def label_row(number: int, step: str, value: float) -> dict[str, Any]:
    """A step label; rows of one number are siblings."""
    where = {"question_id": str(number), "tree": "0" * 16, "node": 1, "action": "query", "depth": 1, "visits": 2}
    worth = {"value": value, "error": None, "source": "test"}
    return {"prompt": messages(number), "completion": reply(step), **worth, **where}


def searching(number: int) -> str:
    return f"I need the town. So the next query is <query> town number {number} </query>"


def guessing(number: int) -> str:
    return f"I know the town. So the answer is <answer> {number} </answer>"


def write_labels(folder: Path) -> Path:
    """Step labels of two kinds: where the model searches it does well, where it guesses it does badly."""
    rows = [label_row(n, text, value) for n in range(20) for text, value in ((searching(n), 0.9), (guessing(n), 0.1))]
    write(folder / "steps.train.jsonl", rows[:32])
    write(folder / "steps.val.jsonl", rows[32:])
    return folder
