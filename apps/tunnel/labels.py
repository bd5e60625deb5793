"""Labels: what the steps of a forest were worth, to whom. Most are those of `steprag pairs`; the oracle knows all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import numpy as np

from apps.tunnel.grow import Forest, together
from apps.tunnel.model import start_of
from apps.tunnel.policy import BatchedPolicy
from apps.tunnel.world import NOTHING, FactWorld, parts_of, right_steps
from preference.config import LABELS as LABELLED
from preference.config import LabelConfig
from preference.labels.gold import gold
from preference.rewards import Estimate, Rewards, rewards
from steprag.agent.facts import facts_about, solved
from steprag.agent.grammars import TRANSCRIPT
from steprag.errors import ConfigError, nearest, quoted
from steprag.extras import function_at
from steprag.tree import Tree, children_of
from steprag.types import Message

Label = Callable[[Forest], list[Rewards]]
FOLDS = 4
"""Pooled labels of a tree come of the other folds' trees."""
FEWEST = 3
"""Nodes from which a pooled label speaks."""
MATCH = LabelConfig(name="cover", alpha=1.0)
"""String match."""


def named_label(name: str, alpha: float = 1.0) -> Label:
    """Any label of `steprag pairs` by its name, without discount but where one is given: an episode's length is no
    fault here. Raises ConfigError where there is none.
    """
    if name not in LABELLED and ":" not in name:
        raise ConfigError(f"--reward: {quoted(name)} should be module:function, or a label of steprag pairs"
                          f"{nearest(name, LABELLED)}")  # fmt: skip
    config = LabelConfig.model_validate({"name": name, "alpha": alpha})
    for own in config.own:
        function_at(own, "--reward")
    return lambda forest: [
        rewards(facts_about(tree, TRANSCRIPT), config) for tree in (forest.believed if name == "gain" else forest.trees)
    ]


def by_tree(reward: Callable[[FactWorld, Tree], Rewards]) -> Label:
    """The label of a reward that sees one tree at a time, and its world."""
    return lambda forest: [reward(forest.world, tree) for tree in forest.trees]


def one_scale(world: FactWorld, tree: Tree) -> Rewards:
    """Marked facts with steps and answers on one scale: an answer is worth the facts before it, a right one 1 more."""
    del world
    last = [0.0] * len(tree.nodes)
    values: Rewards = []
    for node, fact in zip(tree.nodes, gold(facts_about(tree, TRANSCRIPT)), strict=True):
        before = last[node.parent] if node.parent is not None else 0.0
        last[node.id] = fact.value if fact else before
        if node.terminal and node.prediction_f1 is not None:
            lucky = node.prediction_f1 > 0 and before < 1
            fact = None if lucky else Estimate(before + (node.prediction_f1 == 1), 0.0, "gold")
        values.append(fact)
    return values


def chained(world: FactWorld, tree: Tree) -> Rewards:
    """String match with one link more: 1 where the golden answer was met, one half where somebody was met of whom a
    passage of the tree tells the golden answer, if the question or another passage of the tree names that person.
    """
    facts = facts_about(tree, TRANSCRIPT)
    values, kept = rewards(facts, MATCH), facts.golden_kept
    person, _, named = parts_of(tree.question.question)
    asked, told = {person, named}, dict[str, str]()
    for title in {found.title for node in tree.nodes for found in node.passages}:
        person, word, _ = title.split()
        told[title] = next(passage.text for passage in world.passages(person, word) if passage.title == title)
    holders = {title.split()[0] for title, text in told.items() if text in tree.question.golden_answers}
    links = holders & set(told.values()) - asked
    met: list[bool] = []
    for node in tree.nodes:
        before = node.parent is not None and met[node.parent]
        met.append(before or (node.action == "evidence" and (node.content or "").rpartition(" ")[2] in links))
        linked = met[-1] or any(told[found.title] in links for found in node.passages)
        if (value := values[node.id]) and linked and not (value.value or node.terminal or kept[node.id]):
            values[node.id] = Estimate(0.5, 0.0, value.basis)
    return values


def guarded(forest: Forest) -> list[Rewards]:
    """Gain, in solved trees alone, and not where outcomes below the step say the opposite."""
    told: list[Rewards] = []
    for tree, gains, means in zip(forest.trees, LABELS["gain"](forest), LABELS["rollouts"](forest), strict=True):
        both = zip(gains, rises(tree, gains), rises(tree, means), strict=True)
        tells = solved(tree)
        told.append([gain if tells and (one or 0) * (other or 0) >= 0 else None for gain, one, other in both])
    return told


