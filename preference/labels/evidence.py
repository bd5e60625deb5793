"""`evidence`: the label that the evidence of each question allows."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.cover import cover
from preference.labels.estimates import Rewards
from preference.labels.gold import gold_or_outcome, with_outcomes
from steprag.agent.facts import Facts, without_luck


def evidence(facts: Facts, label: LabelConfig) -> Rewards:
    """`gold` where the question marks passages, else `cover`, chained. Where that says nothing, as where the answer can
    be guessed, answers alone. Lucky answers count nowhere.
    """
    if facts.gold is not None:
        return gold_or_outcome(facts, label)
    facts = without_luck(facts)
    worth = cover(facts, label)
    return worth if any(worth) else with_outcomes(worth, facts, label)
