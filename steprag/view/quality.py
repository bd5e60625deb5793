"""How the completions of a run follow the grammar, by action and over time; how long answers and episodes are.

Everything comes from what the file's listing notes of each record, so nothing is read again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from inference.scoring.figures import KINDS
from steprag.agent.compliance import compliance, over_time, together
from steprag.batch.results import Place
from steprag.scores.stats import mean_interval

BARS = 20
"""Bars of a histogram at most."""
CLOCKS = {"trees": "tree", "predictions": "prediction", "episodes": "training step"}
"""Files whose records note their completions, and what their time is counted in: the order of the file, or steps."""
LENGTHS = {
    **{name: (KINDS[name].label, KINDS[name].definition) for name in ("words", "steps", "searches", "sampled")},
    "depth": ("depth", "steps from the question to the deepest node of a tree"),
    "nodes": ("nodes", "nodes of a tree"),
}
"""The name and the meaning of each length, by the field of a record that holds it."""


def quality_of(kind: str, places: Sequence[Place]) -> dict[str, Any]:
    """The figures of a file of that kind (a key of `CLOCKS`); `n` records note their completions."""
    noted = [(number, place) for number, place in enumerate(places, 1) if "written" in place.counts]
    time = [(place.counts.get("step", number) if kind == "episodes" else number, place) for number, place in noted]
    parts = [(at, place.counts["written"]) for at, place in time]
    return {
        "kind": kind,
        "n": len(noted),
        "clock": CLOCKS[kind],
        "written": compliance(together(one for _, one in parts)),
        "over_time": over_time(parts),
        "lengths": list(_lengths([place for _, place in noted])),
    }


def _lengths(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for name, (label, definition) in LENGTHS.items():
        values = [place.counts[name] for place in places if isinstance(place.counts.get(name), int | float)]
        if values:
            low, high = mean_interval(list(map(float, values)))
            yield {"name": name, "label": label, "definition": definition, "n": len(values), "low": low, "high": high,
                   "value": statistics.fmean(values), "bars": _bars(values)}  # fmt: skip


def _bars(values: Sequence[float]) -> list[dict[str, float]]:
    """Counts of values between `from` and `to`, both included: of whole numbers in runs of equal width."""
    least, most = int(min(values)), int(max(values))
    width = max(1, -(-(most - least + 1) // BARS))
    counts = [0] * ((most - least) // width + 1)
    for value in values:
        counts[(int(value) - least) // width] += 1
    return [
        {"from": least + width * place, "to": least + width * (place + 1) - 1, "count": count}
        for place, count in enumerate(counts)
    ]
