"""Training in this process: supervised rows, preference pairs by DPO, episodes by GRPO. Full weights, AdamW.

The losses are those of `steprag train` (TRL's DPO with `dpo.sft_weight`). They stand here again, because TRL takes
longer to keep its books than a model this small takes for a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steprag.experiments.tunnel.policy import padded

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

BETA = 0.1
CLIP = 0.2
"""GRPO's bound on the ratio of a token's probabilities."""


@dataclass(frozen=True)
class LearntRow:
    """A sequence of tokens; those of `spans` (start, end) are learnt."""

    ids: list[int]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Schedule:
    """Steps, rows a step (pairs count as one) and the highest learning rate."""

    steps: int = 80
    batch: int = 16
    rate: float = 1.5e-4


def learnt(rows: Sequence[LearntRow]) -> tuple[Tensor, Tensor]:
    """The rows as tensors: ids, and which of them are learnt, both (rows, tokens)."""
    ids = padded([row.ids for row in rows])
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        for start, end in row.spans:
            mask[number, start:end] = True
    return ids, mask


def token_logps(model: LlamaForCausalLM, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the learnt tokens, and the row of each."""
    told = mask[:, 1:]
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[told])
    return -functional.cross_entropy(logits, ids[:, 1:][told], reduction="none"), told.nonzero()[:, 0]


def row_logps(model: LlamaForCausalLM, rows: Sequence[LearntRow]) -> tuple[Tensor, Tensor]:
    """The log-probability of every row's learnt tokens, and how many these are."""
    logps, row = token_logps(model, *learnt(rows))
    zeros = torch.zeros(len(rows))
    return zeros.index_add(0, row, logps), zeros.index_add(0, row, torch.ones_like(logps))


class Optimiser:
    """AdamW with a warm-up of ten steps and a linear decay to a tenth, gradients clipped at norm 1."""

    def __init__(self, model: LlamaForCausalLM, schedule: Schedule) -> None:
        self._model, self._schedule, self._done = model, schedule, 0
        self._adam = torch.optim.AdamW(model.parameters(), schedule.rate, betas=(0.9, 0.98), weight_decay=0.0)

    def take(self, loss: Tensor) -> None:
        """One step downhill."""
        schedule = self._schedule
        rate = schedule.rate * min(1.0, (self._done + 1) / 10) * (1 - 0.9 * self._done / schedule.steps)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._adam.step()
        self._done += 1


def batches(count: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Places of rows, shuffled anew in every pass; fewer rows than a batch are drawn with repetition."""
    left = np.empty(0, dtype=int)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(count)])
        yield left[:size]
        left = left[size:]


def sft(model: LlamaForCausalLM, rows: Sequence[LearntRow], schedule: Schedule, rng: np.random.Generator) -> None:
    """Supervised steps: the mean over the batch's learnt tokens."""
    optimiser, order = Optimiser(model, schedule), batches(len(rows), schedule.batch, rng)
    for _ in range(schedule.steps):
        logps, _ = token_logps(model, *learnt([rows[i] for i in next(order)]))
        optimiser.take(-logps.mean())


def dpo(
    model: LlamaForCausalLM,
    pairs: Sequence[tuple[LearntRow, LearntRow]],
    schedule: Schedule,
    rng: np.random.Generator,
    sft_weight: float = 1.0,
) -> None:
    """DPO over (chosen, rejected), the chosen one's mean log-probability added with `sft_weight`."""
    reference = _margins(model, pairs)
    optimiser, order = Optimiser(model, schedule), batches(len(pairs), schedule.batch, rng)
    for _ in range(schedule.steps):
        places = next(order)
        margins, chosen = _margin(model, [pairs[i] for i in places])
        loss = -functional.logsigmoid(BETA * (margins - reference[places])).mean() - sft_weight * chosen.mean()
        optimiser.take(loss)


def _margin(model: LlamaForCausalLM, pairs: Sequence[tuple[LearntRow, LearntRow]]) -> tuple[Tensor, Tensor]:
    """Of every pair: log-probability of the chosen row minus the other's; mean a token of the chosen one."""
    sums, counts = row_logps(model, [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs])
    size = len(pairs)
    return sums[:size] - sums[size:], sums[:size] / counts[:size]


@torch.no_grad()
def _margins(model: LlamaForCausalLM, pairs: Sequence[tuple[LearntRow, LearntRow]], size: int = 64) -> Tensor:
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0].ids))
    found = torch.zeros(len(pairs))
    for first in range(0, len(order), size):
        places = order[first : first + size]
        found[places] = _margin(model, [pairs[i] for i in places])[0]
    return found
