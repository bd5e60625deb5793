"""Supervised steps with TRL's SFTTrainer: the loss covers the step and the token that ends it, not the prompt."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from steprag.runs import Run
from training.config import TrainConfig
from training.rows import TokenRow
from training.trl_common import Outcome, Refreezing, common_arguments, order_for, run_trainer


class StepSFTTrainer(Refreezing, SFTTrainer):
    """TRL's trainer on rows that are tokens already; it recognises them by their columns."""


def train(
    policy: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[TokenRow],
    held_out: list[TokenRow],
    config: TrainConfig,
    run: Run,
) -> Outcome:
    """Trains `policy` in place."""
    trainer = StepSFTTrainer(
        model=policy,
        args=SFTConfig(**common_arguments(config, run.path / "checkpoints")),
        train_dataset=as_dataset(rows).select(order_for(config, rows)),
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
    )
    trainer.layers = config.lora.layers
    return run_trainer(trainer, run, config)


def as_dataset(rows: list[TokenRow]) -> Dataset:
    """Columns `input_ids` and `labels`, the labels -100 over the prompt."""
    return Dataset.from_list([_columns(row.prompt, row.completions[0]) for row in rows])


def _columns(prompt: list[int], completion: list[int]) -> dict[str, list[int]]:
    return {"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion}
