"""Where an episode has met the golden answer, word for word: a label that asks no model and plays no rollout."""

from __future__ import annotations

from collections.abc import Iterable

from preference.kept import kept_contents
from steprag.agent.grammar import Grammar
from steprag.metrics import guessable, normalise
from steprag.tree import path_to
from steprag.types import Node, Tree


def golden_met(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether the golden answer stands in what the step found or the episode has kept by then.

    A step that keeps (`Action.keeps`): a golden answer stands in the kept text so far. A step that retrieves: it stands
    there or in the passages found. Trees hold no passage texts, so these are read in the prompt of the step below; None
    where nothing was asked below. None for all other steps, and everywhere on questions whose answer can be guessed
    (`guessable`), because words prove nothing there. Words are compared whole and normalised.
    """
    if guessable(tree.question.question, tree.question.golden_answers):
        return [None] * len(tree.nodes)
    golden = _golden(tree)
    retrieving = {action.name for action in grammar.actions if action.retrieves}
    keeping = {action.name for action in grammar.actions if action.keeps}
    met: list[bool | None] = []
    for node, kept in zip(tree.nodes, golden_kept(tree, grammar), strict=True):
        found = None
        if node.action in keeping and node.failure is None:
            found = kept
        elif node.action in retrieving and node.messages is not None:
            found = kept or _holds(_passages(tree, node), golden)
        met.append(found)
    return met


def golden_kept(tree: Tree, grammar: Grammar) -> list[bool]:
    """For every node by id, whether a golden answer stands in what the episode has kept by then, word for word."""
    golden = _golden(tree)
    return [any(_holds(content, golden) for content in contents) for contents in kept_contents(tree, grammar)]


def _golden(tree: Tree) -> list[str]:
    return [f" {normalise(answer)} " for answer in tree.question.golden_answers]


def _passages(tree: Tree, node: Node) -> str:
    """The prompt that the node's children saw, without the steps that the policy wrote."""
    text = "\n".join(message["content"] for message in node.messages or ())
    for step in path_to(tree, node)[1:]:
        text = text.replace(step.text, " ")
    return text


def _holds(text: str, golden: Iterable[str]) -> bool:
    words = f" {normalise(text)} "
    return any(answer in words for answer in golden)
