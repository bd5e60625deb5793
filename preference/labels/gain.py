"""`gain`: what a step adds to the policy's belief in the golden answer."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.estimates import Rewards, estimates
from steprag.agent.belief import CONVINCED, FLOOR, floored, probability
from steprag.agent.facts import Facts, keeping, supported
from steprag.errors import ConfigError, quoted
from steprag.tree import Belief, Node

NATS = 20.0
"""Nats that count as 1: a margin of 0.1 is 2 nats, which is seven times as likely."""
SURE = -FLOOR / NATS
"""What a belief without doubt is worth."""
GOLD = 0.8
"""What all marked passages are worth on a question that can be guessed."""


def gain(facts: Facts, _: LabelConfig) -> Rewards:
    """What every step is worth by the belief after it, 0 to 1; None where that says nothing. Not discounted: siblings
    are as deep as each other.

    A step that does not end the episode: (nats above the floor) / `NATS`, 0 to `SURE`. An answer ends it: wrong, it is
    worth the belief it was given at, so that a query which adds to it is better; right, it is worth 1, or, partly
    right, as much of the way to 1. A right answer at a state that does not believe in it (`CONVINCED`) is luck and not
    compared.

    A search after which nobody asked (`search.score_found` off) is worth `SURE` where it found the golden answer, else
    the belief before it; None where the golden answer was kept before it, for then it has nothing to find.

    On questions that can be guessed belief says nothing. There the marked passages decide (`_by_gold`): find them,
    keep them, and search on rather than answer before the facts are there.

    Raises ConfigError where the tree has no beliefs.
    """
    if facts.guessable:
        return estimates(_by_gold(facts), 0.0, "gain")
    nodes = facts.tree.nodes
    if all(node.belief is None for node in nodes):
        raise ConfigError(
            f"the tree of question {quoted(facts.tree.question.id)} has no beliefs; "
            "add them: steprag trees belief --trees RUN --out RUN2"
        )

    def worth(node: Node) -> float | None:
        if node.failure is not None:
            return None
        if node.belief is not None:
            return _height(node.belief)
        before, found = nodes[node.parent or 0].belief, facts.golden_seen[node.id]
        if before is None:
            return None
        if node.terminal:
            return _answered(node, before)
        if facts.golden_kept[node.parent or 0] or found is None:
            return None
        return SURE if found else _height(before)

    return estimates([worth(node) for node in nodes], 0.0, "gain")


def _answered(node: Node, before: Belief) -> float | None:
    if node.prediction_f1 is None or (node.prediction_f1 and probability(before) < CONVINCED):
        return None
    return _height(before) + node.prediction_f1 * (1 - _height(before))


def _height(belief: Belief) -> float:
    return (floored(belief) - FLOOR) / NATS


def _by_gold(facts: Facts) -> list[float | None]:
    """On questions that can be guessed: shares of the marked passages, 0 to `GOLD`; None everywhere without marks.

    A search: found by then. A step that keeps: named by then. An answer before the facts are there (`supported`): found
    by then, so that a query which finds one more is better. An answer after that: `GOLD`, or 1 where it is right.
    """
    if facts.gold is None:
        return [None] * len(facts.tree.nodes)
    known, keeps = supported(facts), keeping(facts.grammar)
    values: list[float | None] = []
    for node, here in zip(facts.tree.nodes, facts.seen, strict=True):
        if node.failure is not None or node.parent is None:
            values.append(None)
        elif node.terminal and known[node.parent]:
            values.append(None if node.prediction_f1 is None else GOLD + node.prediction_f1 * (1 - GOLD))
        else:
            values.append(GOLD * facts.gold.share(len(here.kept if node.action in keeps else here.found)))
    return values
