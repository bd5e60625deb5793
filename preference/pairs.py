"""Pairs of one tree: two siblings that saw one prompt, the better reward chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import Any

from preference.config import PairsConfig
from preference.labels.estimates import Estimate, Rewards
from steprag.records.training_rows import Pair
from steprag.scores.metrics import normalise
from steprag.tree import Node, Tree, as_reply, children_of
from steprag.types import Message, Question

SOURCE = "search"

same_words = lru_cache(4096)(normalise)
"""`normalise`, remembered: every step is compared with each of its siblings."""

Rated = tuple[Estimate, Node]


class RuleCounts:
    """What each rule or filter was asked about and what it let pass.

    `stages`: by name of the rule, in order of first use, [candidates before it, candidates after it].
    """

    def __init__(self) -> None:
        self.stages: dict[str, list[int]] = {}

    def count(self, name: str, passes: bool) -> bool:
        """Notes one candidate; returns `passes`."""
        self.note(name, 1, int(passes))
        return passes

    def note(self, name: str, before: int, after: int) -> None:
        """Notes many candidates at once."""
        stage = self.stages.setdefault(name, [0, 0])
        stage[0] += before
        stage[1] += after

    def rows(self) -> list[dict[str, str | int]]:
        """The stages as a report lists them."""
        return [{"rule": name, "before": before, "after": after} for name, (before, after) in self.stages.items()]


def build_pairs(
    tree: Tree, tree_hash: str, rewards: Rewards, config: PairsConfig, rules: RuleCounts | None = None
) -> list[Pair]:
    """Every pair of siblings that the rules of `config` let pass; `rules` counts what each rule let pass.

    In order of the prompts from the root downwards, each before those below it; from one prompt in order of margin
    (widest first) where `per_node` caps them, else in order of the siblings.
    """
    rules = rules or RuleCounts()
    pairs: list[Pair] = []
    known = frozenset(tree.known or ()) if config.new else frozenset()
    for parent, siblings in prompts(tree, rewards, config.unbroken):
        ordered = [_ordered(*two) for two in combinations(siblings, 2) if two[0][0].basis == two[1][0].basis]
        passed = [pair for pair in ordered if all(rules.count(*rule) for rule in _rules(*pair, known, config))]
        if config.per_node is not None and passed:
            passed.sort(key=lambda pair: (pair[1][0].value - pair[0][0].value, pair[0][1].id, pair[1][1].id))
            rules.note("cap of a prompt", len(passed), min(len(passed), config.per_node))
            passed = passed[: config.per_node]
        pairs += [_pair(tree, tree_hash, parent, better, worse, config) for better, worse in passed]
    return pairs


def fates(tree: Tree, tree_hash: str, rewards: Rewards, config: PairsConfig) -> Iterator[tuple[Pair, str | None]]:
    """Every two rewarded siblings as the pair that they would make, and the first rule that says no; None where each
    lets it pass. Siblings whose rewards are equal or of different bases prefer nothing: they are left out.
    """
    made = {(pair.chosen_node, pair.rejected_node) for pair in build_pairs(tree, tree_hash, rewards, config)}
    known = frozenset(tree.known or ()) if config.new else frozenset()
    whole = {id(parent) for parent, _ in prompts(tree, rewards, config.unbroken)}
    for parent, siblings in prompts(tree, rewards):
        for one, other in combinations(siblings, 2):
            if one[0].basis != other[0].basis or one[0].value == other[0].value:
                continue
            better, worse = _ordered(one, other)
            rule = None
            if (better[1].id, worse[1].id) not in made:
                reached = id(parent) in whole
                rule = _objection(better, worse, known, config) if reached else "whole branches"
            yield _pair(tree, tree_hash, parent, better, worse, config), rule


def _objection(better: Rated, worse: Rated, known: frozenset[int], config: PairsConfig) -> str:
    """The name of the rule that dropped a pair, as `RuleCounts` counts it."""
    objections = (name for name, passes in _rules(better, worse, known, config) if not passes)
    return next(objections, "cap")


def prompts(tree: Tree, rewards: Rewards, unbroken: bool = False) -> Iterator[tuple[Node, list[Rated]]]:
    """Each node that was prompted from, with its rewarded children; from the root downwards, depth first.

    `unbroken` stops at a node with fewer than two children, and at one without a reward: the published builder's walk.
    """
    children = children_of(tree)
    stack = [] if unbroken and rewards[0] is None else [tree.nodes[0]]
    while stack:
        parent = stack.pop()
        rated = [(reward, child) for child in children[parent.id] if (reward := rewards[child.id]) is not None]
        if unbroken and len(children[parent.id]) < 2:
            continue
        if parent.messages is not None and rated:
            yield parent, rated
        below = [child for _, child in rated] if unbroken else children[parent.id]
        stack += reversed(below)


def _rules(better: Rated, worse: Rated, known: frozenset[int], config: PairsConfig) -> Iterator[tuple[str, bool]]:
    """The rules for a pair in their order, and whether it passes each."""
    (reward, chosen), (other_reward, rejected) = better, worse
    gap, error = reward.value - other_reward.value, margin_error(reward, other_reward)
    if known:
        yield "new in this round", not known >= {chosen.id, rejected.id}
    yield "margin", gap >= config.margin
    yield "standard error", not config.errors or gap > config.errors * (error or 0.0)
    yield "same action", config.cross_action or chosen.action == rejected.action
    yield "different content", _differ(chosen, rejected, config)
    if config.smoothing:
        yield "visited more often", (_smoothing(chosen, rejected) or 0.0) < 0.5


def _smoothing(chosen: Node, rejected: Node) -> float | None:
    """The rejected step's share of the visits, as in arXiv 2405.00451; None without visits. From one half on the search
    preferred the rejected step, and so would DPO, whose optimum is log((1 - ε) / ε) / β.
    """
    visits = chosen.visits + rejected.visits
    return rejected.visits / visits if visits else None


def margin_error(one: Estimate | None, other: Estimate | None) -> float | None:
    """The standard error of a difference of two rewards; None where neither has one."""
    errors = [estimate.error for estimate in (one, other) if estimate is not None and estimate.error is not None]
    return math.hypot(*errors) if errors else None


def _differ(one: Node, other: Node, config: PairsConfig) -> bool:
    if config.different == "exact":
        return one.content != other.content
    return one.action != other.action or same_words(one.content or "") != same_words(other.content or "")


def _ordered(one: Rated, other: Rated) -> tuple[Rated, Rated]:
    return (one, other) if one[0].value > other[0].value else (other, one)


def _pair(tree: Tree, tree_hash: str, parent: Node, better: Rated, worse: Rated, config: PairsConfig) -> Pair:
    (reward, chosen), (other_reward, rejected) = better, worse
    return Pair(
        **whose(tree, tree_hash, parent),
        chosen=as_reply(chosen),
        rejected=as_reply(rejected),
        chosen_node=chosen.id,
        rejected_node=rejected.id,
        action=chosen.action or "",
        rejected_action=rejected.action or "",
        depth=chosen.depth,
        chosen_reward=reward.value,
        rejected_reward=other_reward.value,
        margin=reward.value - other_reward.value,
        chosen_visits=chosen.visits,
        rejected_visits=rejected.visits,
        margin_error=margin_error(reward, other_reward),
        label_smoothing=_smoothing(chosen, rejected) if config.smoothing else None,
    )


def whose(tree: Tree, tree_hash: str, parent: Node) -> dict[str, Any]:
    """What every record of a prompted node says of where it comes from, and its prompt."""
    asked = tree.question
    return {"prompt": parent.messages or (), "question_id": asked.id, "tree": tree_hash, "source": SOURCE,
            "golden_answers": asked.golden_answers}  # fmt: skip


def unscored_pair(
    question: Question, prompt: tuple[Message, ...], texts: tuple[str, str], actions: tuple[str, str], depth: int
) -> Pair:
    """A pair that no tree gave: nodes, rewards and visits are None. `texts` and `actions`: chosen, then rejected."""
    chosen, rejected = ((Message(role="assistant", content=text),) for text in texts)
    names = ("tree", "chosen_node", "rejected_node", "chosen_reward", "rejected_reward", "margin", "chosen_visits",
             "rejected_visits")  # fmt: skip
    unknown: Any = dict.fromkeys(names)
    return Pair(
        prompt=prompt, chosen=chosen, rejected=rejected, question_id=question.id, source=question.metadata["dataset"],
        golden_answers=question.golden_answers, action=actions[0], rejected_action=actions[1], depth=depth, **unknown,
    )  # fmt: skip
