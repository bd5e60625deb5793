"""What a report says of the pairs that were kept: counts by action, depth, margin and length."""

from __future__ import annotations

from typing import Any

import numpy as np

from preference.candidates import Candidates

MARGIN_EDGES = [round(0.05 * i, 2) for i in range(21)]
LENGTH_BINS = 24


def pair_stats(candidates: Candidates, kept: np.ndarray, cutoff: int | None) -> dict[str, Any]:
    """Counts and histograms as JSON-ready values. Lengths are in characters; tokens only where they were counted."""
    numbers = np.bincount(candidates.column("cell")[kept], minlength=len(candidates.cells))
    actions: dict[str, int] = {}
    depths: dict[str, dict[str, int]] = {}
    for (action, rejected, depth), count in zip(candidates.cells, numbers.tolist(), strict=True):
        if count:
            name = action if action == rejected else f"{action} over {rejected}"
            actions[name] = actions.get(name, 0) + count
            row = depths.setdefault(str(depth), {})
            row[name] = row.get(name, 0) + count
    margins = candidates.column("margin")[kept]
    margins = margins[~np.isnan(margins)]
    chosen, rejected_ = (candidates.column(f"{side}_length")[kept].astype(int) for side in ("chosen", "rejected"))
    tokens = candidates.column("tokens")[kept]
    return {
        "pairs": int(kept.sum()),
        "actions": dict(sorted(actions.items())),
        "depths": {depth: dict(sorted(row.items())) for depth, row in sorted(depths.items(), key=lambda d: int(d[0]))},
        "margins": {**_summary(margins), "edges": MARGIN_EDGES,
                    "counts": np.histogram(margins, MARGIN_EDGES)[0].tolist()},
        "lengths": {
            "chosen": _summary(chosen),
            "rejected": _summary(rejected_),
            "chosen_is_shorter": int((chosen < rejected_).sum()),
            "chosen_is_longer": int((chosen > rejected_).sum()),
            **_histograms({"chosen": chosen, "rejected": rejected_}),
        },
        "tokens": {**_summary(tokens), "cutoff": cutoff, **_histograms({"pair": tokens})} if cutoff else None,
    }  # fmt: skip


def _summary(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", "median", "p99", "greatest"))
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(values.mean()), "median": float(p50), "p99": float(p99), "greatest": float(values.max())}


def _histograms(columns: dict[str, np.ndarray]) -> dict[str, Any]:
    """Histograms over common edges, whole numbers."""
    greatest = max((int(values.max()) for values in columns.values() if len(values)), default=1)
    width = max(1, -(-greatest // LENGTH_BINS))
    edges = [width * i for i in range(LENGTH_BINS + 1)]
    return {"edges": edges, "counts": {name: np.histogram(v, edges)[0].tolist() for name, v in columns.items()}}
