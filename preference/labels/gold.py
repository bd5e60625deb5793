"""`gold`: the marked passages found and kept."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.facts import Facts, keeping, retrieving, without_luck
from preference.labels.estimates import Rewards, estimates, outcomes


def gold(facts: Facts, _: LabelConfig | None = None) -> Rewards:
    """The share of the gold passages that the episode has by then; None for other steps, everywhere without gold.

    A step that retrieves counts what the searches so far have found, a step that keeps (`Action.keeps`) what the kept
    text so far mentions.
    """
    if facts.gold is None:
        return [None] * len(facts.tree.nodes)
    searches, keeps = retrieving(facts.grammar), keeping(facts.grammar)
    shares: list[float | None] = []
    for node, seen in zip(facts.tree.nodes, facts.seen, strict=True):
        marks = seen.kept if node.action in keeps and node.content else seen.found if node.action in searches else None
        shares.append(None if marks is None else facts.gold.share(len(marks)))
    return estimates(shares, 0.0, "gold")


def gold_or_outcome(facts: Facts, label: LabelConfig) -> Rewards:
    """`gold`, and for answers that are no luck their outcome."""
    return with_outcomes(gold(facts), facts, label)


def with_outcomes(worth: Rewards, facts: Facts, label: LabelConfig) -> Rewards:
    """`worth` with the outcomes of answers that are no luck in place. They are compared with each other alone."""
    answers = estimates(outcomes(without_luck(facts).tree, label), 0.0, "answer")
    return [answer or one for one, answer in zip(worth, answers, strict=True)]
