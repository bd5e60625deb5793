"""`reasonrag`: the reward of the published pair builder (arXiv 2505.14069 and its code)."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.estimates import Rewards, estimates, outcomes
from steprag.agent.facts import Facts
from steprag.tree import children_of


def reasonrag(facts: Facts, label: LabelConfig) -> Rewards:
    """Leaves as `outcomes`, inner nodes the mean of their rewarded children, each weighted by its visits.

    Unlike `spre` a child's weight counts every visit, also those that ended below it without an answer. Sums run in the
    order of the children, so that the values are the builder's to the last bit. It has no standard error.
    """
    children, leaves = children_of(facts.tree), outcomes(facts.tree, label)
    values: list[float | None] = [None] * len(leaves)
    for node in reversed(facts.tree.nodes):
        rated = [(value, child.visits) for child in children[node.id] if (value := values[child.id]) is not None]
        visits = sum(count for _, count in rated)
        if not children[node.id]:
            values[node.id] = leaves[node.id]
        elif visits:
            values[node.id] = sum(value * count for value, count in rated) / visits
    return estimates(values, None, "reasonrag")
