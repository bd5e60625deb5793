"""States from which the right answer can be given, in trees that never gave it: where supervised steps may end.

None on questions that can be guessed: neither belief nor words prove anything there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from preference.cover import golden_kept
from steprag.agent.grammar import Grammar
from steprag.gain import CONVINCED, gains, probability
from steprag.metrics import guessable
from steprag.tree import Node, Tree

Kind = Literal["none", "believed", "kept"]


def ends(tree: Tree, kind: Kind, grammar: Grammar) -> list[Node]:
    """The tree's ends of that kind, of one path the first, in order of the node ids."""
    if kind == "none" or guessable(tree.question.question, tree.question.golden_answers):
        return []
    if kind == "believed":
        return _first(tree, _believing(tree))
    kept = golden_kept(tree, grammar)
    return _first(tree, lambda node: kept[node.id])


def _believing(tree: Tree) -> Callable[[Node], bool]:
    """Whether a state believes in the golden answer by what was kept: with a probability of `CONVINCED` or more, and
    clearly more than the question alone does. A state that shows passages does not count: they do not tell what will
    be kept.
    """
    start = tree.nodes[0].belief

    def believes(node: Node) -> bool:
        here = node.belief
        return (
            start is not None
            and here is not None
            and not node.passages
            and probability(here) >= CONVINCED
            and gains(here, start)
        )

    return believes


def _first(tree: Tree, reached: Callable[[Node], bool]) -> list[Node]:
    found, past = [], [False] * len(tree.nodes)
    for node in tree.nodes[1:]:  # parents come before their children
        past[node.id] = past[node.parent or 0]
        if not past[node.id] and not node.terminal and reached(node):
            found.append(node)
            past[node.id] = True
    return found
