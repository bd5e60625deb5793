"""`first_answer`: credit from one whole episode, as without a search."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.estimates import Rewards, estimates, outcomes
from steprag.agent.facts import Facts


def first_answer(facts: Facts, label: LabelConfig) -> Rewards:
    """What the first answer found at or below a node was worth.

    Siblings of different value are then where a right episode parts from a wrong one. It has no standard error.
    """
    leaves = outcomes(facts.tree, label)
    first = [None if value is None else place for place, value in enumerate(leaves)]
    for node in reversed(facts.tree.nodes):
        found = first[node.id]
        if found is not None and node.parent is not None:
            first[node.parent] = min(found, first[node.parent] or found)
    values = [None if found is None else leaves[found] for found in first]
    return estimates(values, None, "first_answer")
