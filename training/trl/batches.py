"""GRPO's questions in their order, and the rows of a step as batches of tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from trl.trainer.utils import pad

from training.config import TrainConfig
from training.play.episodes import StepRow


def padded(rows: Sequence[list[int]], fill: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of unlike length as one tensor, and a mask that is 0 where they were padded."""
    each = [torch.tensor(row) for row in rows]
    return pad(each, fill, side), pad([torch.ones_like(ids) for ids in each], 0, side)


def dealt(rows: Sequence[StepRow], size: int, process: int, processes: int) -> Iterator[tuple[list[StepRow], int]]:
    """A process's batches of at most `size` rows, and how many of a batch's rows are to be learnt.

    Every process has as many batches, of as many rows, as the others: they meet after each. Short batches are padded
    with the first row, whose loss is masked.
    """
    for start in range(0, len(rows), size * processes):
        now = rows[start : start + size * processes]
        width = -(-len(now) // processes)
        mine = now[process * width : (process + 1) * width]
        yield [*mine, *[rows[0]] * (width - len(mine))], len(mine)


def ended_at(ids: list[int], ends: list[int]) -> list[int]:
    """Up to the first token that ends a turn; what comes after it is padding."""
    end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: end + 1]


def question_order(config: TrainConfig, count: int) -> list[int]:
    """Numbers of the questions for the whole run, epochs laid end to end, each in its own order; whole steps."""
    a_step = config.grpo.questions
    steps = config.max_steps or max(1, round(config.epochs * count / a_step))
    shuffle, order = random.Random(config.seed), []
    while len(order) < steps * a_step:
        epoch = list(range(count))
        shuffle.shuffle(epoch)
        order += epoch
    return order[: steps * a_step]
