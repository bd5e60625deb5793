"""How much of the gold evidence an episode has found, and kept, by each step."""

from __future__ import annotations

from dataclasses import dataclass

from preference.kept import kept_contents
from steprag.agent.grammar import Grammar
from steprag.gold import Gold, mentions, subject
from steprag.tree import Tree


@dataclass(frozen=True)
class Seen:
    """What an episode has by a node. `found`: gold mark → title of the passages that its searches found; `kept`: the
    marks, of these, whose title the kept text mentions, which is a proxy, since trees hold no passage texts.
    """

    found: dict[str, str]
    kept: frozenset[str]


def gold_seen(tree: Tree, gold: Gold, grammar: Grammar) -> list[Seen]:
    """For every node by id, what the episode has of the gold passages by then."""
    keeping = {action.name for action in grammar.actions if action.keeps}
    contents = kept_contents(tree, grammar) if grammar.shrinks else None
    seen: list[Seen] = []
    for node in tree.nodes:  # parents come before their children
        before = seen[node.parent] if node.parent is not None else Seen({}, frozenset())
        found, kept = before.found, before.kept
        if fresh := {mark: subject(p.title) for p in node.passages if (mark := gold.matches(p)) is not None}:
            found = found | fresh
        if node.action in keeping and node.content and found:
            there = mentions(node.content, found.values())
            kept = kept | {mark for mark, told in zip(found, there, strict=True) if told}
        if contents is not None:  # what was kept may be gone again
            there = mentions(" ".join(contents[node.id]), found.values())
            kept = frozenset(mark for mark, told in zip(found, there, strict=True) if told)
        seen.append(Seen(found, kept))
    return seen


def gold_recall(tree: Tree, gold: Gold | None, grammar: Grammar) -> list[float | None]:
    """For every node by id, the share of the gold passages that the episode has by then; None for other steps.

    A step that retrieves counts what the searches so far have found, a step that keeps (`Action.keeps`) what the kept
    text so far mentions. None everywhere without gold.
    """
    if gold is None:
        return [None] * len(tree.nodes)
    retrieving = {action.name for action in grammar.actions if action.retrieves}
    keeping = {action.name for action in grammar.actions if action.keeps}
    recall: list[float | None] = []
    for node, seen in zip(tree.nodes, gold_seen(tree, gold, grammar), strict=True):
        if node.action in keeping and node.content:
            recall.append(gold.share(len(seen.kept)))
        elif node.action in retrieving:
            recall.append(gold.share(len(seen.found)))
        else:
            recall.append(None)
    return recall
