"""Supervised steps with TRL's SFTTrainer: the loss covers the step and the token that ends it, not the prompt."""

from __future__ import annotations

from datasets import Dataset
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from training.job import Job, Outcome
from training.model import load_policy
from training.order import order_for
from training.rows import TokenRow
from training.trl.common import Refreezing, common_arguments, run_trainer, save
from training.trl.shared_prefix import sharing_if_asked


class StepSFTTrainer(Refreezing, SFTTrainer):
    """TRL's trainer on rows that are tokens already; it recognises them by their columns."""


def train(job: Job) -> Outcome:
    """Trains and saves."""
    policy = load_policy(job.files, job.config)
    trainer = StepSFTTrainer(
        model=policy,
        args=SFTConfig(**common_arguments(job.config, job.checkpoints), max_length=None),  # what is too long is out
        train_dataset=as_dataset(job.rows).select(order_for(job.config, job.rows)),
        eval_dataset=as_dataset(job.held_out) if job.held_out else None,
        processing_class=job.tokenizer,
    )
    with sharing_if_asked(policy, job.config):
        outcome = run_trainer(trainer, job)
    save(policy, job)
    return outcome


def as_dataset(rows: list[TokenRow]) -> Dataset:
    """Columns `input_ids` and `labels`, the labels -100 over the prompt."""
    ids = [row.prompt + row.completions[0] for row in rows]
    labels = [[-100] * len(row.prompt) + row.completions[0] for row in rows]
    return Dataset.from_dict({"input_ids": ids, "labels": labels})
