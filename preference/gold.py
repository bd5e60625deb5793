"""How much of the gold evidence an episode has found, and kept, by each step."""

from __future__ import annotations

from steprag.agent.grammar import Grammar
from steprag.gold import gold_of, mentions, subject
from steprag.types import Tree


def gold_recall(tree: Tree, grammar: Grammar) -> list[float | None]:
    """For every node by id, the share of the gold passages that the episode has by then; None for other steps.

    A step that retrieves counts what the searches so far have found. A step that keeps (`Action.keeps`) counts, of
    these, the passages whose title the kept text so far mentions: a proxy, since trees hold no passage texts. None
    everywhere without gold.
    """
    gold = gold_of(tree.question)
    if gold is None:
        return [None] * len(tree.nodes)
    retrieving = {action.name for action in grammar.actions if action.retrieves}
    keeping = {action.name for action in grammar.actions if action.keeps}
    found: list[dict[str, str]] = []  # by node: mark → title of the gold passages found so far
    kept: list[frozenset[str]] = []  # by node: marks that the evidence so far mentions
    recall: list[float | None] = []
    for node in tree.nodes:  # parents come before their children
        here = found[node.parent] if node.parent is not None else {}
        mentioned = kept[node.parent] if node.parent is not None else frozenset()
        value = None
        if fresh := {mark: subject(p.title) for p in node.passages if (mark := gold.matches(p)) is not None}:
            here = here | fresh
        if node.action in keeping and node.content:
            if here:
                there = mentions(node.content, here.values())
                mentioned = mentioned | {mark for mark, told in zip(here, there, strict=True) if told}
            value = gold.share(len(mentioned))
        elif node.action in retrieving:
            value = gold.share(len(here))
        found.append(here)
        kept.append(mentioned)
        recall.append(value)
    return recall
