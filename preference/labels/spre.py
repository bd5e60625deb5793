"""`spre`: the mean outcome of the answers below a step, with its standard error (SPRE of arXiv 2505.14069)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from preference.config import LabelConfig
from preference.labels.estimates import Estimate, Rewards, outcomes
from steprag.agent.facts import Facts
from steprag.tree import Tree


def spre(facts: Facts, label: LabelConfig) -> Rewards:
    """The mean over the answers at or below a node of F1 × alpha^steps, weighted by visits.

    Played episodes stay in the tree, so every answer below is one rollout.
    """
    return mean_below(facts.tree, outcomes(facts.tree, label), "spre")


def summed_below(tree: Tree, own: Sequence[float]) -> list[float]:
    """For every node by id, the sum of the values at or below it."""
    sums = [0.0] * len(own)
    for node in reversed(tree.nodes):  # children come after their parents, so each is complete when it is reached
        sums[node.id] += own[node.id]
        if node.parent is not None:
            sums[node.parent] += sums[node.id]
    return sums


def mean_below(tree: Tree, leaves: Sequence[float | None], basis: str) -> Rewards:
    """The mean of the leaf values at or below every node, each weighted by its node's visits (at least one).

    A single leaf's own value is exact. Else the standard error is that of a mean of so many rollouts, their variance
    pooled with the tree's as if that were one rollout more: one or two alone do not show how much rollouts vary.
    """
    if all(value is None for value in leaves):
        return [None] * len(tree.nodes)
    rated = [
        (0, 0.0) if value is None else (max(node.visits, 1), value)
        for node, value in zip(tree.nodes, leaves, strict=True)
    ]
    weight = summed_below(tree, [visits for visits, _ in rated])
    squares = summed_below(tree, [visits * visits for visits, _ in rated])
    total = summed_below(tree, [visits * value for visits, value in rated])
    total_squares = summed_below(tree, [visits * value * value for visits, value in rated])
    spread = _spread(weight[0], squares[0], total[0], total_squares[0])
    found: Rewards = []
    for node in tree.nodes:
        w = weight[node.id]
        if not w:
            found.append(None)
            continue
        mean = total[node.id] / w
        if leaves[node.id] is not None:
            error: float | None = 0.0
        elif spread is None:
            error = None
        else:
            rollouts = w * w / squares[node.id]
            within = max(0.0, total_squares[node.id] / w - mean * mean) * rollouts
            error = math.sqrt(within + spread) / rollouts
        found.append(Estimate(mean, error, basis))
    return found


def _spread(weight: float, squares: float, total: float, total_squares: float) -> float | None:
    """The unbiased variance of all leaf values of a tree; None with fewer than two."""
    rollouts = weight * weight / squares if squares else 0.0
    if rollouts <= 1:
        return None
    mean = total / weight
    return max(0.0, total_squares / weight - mean * mean) * rollouts / (rollouts - 1)
