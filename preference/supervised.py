"""What is learnt step by step: the steps of right episodes, and the ways to where the answer can be given; step labels
for a critic, and rankings of siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from preference.config import SftConfig
from preference.labels.estimates import Rewards
from preference.pairs import prompts, whose
from steprag.agent.belief import CONVINCED, gains, probability
from steprag.agent.facts import Facts
from steprag.agent.grammar import Grammar
from steprag.agent.stack import popped
from steprag.records.training_rows import Ranking, StepLabel, Trajectory
from steprag.tree import Node, Tree, as_reply, path_to
from steprag.types import Step


def build_trajectories(
    facts: Facts,
    tree_hash: str,
    outcomes: list[float | None],
    rewards: Rewards,
    config: SftConfig,
    exemplary: Callable[[list[Node]], bool] = lambda _: True,
) -> list[Trajectory]:
    """The steps of the tree's right episodes, each with the prompt it was sampled from, in order of the node ids.

    `outcomes` is what each answer was worth (`preference.labels.estimates.outcomes`). `paths` says which `per_tree`
    episodes are kept: "shortest" and "longest" those with the fewest or most steps, "best" those with the greatest
    outcome, "surest" those whose steps before the answer have the greatest mean reward, so that a lucky answer does not
    vouch for them (of equals, those found first); "all" keeps every right one. A step that two episodes share is given
    once, with the better outcome. `exemplary` says whether the steps of an episode may be imitated; the others are
    passed over.

    A tree with fewer right episodes than `per_tree` gives the shortest ways to its `ends` too, one for every right
    episode that it lacks; their outcome is the belief there, 0 where nobody asked.

    A step that the episode itself took back (`steprag.agent.stack.popped`) is not among them, the step back is.
    """
    tree, grammar = facts.tree, facts.grammar
    right = [
        node
        for node in tree.nodes
        if node.prediction_f1 is not None and node.prediction_f1 >= config.min_f1 and exemplary(path_to(tree, node)[1:])
    ]
    if config.paths != "all":
        rank = _ranks(tree, outcomes, rewards)[config.paths]
        right = sorted(right, key=lambda node: (rank(node), node.id))[: config.per_tree]
    worth: dict[int, float] = {}
    for answer in right:
        _credit(worth, _standing(path_to(tree, answer)[1:], grammar), outcomes[answer.id] or 0.0)
    nearest = sorted(ends(facts, config.partial), key=lambda node: (node.depth, node.id))
    fresh = [node for node in nearest if node.id not in worth and exemplary(path_to(tree, node)[1:])]
    for node in fresh[: max(0, config.per_tree - len(right))]:
        _credit(worth, _standing(path_to(tree, node)[1:], grammar), probability(node.belief) if node.belief else 0.0)
    return [
        Trajectory(
            **whose(tree, tree_hash, tree.nodes[node.parent or 0]),
            completion=as_reply(node),
            action=node.action or "",
            depth=node.depth,
            node=node.id,
            outcome=worth[node.id],
        )
        for node in map(tree.nodes.__getitem__, sorted(worth))
    ]


def _standing(path: list[Node], grammar: Grammar) -> list[Node]:
    """The steps of a path that no later one took back."""
    if not grammar.shrinks:
        return path
    back = popped(tuple(Step(node.action or "", node.text, node.content or "") for node in path), grammar)
    return [node for place, node in enumerate(path) if place not in back]


def _credit(worth: dict[int, float], path: list[Node], outcome: float) -> None:
    """Gives every step of the path the outcome, or keeps the better one that it has."""
    for node in path:
        worth[node.id] = max(outcome, worth.get(node.id, 0.0))


def _ranks(tree: Tree, outcomes: list[float | None], rewards: Rewards) -> dict[str, Callable[[Node], float]]:
    """For each way to choose episodes, what it sorts their answers by; the least come first."""

    def surety(answer: Node) -> float:
        before = [estimate.value for node in path_to(tree, answer)[1:-1] if (estimate := rewards[node.id])]
        return sum(before) / len(before) if before else 0.0

    return {
        "shortest": lambda node: node.depth,
        "longest": lambda node: -node.depth,
        "best": lambda node: -(outcomes[node.id] or 0.0),
        "surest": lambda node: -surety(node),
    }


def ends(facts: Facts, kind: Literal["none", "believed", "kept"]) -> list[Node]:
    """States from which the right answer can be given, of one path the first, in order of the node ids.

    Supervised steps may end there in trees that never gave the answer. None on questions that can be guessed: there
    neither belief nor words prove anything.
    """
    if kind == "none" or facts.guessable:
        return []
    nodes, kept = facts.tree.nodes, facts.golden_kept
    start = nodes[0].belief

    def believes(node: Node) -> bool:
        """By what was kept: with a probability of `CONVINCED` or more, and clearly more than the question alone does. A
        state that shows passages does not count: they do not show what will be kept.
        """
        here = node.belief
        if start is None or here is None or node.passages:
            return False
        return probability(here) >= CONVINCED and gains(here, start)

    found, past = [], [False] * len(nodes)
    for node in nodes[1:]:  # parents come before their children
        past[node.id] = past[node.parent or 0]
        if not past[node.id] and not node.terminal and (believes(node) if kind == "believed" else kept[node.id]):
            found.append(node)
            past[node.id] = True
    return found


def build_labels(tree: Tree, tree_hash: str, rewards: Rewards) -> list[StepLabel]:
    """Every rewarded step with its value, in the order of `preference.pairs.prompts`."""
    return [
        StepLabel(
            **whose(tree, tree_hash, parent),
            completion=as_reply(node),
            value=reward.value,
            error=reward.error,
            node=node.id,
            action=node.action or "",
            depth=node.depth,
            visits=node.visits,
        )
        for parent, siblings in prompts(tree, rewards)
        for reward, node in siblings
    ]


def build_rankings(tree: Tree, tree_hash: str, rewards: Rewards) -> list[Ranking]:
    """For every prompt with two or more rewarded siblings, these from best to worst; equals in order of their ids."""
    rankings: list[Ranking] = []
    for parent, siblings in prompts(tree, rewards):
        if len(siblings) < 2 or len({reward.basis for reward, _ in siblings}) > 1:
            continue
        siblings.sort(key=lambda rated: (-rated[0].value, rated[1].id))
        nodes = [node for _, node in siblings]
        rankings.append(
            Ranking(
                **whose(tree, tree_hash, parent),
                completions=tuple(as_reply(node) for node in nodes),
                rewards=tuple(reward.value for reward, _ in siblings),
                errors=tuple(reward.error for reward, _ in siblings),
                nodes=tuple(node.id for node in nodes),
                actions=tuple(node.action or "" for node in nodes),
                depth=nodes[0].depth,
                visits=tuple(node.visits for node in nodes),
            )
        )
    return rankings
