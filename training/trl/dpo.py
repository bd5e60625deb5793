"""Preferences with TRL's DPOTrainer. The reference is the policy as it stands when training starts.

With an adapter to continue, that is base and adapter, not the bare base. Its log-probabilities are computed once,
before the first step, so that a step costs one forward pass and no second model stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from trl.models.utils import prepare_deepspeed
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from steprag.console.progress import Progress
from training.config import DpoSection
from training.job import Job, Outcome
from training.model import freeze_below, load_policy
from training.order import order_for
from training.rows import TokenRow
from training.trl.common import REFERENCE, Refreezing, common_arguments, completion_only_head, run_trainer, save
from training.trl.shared_prefix import sharing_if_asked

SMOOTHING = "label_smoothing"
"""Column and batch key: the chance, of each pair, that its preference is the other way round."""


class StepDPOTrainer(Refreezing, DPOTrainer):
    """TRL's trainer on rows that are tokens already."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """The rows as they are: TRL would append what the template puts behind a turn's end."""
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        """The rows with their reference's log-probabilities; each process scores a share of them.

        TRL hands them from process to process by a file in a cache that data sets made in memory do not share.
        """
        model: Any = self.ref_model or self.model
        if self.is_deepspeed_enabled:  # which has not yet placed and gathered weights: no training has begun
            model = self._precompute_engine = self._precompute_engine or prepare_deepspeed(model, self.accelerator)
        loader = DataLoader(dataset, batch_size, collate_fn=self.data_collator)  # pyright: ignore[reportArgumentType]
        scored: list[Any] = []
        with Progress(f"reference, {name}", len(dataset), "pairs") as bar:
            for batch in self.accelerator.prepare(loader):
                pair = self.compute_ref_log_probs(model, batch)
                scored.append([part.cpu() for part in self.accelerator.gather_for_metrics(pair)])
                bar.advance(len(scored[-1][0]))
        for column, parts in zip(("ref_chosen_logps", "ref_rejected_logps"), zip(*scored, strict=True), strict=True):
            dataset = dataset.add_column(column, torch.cat(parts).tolist())  # pyright: ignore[reportCallIssue]
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = sorted({*(self._signature_columns or ()), SMOOTHING})

    def _compute_loss(self, model: Any, inputs: Any, return_outputs: bool) -> Any:
        """TRL's loss, its sigmoid part smoothed by row: (1 - ε) · -log σ(βΔ) + ε · -log σ(-βΔ), conservative DPO.

        TRL 1.16 smooths no sigmoid loss. As -log σ(-x) is x - log σ(x), smoothing adds εβΔ to TRL's -log σ(βΔ).
        """
        if SMOOTHING not in inputs:
            return super()._compute_loss(model, inputs, return_outputs)
        inputs = dict(inputs)
        smoothing = inputs.pop(SMOOTHING)
        seen: list[Any] = []
        hook = model.register_forward_hook(lambda module, given, outputs: seen.append(outputs.log_probs))
        try:
            found = super()._compute_loss(model, inputs, return_outputs)
        finally:
            hook.remove()
        chosen, rejected = seen[0].sum(dim=1).chunk(2)
        delta = (chosen - inputs["ref_chosen_logps"]) - (rejected - inputs["ref_rejected_logps"])
        weight = sum(w for name, w in zip(self.loss_types, self.loss_weights, strict=True) if name == "sigmoid")
        added = weight * (smoothing * self.beta * delta).mean()
        return (found[0] + added, found[1]) if return_outputs else found + added


def train(job: Job) -> Outcome:
    """Trains and saves."""
    policy = load_policy(job.files, job.config)
    with completion_only_head(), sharing_if_asked(policy, job.config):
        trainer = build(policy, job)
        outcome = run_trainer(trainer, job)
    save(policy, job)
    return outcome


def build(policy: Any, job: Job) -> StepDPOTrainer:
    """The trainer, its reference scored and its rows in the order of training."""
    config, rows = job.config, job.rows
    order = order_for(config, rows)
    # Rows that are trained, each once, in the batches of the first epoch. What stands beside a row moves its
    # log-probability in half precision: with the same rows beside it, policy and reference start alike.
    needed = list(dict.fromkeys(order))
    trainer = StepDPOTrainer(
        model=policy,
        args=DPOConfig(
            **common_arguments(config, job.checkpoints),
            **losses(config.dpo),
            max_length=None,  # rows that are too long have been left out
            beta=config.dpo.beta,
            precompute_ref_log_probs=True,
        ),
        train_dataset=as_dataset([rows[i] for i in needed], config.dpo.smoothing),
        eval_dataset=as_dataset(job.held_out, config.dpo.smoothing) if job.held_out else None,
        processing_class=job.tokenizer,
    )
    trainer.data_collator = smoothed(trainer.data_collator)
    if REFERENCE in getattr(policy, "peft_config", {}):
        policy.delete_adapter(REFERENCE)  # scored; kept, it would go into every checkpoint
    for name, module in policy.named_modules():  # TRL turned off the dropout of the whole model
        if ".lora_dropout." in name and isinstance(module, torch.nn.Dropout):
            module.p = config.lora.dropout
    freeze_below(policy, config.lora.layers)  # adding that adapter made every block trainable
    place = {row: i for i, row in enumerate(needed)}
    trainer.train_dataset = trainer.train_dataset.select([place[row] for row in order])  # pyright: ignore
    return trainer


def losses(section: DpoSection) -> dict[str, Any]:
    """TRL's loss names and weights; the chosen step's likelihood joins as one more loss."""
    names, weights = list(section.loss), [1.0] * len(section.loss)
    if section.sft_weight:
        names, weights = [*names, "sft"], [*weights, section.sft_weight]
    return {"loss_type": names, "loss_weights": weights}


def as_dataset(rows: list[TokenRow], smoothing: bool = False) -> Dataset:
    """Columns `prompt_ids`, `chosen_ids`, `rejected_ids`; with `smoothing`, where a row has some, `label_smoothing`."""
    chosen, rejected = zip(*(row.completions for row in rows), strict=True)
    prompts = [row.prompt for row in rows]
    columns: dict[str, Any] = {"prompt_ids": prompts, "chosen_ids": chosen, "rejected_ids": rejected}
    if smoothing and any(row.smoothing for row in rows):
        columns[SMOOTHING] = [row.smoothing or 0.0 for row in rows]
    return Dataset.from_dict(columns)


def smoothed(collate: Callable[[list[Any]], dict[str, Any]]) -> Callable[[list[Any]], dict[str, Any]]:
    """TRL's collator, which also brings the rows' smoothing into the batch where they have the column."""

    def collated(rows: list[Any]) -> dict[str, Any]:
        column = [row[SMOOTHING] for row in rows if SMOOTHING in row]
        return {**collate(rows), **({SMOOTHING: torch.tensor(column)} if column else {})}

    return collated
