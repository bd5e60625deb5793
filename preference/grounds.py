"""Whether an episode has the facts that its answer needs: what tells a right answer from a lucky one."""

from __future__ import annotations

from dataclasses import replace

from preference.cover import golden_kept
from preference.gold import gold_seen
from preference.kept import kept_contents
from steprag.agent.grammar import Grammar
from steprag.gold import Fact, facts_of, gold_of
from steprag.metrics import guessable, normalise
from steprag.tree import Tree


def supported(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether the episode has found and kept by then what the answer needs; None: nobody knows.

    1. Where `metadata.facts` lists them (`steprag.gold.Fact`): every fact's passage was found, and its words were kept.
    2. Else, on questions that cannot be guessed: a golden answer stands in the kept text.
    3. Else, where gold passages are marked (a comparison's two): each was found, and the kept text names it.
    """
    question = tree.question
    if facts := facts_of(question):
        return _facts_held(tree, facts, grammar)
    if not guessable(question.question, question.golden_answers):
        return list(golden_kept(tree, grammar))
    gold = gold_of(question)
    if gold is None:
        return [None] * len(tree.nodes)
    return [gold.share(len(seen.kept)) == 1.0 for seen in gold_seen(tree, gold, grammar)]


def _facts_held(tree: Tree, facts: tuple[Fact, ...], grammar: Grammar) -> list[bool | None]:
    found: list[frozenset[str]] = []
    for node in tree.nodes:  # parents come before their children
        before = found[node.parent] if node.parent is not None else frozenset[str]()
        found.append(before | {passage.id for passage in node.passages})
    kept = [f" {normalise(' '.join(contents))} " for contents in kept_contents(tree, grammar)]
    return [all(fact.held(ids, text) for fact in facts) for ids, text in zip(found, kept, strict=True)]


def grounded(tree: Tree, grammar: Grammar) -> Tree:
    """The tree without its lucky answers: one that is right, or partly, counts only where `supported` says so.

    A lucky answer is no wrong one: it has no score. Where nobody knows, answers count as they did.
    """
    known = supported(tree, grammar)
    nodes = tuple(
        replace(node, prediction_f1=None) if node.prediction_f1 and known[node.parent or 0] is False else node
        for node in tree.nodes
    )
    return replace(tree, nodes=nodes)