def rises(tree: Tree, values: Rewards) -> list[float | None]:
    """For every node by id, how much more it is worth than its parent; None where one of them has no value."""
    both = [(values[node.parent or 0], value) for node, value in zip(tree.nodes, values, strict=True)]
    return [after.value - before.value if before and after else None for before, after in both]


def judged(forest: Forest) -> list[Rewards]:
    """A stronger policy as judge: the probability that it takes the step itself; of steps with siblings."""
    policy = BatchedPolicy(start_of("strong"))

    async def one(prompt: tuple[Message, ...], text: str) -> Estimate:
        said = (await policy.score(prompt, text)).completions[0].logprobs or ()
        return Estimate(math.exp(sum(said)), 0.0, "judge")

    async def of_tree(tree: Tree) -> Rewards:
        rivals = [node for children in children_of(tree) if len(children) > 1 for node in children if not node.failure]
        told = await asyncio.gather(*(one(tree.nodes[node.parent or 0].messages or (), node.text) for node in rivals))
        by_id = {node.id: estimate for node, estimate in zip(rivals, told, strict=True)}
        return [by_id.get(node.id) for node in tree.nodes]

    return together(map(of_tree, forest.trees))


def pooled(forest: Forest) -> list[Rewards]:
    """Outcomes pooled over questions: how much better episodes end from where they took such a step, in other trees.

    What such a step is, is given by hand (`skills`); trees with right and with wrong answers alone tell.
    """
    keys = [skills(tree) for tree in forest.trees]
    sums: dict[tuple[str, ...], np.ndarray] = {}
    for number, (tree, skill, worth) in enumerate(zip(forest.trees, keys, LABELS["rollouts"](forest), strict=True)):
        mixed = worth[0] is not None and 0 < worth[0].value < 1
        for gain, key in zip(rises(tree, worth), skill, strict=True):
            if mixed and key and gain is not None:
                sums.setdefault(key, np.zeros((FOLDS, 3)))[number % FOLDS] += 1, gain, gain**2

    def estimate(key: tuple[str, ...], fold: int) -> Estimate | None:
        own = sums.get(key, np.zeros((FOLDS, 3)))
        count, total, squares = own.sum(0) - own[fold]
        if count < FEWEST:
            return None
        spread = max(0.0, squares / count - (total / count) ** 2)
        return Estimate(total / count, math.sqrt((spread + 0.01) / count), "pooled")

    return [[estimate(key, number % FOLDS) for key in skill] for number, skill in enumerate(keys)]


def oracle(world: FactWorld, tree: Tree) -> Rewards:
    """1 for a right step and 0 for a wrong one; None for what the grammar refused."""
    both = zip(tree.nodes, right_steps(world, tree), strict=True)
    return [Estimate(float(good), 0.0, "oracle") if node.action and not node.failure else None for node, good in both]


def skills(tree: Tree) -> list[tuple[str, ...]]:
    """For every node by id, what kind of step it is: the relation due and the word said, or the word that was said and
    the kind that is kept, or the hops left and an answer; empty for none.
    """
    _, relations, _ = parts_of(tree.question.question)
    way: list[tuple[int, tuple[str, ...], str]] = []
    told: list[tuple[str, ...]] = []
    for node in tree.nodes:
        done, vain, word = way[node.parent] if node.parent is not None else (0, (), "")
        content, key = node.content or "", ()
        if node.action == "query":
            word = content.partition(" ")[2]
            key = ("query", relations[done] if done < len(relations) else "", *vain, word)
        elif node.action == "evidence":
            title, _, object_ = content.rpartition(" ")
            key = ("evidence", word, title.rpartition(" ")[2], str(object_ == NOTHING))
            done, vain = (done, (*vain, word)) if object_ == NOTHING else (done + 1, ())
        elif node.action:
            key = ("answer", str(len(relations) - done))
        way.append((done, vain, word))
        told.append(key)
    return told


LABELS: dict[str, Label] = {
    "outcomes": named_label("first_answer"),
    "rollouts": named_label("spre"),
    "rollouts, discounted": named_label("spre", alpha=0.9),
    "string match": named_label("cover"),
    "chained match": by_tree(chained),
    "gain": named_label("gain"),
    "gain, guarded": guarded,
    "judge": judged,
    "pooled": pooled,
    "marked facts": named_label("gold"),
    "marked facts, one scale": by_tree(one_scale),
    "oracle": by_tree(oracle),
}
"""Labels by name. `outcomes`: the first answer below a step, right or wrong."""
