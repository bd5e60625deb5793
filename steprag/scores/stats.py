"""How sure a score is. scipy is imported on first use: the core must load quickly."""

from __future__ import annotations

from typing import Any

CONFIDENCE = 0.95
RESAMPLES = 2000
DRAWN_AT_ONCE = 2_000_000
"""Values of resamples in memory at a time."""


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: right even for a share of 0 or 1 and a few dozen questions."""
    from scipy.stats import binomtest

    interval = binomtest(hits, count).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(values: list[float]) -> tuple[float, float]:
    """Percentile bootstrap's 95 % interval of a mean, seeded; the value itself twice where all are equal."""
    from scipy.stats import bootstrap

    if len(set(values)) == 1:
        return values[0], values[0]
    batch = max(1, min(RESAMPLES, DRAWN_AT_ONCE // len(values)))
    result = bootstrap((values,), _mean, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile",
                       vectorized=True, batch=batch, rng=0)  # fmt: skip
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _mean(values: Any, axis: int) -> Any:
    return values.mean(axis=axis)


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p of the exact McNemar test, from the questions that only one of two runs got right."""
    from scipy.stats import binomtest

    return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def shown(low: float, high: float, p: float) -> int:
    """The verdict on a paired difference: 1 a gain, -1 a loss, 0 neither.

    Interval and exact test must both say so: where few questions differ, the bootstrap's interval is too narrow.
    """
    if p >= 1 - CONFIDENCE:
        return 0
    return 1 if low > 0 else -1 if high < 0 else 0
