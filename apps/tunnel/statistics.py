"""Differences between arms, paired by seed and by question, and the goals that were set before the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """Points of exact match between two arms. `low`, `high`: 95 %, t over the seeds; `drawn`: bootstrap over seeds and
    questions; `p`: two-sided t-test over the seeds; all NaN with one seed. `seeds`: each seed's own.
    """

    mean: float
    low: float
    high: float
    drawn: tuple[float, float]
    p: float
    seeds: tuple[float, ...]

    @property
    def shown(self) -> tuple[str, str]:
        """As a table has it: the mean and its interval by t, the bootstrap's interval."""
        if len(self.seeds) < 2:
            return f"{self.mean:+.1f}", ""
        by_t, drawn = ("{:+.1f} to {:+.1f}".format(*each) for each in ((self.low, self.high), self.drawn))
        return f"{self.mean:+.1f} ({by_t})", drawn

    def beyond(self, bound: float) -> float:
        """p of the seeds' mean not lying above `bound` (one-sided t-test)."""
        from scipy.stats import t

        error = np.std(self.seeds, ddof=1) / len(self.seeds) ** 0.5
        return float(t.sf((self.mean - bound) / max(error, 1e-9), len(self.seeds) - 1))


def of_seeds(gaps: np.ndarray) -> PairedDifference:
    """The mean of points (seeds, questions) and how sure it is."""
    from scipy.stats import t, ttest_1samp

    seeds = gaps.mean(1)
    count, mean = len(seeds), float(seeds.mean())
    if count < 2:
        nan = float("nan")
        return PairedDifference(mean, nan, nan, (nan, nan), nan, tuple(seeds.tolist()))
    half = float(t.ppf(0.975, count - 1) * seeds.std(ddof=1) / count**0.5)
    p = float(np.asarray(ttest_1samp(seeds, 0.0))[1]) if seeds.std() > 0 else float(mean == 0)
    low, high = np.percentile(resampled(gaps), [2.5, 97.5]).tolist()
    return PairedDifference(mean, mean - half, mean + half, (low, high), p, tuple(seeds.tolist()))


def resampled(gaps: np.ndarray) -> np.ndarray:
    """Means of `RESAMPLES` draws with repetition: of seeds, and for all of them of the same questions."""
    rng, (seeds, questions) = np.random.default_rng(0), gaps.shape
    of_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
    of_question = rng.multinomial(questions, np.full(questions, 1 / questions), RESAMPLES) / questions
    return ((of_seed @ gaps) * of_question).sum(1)


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number (Holm's step-down method)."""
    corrected, worst = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=ps.__getitem__)):
        worst = max(worst, min(1.0, ps[name] * (len(ps) - rank)))
        corrected[name] = worst
    return corrected


def trend(by_step: Sequence[np.ndarray]) -> PairedDifference:
    """The rise a step of what (seeds, questions) of several cells say, seed by seed: the least-squares slope."""
    means = np.stack([gaps.mean(1) for gaps in by_step])
    place = np.arange(len(means)) - (len(means) - 1) / 2
    slopes = (place[:, None] * means).sum(0) / (place**2).sum()
    return of_seeds(slopes[:, None])
