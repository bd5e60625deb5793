"""Where an episode has met the golden answer, word for word: a label that asks no model and plays no rollout."""

from __future__ import annotations

from preference.kept import kept_contents
from steprag.agent.grammar import Grammar
from steprag.gold import holds_golden
from steprag.metrics import guessable
from steprag.tree import Node, Tree, path_to


def golden_met(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether the golden answer stands in what the step found or the episode has kept by then.

    A step that keeps (`Action.keeps`): a golden answer stands in the kept text so far. A step that retrieves: it stands
    there or in the passages found (`golden_seen`). None for all other steps, and everywhere on questions whose answer
    can be guessed (`guessable`), because words prove nothing there.
    """
    if guessable(tree.question.question, tree.question.golden_answers):
        return [None] * len(tree.nodes)
    keeping = {action.name for action in grammar.actions if action.keeps}
    seen = golden_seen(tree, grammar)
    met: list[bool | None] = []
    for node, kept, found in zip(tree.nodes, golden_kept(tree, grammar), seen, strict=True):
        keeps = node.action in keeping and node.failure is None
        met.append(kept if keeps else None if found is None else kept or found)
    return met


def golden_seen(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether a golden answer stands in the passages that its search found; None for other steps.

    The search looked (`Node.golden_found`). In trees of before it did, the passages are read in the prompt of the step
    below; None where nothing was asked below.
    """
    golden = tree.question.golden_answers
    retrieving = {action.name for action in grammar.actions if action.retrieves}

    def seen(node: Node) -> bool | None:
        if node.action not in retrieving or node.golden_found is not None:
            return node.golden_found
        return None if node.messages is None else holds_golden(_passages(tree, node), golden)

    return [seen(node) for node in tree.nodes]


def golden_kept(tree: Tree, grammar: Grammar) -> list[bool]:
    """For every node by id, whether a golden answer stands in what the episode has kept by then, word for word."""
    golden = tree.question.golden_answers
    return [any(holds_golden(text, golden) for text in contents) for contents in kept_contents(tree, grammar)]


def _passages(tree: Tree, node: Node) -> str:
    """The prompt that the node's children saw, without the steps that the policy wrote."""
    text = "\n".join(message["content"] for message in node.messages or ())
    for step in path_to(tree, node)[1:]:
        text = text.replace(step.text, " ")
    return text
