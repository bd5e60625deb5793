"""How long a training run takes, from arithmetic alone: an estimate, since no GPU was at hand to compare it with.

A trained weight costs 6 floating-point operations a token, a frozen one 4, a second forward pass 2 more (arXiv
2001.08361, attention left out). A device gives `SHARE` of its makers' peak.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from steprag.engines.threads import product_flops
from training.config import TrainConfig
from training.machine import Device

PEAK = {
    "t4": 65, "l4": 121, "a10": 125, "3090": 71, "4090": 165, "a6000": 155, "l40s": 362,
    "a100": 312, "h100": 989, "h200": 989,
}  # fmt: skip
"""Teraflops of dense products in bfloat16 (T4: float16), from the makers' data sheets."""
OTHER_CARDS = frozenset({"laptop", "mobile", "max", "d", "grid"})
"""Words that make another card of a name in PEAK."""
SHARE = 0.3
"""Of the peak: what trainers of models of this size reach, roughly, between 0.2 and 0.4."""


@dataclass(frozen=True)
class Data:
    """What is trained on: rows; tokens of a mean answer, of a mean prompt and answer, and of the longest together."""

    rows: int
    answer: float
    mean: float
    longest: int


PUBLISHED = Data(rows=13289, answer=40, mean=500, longest=2390)
"""RAG_ProGuide: 13,289 pairs, prompt and answer 2,390 tokens at most, half of them under 478."""


def hours(config: TrainConfig, weights: int, data: Data, device: Device, devices: int) -> float | None:
    """Hours of the training loop; `weights`: those that every token is multiplied with. None for stage grpo, whose time
    is its episodes', and for an unknown device.
    """
    speed = _speed(device)
    if config.stage == "grpo" or speed is None:
        return None
    rows = config.epochs * data.rows
    if config.max_steps:
        rows = config.max_steps * config.batch_size * config.accumulation * devices * config.nodes
    sequences = 1.0 if config.stage != "dpo" else 1 + data.answer / data.mean if config.shares else 2.0
    tokens = rows * sequences * data.mean
    return tokens * _operations(config, weights) / (devices * config.nodes * speed) / 3600


def _operations(config: TrainConfig, weights: int) -> int:
    """Floating-point operations of a token."""
    passes = 6 if config.finetuning == "full" else 4
    passes += 2 * config.gradient_checkpointing + 2 * (config.stage == "dpo")  # a second forward pass; the reference's
    return passes * weights


def _speed(device: Device) -> float | None:
    """Operations a second; a processor's are measured by a product of float32."""
    if device.name.endswith("cores"):
        return 2 * SHARE * product_flops()
    words = set(re.findall(r"[a-z0-9]+", device.name.lower()))
    known = [teraflops for name, teraflops in PEAK.items() if name in words]
    return SHARE * device.share * known[0] * 1e12 if known and not words & OTHER_CARDS else None
