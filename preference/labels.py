"""Step labels for a critic, and rankings of siblings."""

from __future__ import annotations

from preference.pairs import SOURCE, prompts
from preference.rewards import Rewards
from steprag.training_rows import Ranking, StepLabel
from steprag.tree import Tree, as_reply


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
