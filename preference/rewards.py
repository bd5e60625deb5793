"""Rewards of a finished tree: for every node, how good it was to go there. Nothing is written into the tree."""

from __future__ import annotations

from steprag.tree import discounted
from steprag.types import Tree


def spre(tree: Tree, alpha: float) -> list[float | None]:
    """The reward of every node by id: the mean over the answers at or below it of F1 × alpha^steps.

    None where no answer is below (a refused completion is not a wrong answer). SPRE of arXiv 2505.14069; since
    played episodes stay in the tree, every answer below is one rollout and the mean is visit-weighted.
    """
    totals, answers = [0.0] * len(tree.nodes), [0] * len(tree.nodes)
    for node in reversed(tree.nodes):  # children come after their parents, so each is complete when it is reached
        if node.prediction_f1 is not None:
            totals[node.id] += discounted(node.prediction_f1, node.depth, alpha)
            answers[node.id] += 1
        if node.parent is not None:
            totals[node.parent] += totals[node.id]
            answers[node.parent] += answers[node.id]
    return [total / count if count else None for total, count in zip(totals, answers, strict=True)]
