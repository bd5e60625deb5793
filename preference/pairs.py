"""Pairs and supervised steps of one tree."""

from __future__ import annotations

from itertools import combinations

from preference.config import PairsConfig, SftConfig
from steprag.metrics import normalise
from steprag.tree import children_of, path_to
from steprag.types import Message, Node, Pair, Trajectory, Tree

SOURCE = "search"


def build_pairs(tree: Tree, tree_hash: str, rewards: list[float | None], config: PairsConfig) -> list[Pair]:
    """Every pair of siblings that saw one prompt and differ in content and, by `config.margin` or more, in reward.

    In order of the parent's id, then margin (widest first), then node ids.
    """
    pairs: list[Pair] = []
    for parent, siblings in zip(tree.nodes, children_of(tree), strict=True):
        if parent.messages is None:
            continue
        rated = [(reward, node) for node in siblings if (reward := rewards[node.id]) is not None]
        here = [
            _pair(tree, tree_hash, parent.messages, *sorted((one, other), key=lambda rating: -rating[0]))
            for one, other in combinations(rated, 2)
            if abs(one[0] - other[0]) >= config.margin and _comparable(one[1], other[1], config)
        ]
        here.sort(key=lambda pair: (-pair.margin, pair.chosen_node, pair.rejected_node))
        pairs += here[: config.per_node]
    return pairs


def _comparable(one: Node, other: Node, config: PairsConfig) -> bool:
    if one.action != other.action:
        return config.cross_action
    return normalise(one.content or "") != normalise(other.content or "")


def _pair(
    tree: Tree, tree_hash: str, prompt: tuple[Message, ...], better: tuple[float, Node], worse: tuple[float, Node]
) -> Pair:
    (chosen_reward, chosen), (rejected_reward, rejected) = better, worse
    return Pair(
        prompt=prompt,
        chosen=_assistant(chosen),
        rejected=_assistant(rejected),
        question_id=tree.question.id,
        tree=tree_hash,
        chosen_node=chosen.id,
        rejected_node=rejected.id,
        action=chosen.action or "",
        rejected_action=rejected.action or "",
        depth=chosen.depth,
        chosen_reward=chosen_reward,
        rejected_reward=rejected_reward,
        margin=chosen_reward - rejected_reward,
        chosen_visits=chosen.visits,
        rejected_visits=rejected.visits,
        source=SOURCE,
    )


def build_trajectories(tree: Tree, config: SftConfig) -> list[Trajectory]:
    """The steps of the tree's right episodes, each with the prompt it was sampled from.

    "shortest" keeps the episode with the fewest steps (of equals, the one found first), "all" every right one; a
    step that two episodes share is given once.
    """
    right = [node for node in tree.nodes if node.prediction_f1 is not None and node.prediction_f1 >= config.min_f1]
    if config.paths == "shortest":
        right = sorted(right, key=lambda node: (node.depth, node.id))[:1]
    steps = {node.id: node for answer in right for node in path_to(tree, answer) if node.parent is not None}
    return [_trajectory(tree, steps[node_id]) for node_id in sorted(steps)]


def _trajectory(tree: Tree, node: Node) -> Trajectory:
    prompt = tree.nodes[node.parent or 0].messages or ()
    return Trajectory(prompt, _assistant(node), tree.question.id, node.action or "", node.depth, SOURCE)


def _assistant(node: Node) -> tuple[Message, ...]:
    return (Message(role="assistant", content=node.text),)
