"""A step critic with transformers' Trainer: base and adapter with one number in place of words, read at a step's end.

TRL's reward trainer learns from pairs; here every step has a value of its own, which says more than which of two is
better.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.stats import rankdata
from transformers import DataCollatorWithPadding, EvalPrediction, TrainingArguments

from steprag.agent.critic import pad_with, step_ids
from training.job import Job, Outcome
from training.model import load_policy
from training.order import order_for
from training.rows import TokenRow
from training.trl.common import Refreezing, common_arguments, run_trainer, save


class StepCriticTrainer(Refreezing):
    """The Trainer, which takes the model's loss for the mean over one batch and not over all that make a step."""

    loss_is_scaled_for_ga = False


def train(job: Job) -> Outcome:
    """Trains and saves."""
    critic = load_policy(job.files, job.config)
    pad_with(job.tokenizer, critic)
    arguments: dict[str, Any] = {
        **common_arguments(job.config, job.checkpoints),
        "prediction_loss_only": False,
        "average_tokens_across_devices": False,  # its loss is no mean over tokens
    }
    trainer = StepCriticTrainer(
        model=critic,
        args=TrainingArguments(**arguments),
        train_dataset=as_dataset(job.rows).select(order_for(job.config, job.rows)),  # pyright: ignore
        eval_dataset=as_dataset(job.held_out) if job.held_out else None,  # pyright: ignore
        data_collator=DataCollatorWithPadding(job.tokenizer),
        compute_metrics=partial(measures, job.held_out),
    )
    outcome = run_trainer(trainer, job)
    save(critic, job)
    return outcome


def as_dataset(rows: list[TokenRow]) -> Dataset:
    """Columns `input_ids` and `labels`, the value as a list of one."""
    ids = [step_ids(row.prompt, row.completions[0]) for row in rows]
    return Dataset.from_dict({"input_ids": ids, "labels": [[row.value] for row in rows]})


def measures(rows: list[TokenRow], found: EvalPrediction) -> dict[str, float]:
    """How scores and values of the held-out `rows` go together.

    `pearson` and `spearman` from -1 to 1, left out where all are alike; `pairwise`, the share of siblings of different
    values that the scores put in the right order (a tie counts half), and `sibling_pairs`, how many there are.
    """
    scores, values = np.ravel(np.asarray(found.predictions)), np.ravel(np.asarray(found.label_ids))
    measured: dict[str, Any] = {}
    if np.ptp(scores) > 0 and np.ptp(values) > 0:
        measured["pearson"] = float(np.corrcoef(scores, values)[0, 1])
        measured["spearman"] = float(np.corrcoef(rankdata(scores), rankdata(values))[0, 1])
    siblings: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        siblings[tuple(row.prompt)].append(number)
    pairs = [pair for group in siblings.values() for pair in combinations(group, 2)]
    right = [
        (1 + np.sign(scores[one] - scores[other]) * np.sign(values[one] - values[other])) / 2
        for one, other in pairs
        if values[one] != values[other]
    ]
    if right:
        measured |= {"pairwise": float(np.mean(right)), "sibling_pairs": len(right)}
    return measured
