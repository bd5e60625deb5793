"""`gold`: the marked passages found and kept."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.estimates import Rewards, estimates, outcomes
from steprag.agent.facts import Facts, gold_shares, without_luck


def gold(facts: Facts, _: LabelConfig | None = None) -> Rewards:
    """`gold_shares`, each exact."""
    return estimates(gold_shares(facts), 0.0, "gold")


def gold_or_outcome(facts: Facts, label: LabelConfig) -> Rewards:
    """`gold`, and for answers that are no luck their outcome."""
    return with_outcomes(gold(facts), facts, label)


def with_outcomes(worth: Rewards, facts: Facts, label: LabelConfig) -> Rewards:
    """`worth` with the outcomes of answers that are no luck in place. They are compared with each other alone."""
    answers = estimates(outcomes(without_luck(facts).tree, label), 0.0, "answer")
    return [answer or one for one, answer in zip(worth, answers, strict=True)]
