"""Supervised steps: what the right episodes of a tree teach, and the ways to states that believe in the answer."""

from __future__ import annotations

from collections.abc import Callable

from preference.config import SftConfig
from preference.pairs import SOURCE
from preference.rewards import Rewards
from steprag.gain import CONVINCED, gains, probability
from steprag.metrics import guessable
from steprag.training_rows import Trajectory
from steprag.tree import as_reply, path_to
from steprag.types import Node, Tree


def build_trajectories(
    tree: Tree,
    tree_hash: str,
    outcomes: list[float | None],
    rewards: Rewards,
    config: SftConfig,
    exemplary: Callable[[list[Node]], bool] | None = None,
) -> list[Trajectory]:
    """The steps of the tree's right episodes, each with the prompt it was sampled from, in order of the node ids.

    `outcomes` is what each answer was worth (`preference.rewards.outcomes`). `paths` says which `per_tree` episodes are
    kept: "shortest" and "longest" those with the fewest or most steps, "best" those with the greatest outcome, "surest"
    those whose steps before the answer have the greatest mean reward, so that a lucky answer does not vouch for them
    (of equals, those found first); "all" keeps every right one. A step that two episodes share is given once, with the
    better outcome. `exemplary` says whether the steps of an episode may be imitated; the others are passed over.

    With `believed`, a tree with fewer right episodes than `per_tree` gives the shortest ways to its `convinced` states
    too, one a right episode that it lacks; their outcome is the probability of the golden answer there.
    """
    may = exemplary or (lambda _: True)
    right = [
        node
        for node in tree.nodes
        if node.prediction_f1 is not None and node.prediction_f1 >= config.min_f1 and may(path_to(tree, node)[1:])
    ]
    if config.paths != "all":
        rank = _ranks(tree, outcomes, rewards)[config.paths]
        right = sorted(right, key=lambda node: (rank(node), node.id))[: config.per_tree]
    worth: dict[int, float] = {}
    for answer in right:
        _credit(worth, path_to(tree, answer)[1:], outcomes[answer.id] or 0.0)
    if config.believed:
        states = sorted(convinced(tree), key=lambda node: (node.depth, node.id))
        fresh = [node for node in states if node.id not in worth and may(path_to(tree, node)[1:])]
        for node in fresh[: max(0, config.per_tree - len(right))]:
            _credit(worth, path_to(tree, node)[1:], probability(node.belief) if node.belief else 0.0)
    return [_trajectory(tree, tree_hash, tree.nodes[node_id], worth[node_id]) for node_id in sorted(worth)]


def _credit(worth: dict[int, float], path: list[Node], outcome: float) -> None:
    """Gives every step of the path the outcome, or keeps the better one that it has."""
    for node in path:
        worth[node.id] = max(outcome, worth.get(node.id, 0.0))


def convinced(tree: Tree) -> list[Node]:
    """The states that believe in the golden answer by what the episode kept, in order of the node ids, and of one path
    the first.

    Believing is a probability of `CONVINCED` or more that is clearly above the question's own. A state that still shows
    its passages says nothing of what will be kept, so it does not count. None on questions that can be guessed: there
    belief tells nothing.
    """
    start = tree.nodes[0].belief
    if start is None or guessable(tree.question.question, tree.question.golden_answers):
        return []
    found, past = [], [False] * len(tree.nodes)
    for node in tree.nodes[1:]:  # parents come before their children
        believes = node.belief is not None and probability(node.belief) >= CONVINCED and gains(node.belief, start)
        if believes and not node.passages and not past[node.parent or 0]:
            found.append(node)
            past[node.id] = True
        past[node.id] |= past[node.parent or 0]
    return found


def _ranks(tree: Tree, outcomes: list[float | None], rewards: Rewards) -> dict[str, Callable[[Node], float]]:
    """For each way to choose episodes, what it sorts their answers by; the least come first."""

    def surety(answer: Node) -> float:
        before = [estimate.value for node in path_to(tree, answer)[:-1] if (estimate := rewards[node.id])]
        return sum(before) / len(before) if before else 0.0

    return {
        "shortest": lambda node: node.depth,
        "longest": lambda node: -node.depth,
        "best": lambda node: -(outcomes[node.id] or 0.0),
        "surest": lambda node: -surety(node),
    }


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
