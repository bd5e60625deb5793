"""Shares with their intervals, of comparisons or answers that come in trees: those of one tree are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from steprag.scores.stats import CONFIDENCE


@dataclass
class TreeShare:
    """How many of the things that were added are hits. Trees come one after the other, each under its number.

    The sums run over the trees that are complete: their number, and of count n and hits h of each n, h, n², nh and h².
    """

    tree: int = -1
    count: int = 0
    hits: int = 0
    sums: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)

    def add(self, tree: int, hit: bool) -> None:
        """Counts one thing of a tree."""
        if tree != self.tree:
            self.sums, self.tree, self.count, self.hits = self._all(), tree, 0, 0
        self.count += 1
        self.hits += hit

    def _all(self) -> tuple[int, int, int, int, int, int]:
        """The sums with the tree that is not complete yet."""
        n, h = self.count, self.hits
        trees, count, hits, counts, both, squares = self.sums
        return trees + (n > 0), count + n, hits + h, counts + n * n, both + n * h, squares + h * h

    def report(self) -> dict[str, Any]:
        """The share with its 95 % interval, by the effective sample size (Korn and Graubard 1998): it follows from how
        much the trees' shares vary (linearised variance of a ratio). Where they do not vary, it is the number of trees.
        """
        trees, count, hits, counts, both, squares = self._all()
        share = hits / max(1, count)
        spread = max(0.0, squares - 2 * share * both + share * share * counts) / max(1, count) ** 2
        effective = share * (1 - share) * (trees - 1) / (trees * spread) if spread > 1e-12 else trees
        return share_of(hits, count, min(count, effective))


def share_of(hits: int, count: int, effective: float | None = None) -> dict[str, Any]:
    """A share with Wilson's 95 % interval of `effective` independent things, by default of all; None for a share of
    nothing.
    """
    if not count:
        return {"share": None, "low": None, "high": None, "count": 0}
    low, high = wilson(hits / count, effective or count)
    return {"share": hits / count, "low": low, "high": high, "count": count}


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` things, which need be no whole number."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2 / count
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))
