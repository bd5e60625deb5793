"""The label of trees whose questions were made: which of their facts an episode has found and kept."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.kept import found_and_kept, grounded, keeping, retrieving
from preference.rewards import Estimate, Rewards, outcomes
from steprag.agent.grammar import Grammar
from steprag.scores.gold import facts_of
from steprag.tree import Tree


def by_facts(tree: Tree, grammar: Grammar) -> Rewards:
    """For a step that searches, the share of the facts whose passages were found by then; for one that keeps, of those
    that the kept text tells. Answers have their outcome, lucky ones none. Titles of documents tell nothing here.
    """
    facts, searches, keeps = facts_of(tree.question), retrieving(grammar), keeping(grammar)
    worth: Rewards = []
    answers = outcomes(grounded(tree, grammar), LabelConfig())
    for node, answer, (found, kept) in zip(tree.nodes, answers, found_and_kept(tree, grammar), strict=True):
        if node.action in searches | keeps and node.failure is None:
            has = [fact.passage in found if node.action in searches else fact.held(found, kept) for fact in facts]
            worth.append(Estimate(sum(has) / len(facts), 0.0, "facts"))
        else:
            worth.append(None if answer is None else Estimate(answer, 0.0, "answer"))
    return worth
