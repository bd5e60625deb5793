"""What an episode has kept by each step: the contents of the steps on the stack whose action keeps."""

from __future__ import annotations

from steprag.agent.grammar import Grammar
from steprag.agent.stack import live
from steprag.tree import Node, Tree, path_to
from steprag.types import Step


def kept_contents(tree: Tree, grammar: Grammar) -> list[tuple[str, ...]]:
    """For every node by id, the contents kept by then, in order. What a later step took off the stack is not kept."""
    keeping = {action.name for action in grammar.actions if action.keeps}
    if grammar.shrinks:
        return [_on_stack(path_to(tree, node)[1:], keeping, grammar) for node in tree.nodes]
    kept: list[tuple[str, ...]] = []
    for node in tree.nodes:  # parents come before their children
        before = kept[node.parent] if node.parent is not None else ()
        kept.append((*before, node.content) if node.action in keeping and node.content else before)
    return kept


def _on_stack(path: list[Node], keeping: set[str], grammar: Grammar) -> tuple[str, ...]:
    steps = tuple(Step(node.action or "", node.text, node.content or "") for node in path if node.failure is None)
    return tuple(steps[at].content for at in live(steps, grammar) if steps[at].action in keeping)
