"""Labels from what a step adds to the belief in the golden answer (`steprag.agent.belief`, `steprag.agent.belief`)."""

from __future__ import annotations

from preference.kept import gold_seen, golden_kept, golden_seen, keeping, supported
from steprag.agent.belief import CONVINCED, FLOOR, floored, probability
from steprag.agent.grammar import Grammar
from steprag.errors import ConfigError, quoted
from steprag.scores.gold import gold_of
from steprag.scores.metrics import guessable
from steprag.tree import Belief, Node, Tree

NATS = 20.0
"""Nats that count as 1: a margin of 0.1 is 2 nats, which is seven times as likely."""
SURE = -FLOOR / NATS
"""What a belief without doubt is worth."""
GOLD = 0.8
"""What all marked passages are worth on a question that can be guessed."""


def gain_values(tree: Tree, grammar: Grammar) -> list[float | None]:
    """What every step is worth by the belief after it, 0 to 1; None where that says nothing.

    A step that goes on: (nats above the floor) / `NATS`, 0 to `SURE`. An answer ends the episode: wrong, it is worth
    the belief it was given at, so that a query which adds to it is better; right, it is worth 1, or, partly right, as
    much of the way to 1. A right answer at a state that does not believe in it (`CONVINCED`) is luck and not compared.

    A search after which nobody asked (`search.score_found` off) is worth `SURE` where it found the golden answer, else
    the belief before it; None where the golden answer was kept before it, for then it has nothing to find.

    On questions that can be guessed belief tells nothing. There the labels go by the marked passages (`_by_gold`): find
    them, keep them, and search on rather than answer before the facts are there.

    Raises ConfigError where the tree has no beliefs.
    """
    if guessable(tree.question.question, tree.question.golden_answers):
        return _by_gold(tree, grammar)
    if all(node.belief is None for node in tree.nodes):
        raise ConfigError(
            f"the tree of question {quoted(tree.question.id)} has no beliefs; "
            "add them: steprag belief --trees RUN --out RUN2"
        )
    seen, kept = golden_seen(tree, grammar), golden_kept(tree, grammar)
    values: list[float | None] = []
    for node in tree.nodes:
        before = tree.nodes[node.parent].belief if node.parent is not None else None
        if node.failure is not None:
            values.append(None)
        elif node.belief is not None:
            values.append(_height(node.belief))
        elif before is None:
            values.append(None)
        elif node.terminal:
            values.append(_answered(node, before))
        else:
            values.append(None if kept[node.parent or 0] else _searched(seen[node.id], before))
    return values


def _searched(found: bool | None, before: Belief) -> float | None:
    return None if found is None else SURE if found else _height(before)


def _answered(node: Node, before: Belief) -> float | None:
    if node.prediction_f1 is None or (node.prediction_f1 and probability(before) < CONVINCED):
        return None
    return _height(before) + node.prediction_f1 * (1 - _height(before))


def _height(belief: Belief) -> float:
    return (floored(belief) - FLOOR) / NATS


def _by_gold(tree: Tree, grammar: Grammar) -> list[float | None]:
    """On questions that can be guessed: shares of the marked passages, 0 to `GOLD`; None everywhere without marks.

    A search: found by then. A step that keeps: named by then. An answer before the facts are there (`supported`): found
    by then, so that a query which finds one more is better. An answer after that: `GOLD`, or 1 where it is right.
    """
    gold = gold_of(tree.question)
    if gold is None:
        return [None] * len(tree.nodes)
    seen, known = gold_seen(tree, gold, grammar), supported(tree, grammar)
    keeps = keeping(grammar)
    values: list[float | None] = []
    for node, here in zip(tree.nodes, seen, strict=True):
        if node.failure is not None or node.parent is None:
            values.append(None)
        elif node.terminal and known[node.parent]:
            values.append(None if node.prediction_f1 is None else GOLD + node.prediction_f1 * (1 - GOLD))
        else:
            values.append(GOLD * gold.share(len(here.kept if node.action in keeps else here.found)))
    return values
