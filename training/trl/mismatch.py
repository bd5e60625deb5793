"""How far an engine's log-probabilities are from the trainer's, and what corrects the loss for it."""

from __future__ import annotations

import numpy as np
import torch
from accelerate.utils import gather_object

from steprag.errors import TrainingError


class Mismatch:
    """The gaps of one step: log-probability in training minus that in the engine, of every sampled token."""

    def __init__(self, most: float, cap: float) -> None:
        """`most`: the largest divergence a token; `cap`: the largest ratio of a sequence that is learnt from."""
        self._most, self._cap = most, cap
        self._gaps: list[torch.Tensor] = []
        self._masked: list[bool] = []

    def ratio(self, gap: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """TRL's `importance_sampling_ratio`, mode sequence_mask, (rows, 1): of whole completions, 0 above the cap."""
        learnt = mask.bool()
        self._gaps.append(gap[learnt].float().cpu())
        ratio = (gap * mask).sum(-1, keepdim=True).exp()
        over = ratio > self._cap
        self._masked += over[learnt.any(-1)].flatten().tolist()
        return ratio.masked_fill(over, 0.0)

    def checked(self, step: int) -> dict[str, float]:
        """The step's numbers, over all processes: of tokens the ratio's mean and quantiles and the KL divergence of
        trainer and engine; of completions the share that was masked. Empty without a token. The next step begins.

        Raises TrainingError where the engine cannot have sampled from the weights in training.
        """
        found = gather_object([([one for gaps in self._gaps for one in gaps.tolist()], self._masked)])
        self._gaps, self._masked = [], []
        gap = torch.tensor([one for gaps, _ in found for one in gaps], dtype=torch.double)
        masked = [one for _, each in found for one in each]
        if not len(gap):
            return {}
        ratio = gap.exp()
        low, high = np.quantile(ratio.numpy(), [0.01, 0.99])
        numbers = {"ratio_mean": ratio.mean(), "ratio_q01": low, "ratio_q99": high, "kl": (ratio - 1 - gap).mean()}
        numbers = {name: float(one) for name, one in numbers.items()} | {"masked": sum(masked) / len(masked)}
        if not numbers["kl"] <= self._most:
            told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
            raise TrainingError(
                f"step {step}: the engine does not sample from the weights in training ({told}; grpo.mismatch allows "
                f"kl {self._most:g}); check that it serves the same base and precision, with processed_logprobs"
            )
        return {f"sampling/{name}": value for name, value in numbers.items()}
