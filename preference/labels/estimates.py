"""What every label gives: an estimate for every node of a tree; and what the tree's answers were worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preference.config import LabelConfig
from steprag.scores.metrics import exact_match, f1_with_articles
from steprag.tree import Tree, discounted


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step was worth. `error` is the standard error: 0 where the value is exact, None where it is unknown.

    `basis` names the rewards that went in; values of different bases are not compared.
    """

    value: float
    error: float | None
    basis: str


Rewards = list[Estimate | None]
"""By node id; None where the label says nothing (a refused completion is not a wrong answer)."""


def estimates(values: Sequence[float | None], error: float | None, basis: str) -> Rewards:
    """Values of one basis that are all equally sure."""
    return [None if value is None else Estimate(value, error, basis) for value in values]


def outcomes(tree: Tree, label: LabelConfig) -> list[float | None]:
    """For every answer the search scored, metric × alpha^steps; None for every other node, and from the depth
    `unpaid_from` for all.

    The metric `f1` is the one that the tree holds; the others are computed from the answer's text.
    """
    metric = {"em": exact_match, "f1_with_articles": f1_with_articles}.get(label.metric)
    worth: list[float | None] = []
    for node in tree.nodes:
        score = node.prediction_f1 if label.unpaid_from is None or node.depth < label.unpaid_from else None
        if score is not None and metric is not None:
            score = metric(node.content, tree.question.golden_answers)
        worth.append(None if score is None else discounted(score, node.depth, label.alpha))
    return worth
