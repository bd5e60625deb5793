"""Curves of a training run as a picture, `curves.png`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from steprag.console.plots import new_figure, save_png
from steprag.runs.run import events_of

PANELS = {
    "loss": ("loss", "eval_loss"),
    "reward accuracy": ("rewards/accuracies", "accuracy", "eval_rewards/accuracies"),
    "reward of episodes": ("reward",),
    "divergence from the start": ("kl",),
    "share of groups dropped": ("groups_dropped",),
    "log-probability of right episodes, a token": ("episodes/right_logp",),
    "answered share": ("episodes/answered",),
    "share of repeated steps": ("episodes/repeated",),
    "tokens of an episode": ("episodes/tokens",),
    "trainer over engine": ("sampling/ratio_mean", "sampling/ratio_q01", "sampling/ratio_q99"),
    "divergence of trainer and engine": ("sampling/kl",),
    "reward margin": ("rewards/margins", "eval_rewards/margins"),
}
"""What each panel shows: the keys of `metrics.jsonl` by which TRL and LLaMA-Factory log it (held out: a cross)."""

WIDE = 4
"""Panels side by side."""
MARKS = {"kept": "weights kept", "step": "collapsed"}

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


def draw(metrics: Path, out: Path, title: str, collapse: dict[str, Any] | None = None) -> None:
    """Writes the picture; nothing where no step was logged. `collapse`: of the manifest; its two steps are marked."""
    panels = curves(metrics)
    if not panels:
        return
    rows, columns = -(-len(panels) // WIDE), min(WIDE, len(panels))
    figure = new_figure(4.2 * columns, 3.2 * rows)
    figure.suptitle(title, fontsize=10)
    places = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, (panel, keys) in zip(places, panels.items(), strict=False):
        for key, points in keys.items():
            steps, values = zip(*points, strict=True)
            if key.startswith("eval_"):
                axes.plot(steps, values, "x", color="C1", markersize=8, label="held out")
            else:
                axes.plot(steps, values, color="C0", linewidth=1, alpha=0.35)
                axes.plot(steps, smooth(values), color="C0", label="training, smoothed")
        for name, color in (("kept", "C2"), ("step", "C3")):
            if collapse:
                axes.axvline(collapse[name], color=color, linestyle="--", label=MARKS[name])
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
