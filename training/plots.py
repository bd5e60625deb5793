"""Curves of a training run as a picture, `curves.png`."""

from __future__ import annotations

import math
from pathlib import Path

from steprag.console.plots import new_figure, save_png
from steprag.runs.run import events_of

PANELS = {
    "loss": ("loss", "eval_loss"),
    "reward accuracy": ("rewards/accuracies", "accuracy", "eval_rewards/accuracies"),
    "reward of episodes": ("reward",),
    "divergence from the start": ("kl",),
    "share of groups dropped": ("groups_dropped",),
    "reward margin": ("rewards/margins", "eval_rewards/margins"),
}
"""What each panel shows: the keys of `metrics.jsonl` by which TRL and LLaMA-Factory log it (held out: a cross)."""

Points = list[tuple[int, float]]


def curves(metrics: Path) -> dict[str, dict[str, Points]]:
    """Panel → key → (step, value), for what was logged. A step that an interrupted run made twice counts once."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in events_of(metrics):
        for panel, keys in PANELS.items():
            for key in keys:
                if "step" in row and isinstance(row.get(key), (int, float)):
                    found.setdefault(panel, {}).setdefault(key, {})[row["step"]] = row[key]
    return {panel: {key: sorted(at.items()) for key, at in keys.items()} for panel, keys in found.items()}


def draw(metrics: Path, out: Path, title: str) -> None:
    """Writes the picture; nothing where no step was logged."""
    panels = curves(metrics)
    if not panels:
        return
    figure = new_figure(4.2 * len(panels), 3.2)
    figure.suptitle(title, fontsize=10)
    for axes, (panel, keys) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for key, points in keys.items():
            steps, values = zip(*points, strict=True)
            if key.startswith("eval_"):
                axes.plot(steps, values, "x", color="C1", markersize=8, label="held out")
            else:
                axes.plot(steps, values, color="C0", linewidth=1, alpha=0.35)
                axes.plot(steps, smooth(values), color="C0", label="training, smoothed")
        axes.set(xlabel="step", title=panel)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
    save_png(figure, out, dpi=120)


def smooth(values: tuple[float, ...]) -> list[float]:
    """Running mean that looks back over about a tenth of the run, corrected for its start."""
    keep = 1 - 1 / max(1.0, len(values) / 10)
    total = weight = 0.0
    made = []
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        made.append(total / weight if math.isfinite(total) else value)
    return made
