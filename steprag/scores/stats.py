"""How sure a score is. scipy is imported on first use: the core must load quickly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
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


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` things, which need be no whole number."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2 / count
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))


@dataclass
class ClusteredShare:
    """How many things are hits where they come in clusters, such as answers of one search, which are alike.

    Clusters come one after the other, each under its number. `sums` runs over those that are complete: their number,
    and of count n and hits h of each n, h, n², nh and h².
    """

    cluster: int = -1
    count: int = 0
    hits: int = 0
    sums: tuple[int, ...] = (0,) * 6

    def add(self, cluster: int, hit: bool) -> None:
        """Counts one thing of a cluster."""
        if cluster != self.cluster:
            self.sums, self.cluster, self.count, self.hits = self._all(), cluster, 0, 0
        self.count += 1
        self.hits += hit

    def _all(self) -> tuple[int, ...]:
        n, h = self.count, self.hits
        return tuple(map(sum, zip(self.sums, (n > 0, n, h, n * n, n * h, h * h), strict=True)))

    def interval(self) -> tuple[int, int, tuple[float, float]]:
        """Hits, count and the 95 % interval, by the effective sample size (Korn and Graubard 1998): it follows from how
        much the clusters' shares vary (linearised variance of a ratio). Where they do not vary, a cluster counts once.
        """
        clusters, count, hits, counts, both, squares = self._all()
        if not count:
            return 0, 0, (0.0, 1.0)
        share = hits / count
        spread = max(0.0, squares - 2 * share * both + share * share * counts) / count**2
        effective = share * (1 - share) * (clusters - 1) / (clusters * spread) if spread > 1e-12 else clusters
        return hits, count, wilson(share, min(count, effective))


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
