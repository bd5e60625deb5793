"""Drills: after a search, more siblings where the right step is known to be possible.

A search that found the golden answer is read again, and where the golden answer was kept more is said, until each has
`search.drill` samples. The labels are free: did the evidence keep it, is the answer right? Small models fail there more
often than anywhere else, and a search samples few siblings of one such state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from data_generation.growth import Branch, Growth
from steprag.agent.grammar import Grammar
from steprag.agent.stack import live
from steprag.gold import holds_golden
from steprag.metrics import guessable
from steprag.types import Question, State

MOST = 6
"""States of one kind that are drilled in a tree, the shallowest first."""


def at_hand(growth: Growth, grammar: Grammar, samples: int) -> Iterator[Branch]:
    """The states to drill, shallow ones first: at most `MOST` after searches and `MOST` after other steps.

    Those that have their `samples` count among these. None where the answer can be guessed: words prove nothing there.
    """
    question = growth.question
    if guessable(question.question, question.golden_answers):
        return
    taken: Counter[bool] = Counter()
    for branch in sorted(growth.branches, key=lambda branch: (branch.node.depth, branch.id)):
        searched = branch.node.golden_found is not None
        if branch.node.terminal or taken[searched] >= MOST or not _possible(branch, question, grammar):
            continue
        taken[searched] += 1
        if branch.sampled < samples:
            yield branch


def _possible(branch: Branch, question: Question, grammar: Grammar) -> bool:
    """Whether the last step found the golden answer, or kept it, and none before it kept it."""
    if branch.parent is None or keeps_golden(branch.parent.state, question, grammar):
        return False
    return bool(branch.node.golden_found) or keeps_golden(branch.state, question, grammar)


def keeps_golden(state: State, question: Question, grammar: Grammar) -> bool:
    """Whether a golden answer stands in what the state keeps, word for word."""
    kept = (state.steps[place] for place in live(state.steps, grammar))
    return any(
        holds_golden(step.content, question.golden_answers) for step in kept if grammar.action(step.action).keeps
    )
