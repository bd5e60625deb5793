"""Preferences with TRL's DPOTrainer. The reference is the policy as it stands when training starts.

With an adapter to continue, that is base and adapter, not the bare base. Its log-probabilities are computed once,
before the first step, so that a step costs one forward pass and no second model stays in memory.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

from datasets import Dataset
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from steprag.progress import Progress
from training.config import DpoSection
from training.job import Job, Outcome
from training.policy import freeze_below, load_policy
from training.rows import TokenRow, order_for
from training.shared_prefix import sharing
from training.trl_common import Refreezing, common_arguments, completion_only_head, run_trainer, save

REFERENCE = "ref"
"""TRL's name for the frozen copy of the adapter that training starts from."""


class StepDPOTrainer(Refreezing, DPOTrainer):
    """TRL's trainer on rows that are tokens already, with a bar over the pass that scores the reference."""

    bar: Progress | None = None

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """The rows as they are: TRL would append what the template puts behind a turn's end."""
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        os.environ["TQDM_DISABLE"] = "1"  # read by TRL alone at this point: one bar is enough
        try:
            with Progress(f"reference, {name}", len(dataset), "pairs") as self.bar:
                return super()._precompute_ref_logps(dataset, name, batch_size)
        finally:
            del os.environ["TQDM_DISABLE"]

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        scores = super().compute_ref_log_probs(model, inputs)
        if self.bar:
            self.bar.advance(len(scores[0]))
        return scores


def train(job: Job) -> Outcome:
    """Trains and saves."""
    policy = load_policy(job.files, job.config)
    section = job.config.dpo
    with completion_only_head(), sharing(policy, section.row_tokens) if section.share_prefix else nullcontext():
        trainer = build(policy, job)
        outcome = run_trainer(trainer, job)
    save(policy, job)
    return outcome


def build(policy: Any, job: Job) -> StepDPOTrainer:
    """The trainer, its reference scored and its rows in the order of training."""
    config = job.config
    # The reference is scored in this order: little padding, and pairs of one prompt side by side.
    rows = sorted(job.rows, key=lambda row: (len(row.prompt), row.prompt, row.length))
    order = order_for(config, rows)
    needed = sorted(set(order))  # `max_steps` may stop short of an epoch: no reference for rows that are never seen
    trainer = StepDPOTrainer(
        model=policy,
        args=DPOConfig(
            **common_arguments(config, job.checkpoints),
            **losses(config.dpo),
            max_length=None,  # rows that are too long have been left out
            beta=config.dpo.beta,
            precompute_ref_log_probs=True,
        ),
        train_dataset=as_dataset([rows[i] for i in needed]),
        eval_dataset=as_dataset(job.held_out) if job.held_out else None,
        processing_class=job.tokenizer,
    )
    trainer.layers = config.lora.layers
    if REFERENCE in getattr(policy, "peft_config", {}):
        policy.delete_adapter(REFERENCE)  # scored; kept, it would go into every checkpoint
    freeze_below(policy, config.lora.layers)  # adding that adapter made every block trainable
    place = {row: i for i, row in enumerate(needed)}
    trainer.train_dataset = trainer.train_dataset.select([place[row] for row in order])  # pyright: ignore
    return trainer


def losses(section: DpoSection) -> dict[str, Any]:
    """TRL's loss names and weights; the chosen step's likelihood joins as one more loss."""
    names, weights = list(section.loss), list(section.loss_weights or [1.0] * len(section.loss))
    if section.sft_weight:
        names, weights = [*names, "sft"], [*weights, section.sft_weight]
    return {"loss_type": names, "loss_weights": weights}


def as_dataset(rows: list[TokenRow]) -> Dataset:
    """Columns `prompt_ids`, `chosen_ids` and `rejected_ids`."""
    return Dataset.from_list([_columns(row) for row in rows])


def _columns(row: TokenRow) -> dict[str, list[int]]:
    chosen, rejected = row.completions
    return {"prompt_ids": row.prompt, "chosen_ids": chosen, "rejected_ids": rejected}
