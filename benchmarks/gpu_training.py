"""SFT and DPO in this process, on a GPU in bfloat16 with float32 copies for the optimiser.

The losses are those of `steprag train` (TRL's, DPO with `dpo.sft_weight`), without its books and files.
Few steps at a rate of some 1e-6 do not reach the next bfloat16 value of most weights (docs/figures/atlas-proof.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from steprag.experiments.tunnel.train import BETA, SFT_WEIGHT, batches

AT_ONCE = 8
"""Pairs in one pass: what memory bears where several processes share a card."""


@dataclass(frozen=True)
class LearntReply:
    """A prompt's tokens and those of the reply that is learnt."""

    prompt: list[int]
    reply: list[int]

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + len(self.reply)


LearntPair = tuple[LearntReply, LearntReply]
"""Chosen, rejected."""


@dataclass(frozen=True)
class Descent:
    """Batches, rows or pairs in one, the highest rate, and the steps of a linear rise to it. Then it falls to a tenth,
    or by a cosine to 0.
    """

    steps: int
    batch: int
    rate: float
    warmup: int = 10
    cosine: bool = False

    def rate_at(self, done: int) -> float:
        """The rate after so many steps."""
        if done < self.warmup:
            return self.rate * (done + 1) / self.warmup
        share = (done - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * ((1 + math.cos(math.pi * share)) / 2 if self.cosine else 1 - 0.9 * share)


def sft(model: Any, rows: Sequence[LearntReply], how: Descent, rng: np.random.Generator) -> list[float]:
    """Trains what `model` lets train, in place: the mean over a batch's tokens. Returns each quarter's mean loss."""

    def passed(drawn: list[int]) -> Iterator[Tensor]:
        sums, counts = _logps(model, [rows[place] for place in drawn])
        yield -sums.sum() / counts.sum()

    return _descend(model, len(rows), how, rng, passed)


def dpo(model: Any, pairs: Sequence[LearntPair], how: Descent, rng: np.random.Generator) -> list[float]:
    """The same over pairs, against what `model` is now; to it the chosen reply's mean log-probability is added."""
    places = sorted(range(len(pairs)), key=lambda place: pairs[place][0].length)
    reference = torch.zeros(len(pairs), device=model.device)
    with torch.no_grad():
        for some in _cut(places, 2 * AT_ONCE):
            reference[some] = _margins(model, [pairs[place] for place in some])[0]

    def passed(drawn: list[int]) -> Iterator[Tensor]:
        for some in _cut(sorted(drawn, key=lambda place: pairs[place][0].length), AT_ONCE):
            margins, chosen = _margins(model, [pairs[place] for place in some])
            yield (-logsigmoid(BETA * (margins - reference[some])) - SFT_WEIGHT * chosen).sum() / len(drawn)

    return _descend(model, len(pairs), how, rng, passed)


def _descend(
    model: Any, count: int, how: Descent, rng: np.random.Generator, passed: Callable[[list[int]], Iterator[Tensor]]
) -> list[float]:
    """AdamW on batches of `count` rows, shuffled anew in every pass; gradients are clipped at norm 1. `passed` gives
    the parts of a batch's loss.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    masters = [weight.detach().float().clone() for weight in weights]
    adam = torch.optim.AdamW(masters, how.rate, weight_decay=0.0, fused=model.device.type == "cuda")
    order, losses = batches(count, how.batch, rng), []
    for done in range(how.steps):
        for group in adam.param_groups:
            group["lr"] = how.rate_at(done)
        told = torch.zeros((), device=model.device)
        for loss in passed(next(order).tolist()):
            loss.backward()
            told += loss.detach()
        losses.append(told)
        for master, weight in zip(masters, weights, strict=True):
            master.grad, weight.grad = None if weight.grad is None else weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        adam.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
    return [
        round(float(np.mean(part)), 3) for part in np.array_split([loss.item() for loss in losses], min(4, how.steps))
    ]


def _margins(model: Any, pairs: Sequence[LearntPair]) -> tuple[Tensor, Tensor]:
    """Of every pair: log-probability of the chosen reply minus the other's; mean a token of the chosen one."""
    sums, counts = _logps(model, [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs])
    half = len(pairs)
    return sums[:half] - sums[half:], sums[:half] / counts[:half]


def _logps(model: Any, rows: Sequence[LearntReply]) -> tuple[Tensor, Tensor]:
    """The log-probability of every row's reply, and its tokens. `model` may be wrapped by PEFT."""
    width = max(row.length for row in rows)
    ids, learnt = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : row.length] = torch.tensor([*row.prompt, *row.reply])
        learnt[number, len(row.prompt) : row.length] = True
    ids, learnt = ids.to(model.device), learnt[:, 1:].to(model.device)
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    # padded on the right, so that causal attention needs no mask
    hidden = bare.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[learnt]
    logps = -cross_entropy(bare.lm_head(hidden).float(), ids[:, 1:][learnt], reduction="none")
    sums = torch.zeros(len(rows), device=model.device).index_add(0, learnt.nonzero()[:, 0], logps)
    return sums, learnt.sum(1)


def _cut(places: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(places), size):
        yield places[first : first + size]
