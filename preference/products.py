"""What else a tree teaches: supervised steps, step labels for a critic, and rankings of siblings."""

from __future__ import annotations

from preference.config import SftConfig
from preference.pairs import SOURCE, prompts
from preference.rewards import Rewards
from steprag.tree import as_reply, path_to
from steprag.types import Node, Ranking, StepLabel, Trajectory, Tree


def build_trajectories(tree: Tree, tree_hash: str, outcomes: list[float | None], config: SftConfig) -> list[Trajectory]:
    """The steps of the tree's right episodes, each with the prompt it was sampled from, in order of the node ids.

    `outcomes` is what each answer was worth (`preference.rewards.outcomes`). "shortest" and "longest" keep the episode
    with the fewest or most steps, "best" that with the greatest outcome (of equals, the one found first), "all" every
    right one; a step that two episodes share is given once, with the better outcome.
    """
    right = [node for node in tree.nodes if node.prediction_f1 is not None and node.prediction_f1 >= config.min_f1]
    if config.paths != "all" and right:
        right = [min(right, key=lambda node: (_rank(node, outcomes, config), node.id))]
    worth: dict[int, float] = {}
    for answer in right:
        for node in path_to(tree, answer)[1:]:
            worth[node.id] = max(outcomes[answer.id] or 0.0, worth.get(node.id, 0.0))
    return [_trajectory(tree, tree_hash, tree.nodes[node_id], worth[node_id]) for node_id in sorted(worth)]


def _rank(node: Node, outcomes: list[float | None], config: SftConfig) -> float:
    return {"shortest": node.depth, "longest": -node.depth, "best": -(outcomes[node.id] or 0.0)}[config.paths]


def _trajectory(tree: Tree, tree_hash: str, node: Node, outcome: float) -> Trajectory:
    return Trajectory(
        prompt=tree.nodes[node.parent or 0].messages or (),
        completion=as_reply(node),
        question_id=tree.question.id,
        action=node.action or "",
        depth=node.depth,
        source=SOURCE,
        tree=tree_hash,
        node=node.id,
        outcome=outcome,
        golden_answers=tree.question.golden_answers,
    )


def build_labels(tree: Tree, tree_hash: str, rewards: Rewards) -> list[StepLabel]:
    """Every rewarded step with its value, in the order of `preference.pairs.prompts`."""
    return [
        StepLabel(
            prompt=parent.messages or (),
            completion=as_reply(node),
            value=reward.value,
            error=reward.error,
            question_id=tree.question.id,
            tree=tree_hash,
            node=node.id,
            action=node.action or "",
            depth=node.depth,
            visits=node.visits,
            source=SOURCE,
            golden_answers=tree.question.golden_answers,
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
                prompt=parent.messages or (),
                completions=tuple(as_reply(node) for node in nodes),
                rewards=tuple(reward.value for reward, _ in siblings),
                errors=tuple(reward.error for reward, _ in siblings),
                question_id=tree.question.id,
                tree=tree_hash,
                nodes=tuple(node.id for node in nodes),
                actions=tuple(node.action or "" for node in nodes),
                depth=nodes[0].depth,
                visits=tuple(node.visits for node in nodes),
                source=SOURCE,
                golden_answers=tree.question.golden_answers,
            )
        )
    return rankings
