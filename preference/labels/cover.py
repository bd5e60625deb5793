"""`cover`: where the golden answer was met, or a name that leads to it."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.estimates import Rewards, estimates, outcomes
from steprag.agent.facts import Facts, golden_met
from steprag.tree import discounted


def cover(facts: Facts, label: LabelConfig) -> Rewards:
    """Whether the golden answer was met, 1 or 0, and for answers the outcome; × alpha^steps. What chained match says
    counts in its place (`Facts.met`).

    None everywhere on questions that can be guessed from their own words.
    """
    met = golden_met(facts) if facts.met is None else facts.met
    values = [None if one is None else discounted(float(one), node.depth, label.alpha)
              for node, one in zip(facts.tree.nodes, met, strict=True)]  # fmt: skip
    if any(value is not None for value in values):
        answers = outcomes(facts.tree, label)
        values = [answer if value is None else value for value, answer in zip(values, answers, strict=True)]
    return estimates(values, 0.0, "cover")
