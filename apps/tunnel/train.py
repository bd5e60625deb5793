"""Training in this process: supervised rows, preference pairs by DPO. Full weights, AdamW.

The losses are those of `steprag train` (TRL's DPO with `dpo.sft_weight`). They stand here again, because TRL takes
longer to keep its books than a model this small takes for a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from apps.tunnel.model import PLACES, Weights, forward, logits
from apps.tunnel.policy import padded

BETA, SFT_WEIGHT = 0.1, 1.0


@dataclass(frozen=True)
class LearntRow:
    """A sequence of tokens; those of `spans` (start, end) are learnt."""

    ids: list[int]
    spans: tuple[tuple[int, int], ...]


LearntPair = tuple[LearntRow, LearntRow]
"""Chosen, rejected; they begin alike up to what is learnt."""


@dataclass(frozen=True)
class Schedule:
    """Steps, rows a step (pairs count as one) and the highest learning rate."""

    steps: int = 80
    batch: int = 16
    rate: float = 1.5e-4


class Packed(NamedTuple):
    """A batch. `ids`, `places`: (rows, tokens); `seen`: as in `forward`. Of every learnt token, `at`: the row and place
    of the token before it; `target`: its id; `whose`: the number of its `LearntRow`, all first ones before all second.
    """

    ids: Tensor
    places: Tensor
    seen: Tensor | None
    at: tuple[Tensor, Tensor]
    target: Tensor
    whose: Tensor


def packed(groups: Sequence[tuple[LearntRow, ...]]) -> Packed:
    """Rows alone, or in pairs: of a pair what both begin with, then the first row's rest, then the second row's, which
    does not see the first one's.
    """
    begun, rows, told = [one.spans[0][0] for one, *_ in groups], [], []
    for number, (group, first) in enumerate(zip(groups, begun, strict=True)):
        ids, shift = list(group[0].ids), 0
        for turn, row in enumerate(group):
            if turn:
                shift = len(ids) - first
                ids += row.ids[first:]
            told += [(number, p - 1 + shift * (p > first), p + shift, number + turn * len(groups))
                     for low, high in row.spans for p in range(low, high)]  # fmt: skip
        rows.append(ids)
    ids, (row, before, at, whose) = padded(rows), torch.tensor(told).T
    places, seen = torch.arange(ids.shape[1]).expand_as(ids), None
    if len(groups[0]) > 1:
        first = torch.tensor(begun)[:, None]
        end = torch.tensor([len(one.ids) for one, *_ in groups])[:, None]
        second = places >= end
        hidden = second[:, :, None] & ((places >= first) & ~second)[:, None, :]
        seen = ((places[0][:, None] >= places[0])[None] & ~hidden)[:, None]
        places = torch.where(second, places - end + first, places).clamp(max=PLACES - 1)  # padding alone goes beyond
    return Packed(ids, places, seen, (row, before), ids[row, at], whose)


def token_logps(weights: Weights, batch: Packed) -> Tensor:
    """Log-probabilities of the learnt tokens."""
    hidden = forward(weights, batch.ids, batch.places, batch.seen)[batch.at]
    return -functional.cross_entropy(logits(weights, hidden), batch.target, reduction="none")


class Optimiser:
    """AdamW with a warm-up of ten steps and a linear decay to a tenth, gradients clipped at norm 1.

    `weights`: a copy of the start, which its steps change.
    """

    def __init__(self, start: Weights, schedule: Schedule) -> None:
        self.weights = {name: each.detach().clone().requires_grad_() for name, each in start.items()}
        self._schedule, self._done = schedule, 0
        self._adam = torch.optim.AdamW(self.weights.values(), schedule.rate, betas=(0.9, 0.98), weight_decay=0.0)

    def take(self, loss: Tensor) -> None:
        """One step downhill."""
        schedule = self._schedule
        rate = schedule.rate * min(1.0, (self._done + 1) / 10) * (1 - 0.9 * self._done / schedule.steps)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self._adam.step()
        self._done += 1


def batches(count: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Places of rows, shuffled again in every pass; fewer rows than a batch are drawn with repetition."""
    left = np.empty(0, dtype=int)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(count)])
        yield left[:size]
        left = left[size:]


def sft(start: Weights, rows: Sequence[LearntRow], schedule: Schedule, rng: np.random.Generator) -> Weights:
    """Supervised steps: the mean over the batch's learnt tokens."""
    optimiser, order = Optimiser(start, schedule), batches(len(rows), schedule.batch, rng)
    for _ in range(schedule.steps):
        some = sorted((rows[i] for i in next(order)), key=lambda row: len(row.ids))
        halves = [some[: len(some) // 2], some[len(some) // 2 :]]  # alike in length: less is padded
        optimiser.take(
            -torch.cat([token_logps(optimiser.weights, packed([(row,) for row in half])) for half in halves]).mean()
        )
    return optimiser.weights


def dpo(
    start: Weights, pairs: Sequence[LearntPair], schedule: Schedule, rng: np.random.Generator,
    note: Callable[[dict[str, float]], None] = lambda told: None,
) -> Weights:  # fmt: skip
    """DPO over (chosen, rejected), the chosen one's mean log-probability added with `SFT_WEIGHT`.

    `note` takes the loss and the rewards of every step, by TRL's names.
    """
    lengths = np.array([max(len(row.ids) for row in pair) for pair in pairs])
    reference = torch.zeros(len(pairs))
    for places in np.array_split(lengths.argsort(), -(-len(pairs) // 64)):
        with torch.no_grad():
            reference[places], _ = _margins(start, [pairs[i] for i in places])
    optimiser, order = Optimiser(start, schedule), batches(len(pairs), schedule.batch, rng)
    for step in range(1, schedule.steps + 1):
        batch = next(order)
        losses, gained = list[Tensor](), list[Tensor]()
        for places in np.array_split(batch[lengths[batch].argsort()], 2):  # alike in length: less is padded
            margins, chosen = _margins(optimiser.weights, [pairs[i] for i in places])
            gained += [BETA * (margins - reference[places])]
            losses += [-functional.logsigmoid(gained[-1]) - SFT_WEIGHT * chosen]
        loss, gain = torch.cat(losses).mean(), torch.cat(gained).detach()
        note({"step": step, "loss": loss.item(), "rewards/margins": gain.mean().item(),
              "rewards/accuracies": (gain > 0).float().mean().item()})  # fmt: skip
        optimiser.take(loss)
    return optimiser.weights


def _margins(weights: Weights, pairs: Sequence[LearntPair]) -> tuple[Tensor, Tensor]:
    """Of every pair: log-probability of the chosen row minus the other's; mean a token of the chosen one."""
    batch, size = packed(pairs), len(pairs)
    sums = torch.zeros(2 * size).index_add(0, batch.whose, token_logps(weights, batch))
    return sums[:size] - sums[size:], sums[:size] / batch.whose.bincount(minlength=2 * size)[:size]
