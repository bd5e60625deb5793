"""What `benchmarks.atlas_proof` compares: labels, and the pairs that each arm makes of the same trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from preference.config import FilterConfig, LabelConfig, PairsConfig
from preference.filters import checks, content_reader
from preference.kept import found_and_kept, solved
from preference.pairs import build_pairs
from preference.rewards import Estimate, Rewards, chained_met, rewards
from steprag.agent.grammars import TRANSCRIPT
from steprag.records.jsonl import line_hash
from steprag.records.training_rows import Pair
from steprag.scores.gold import facts_of
from steprag.tree import Tree
from steprag.types import Passage

Label = Callable[[Tree, Sequence[Passage]], Rewards]


@dataclass(frozen=True)
class AtlasArm:
    """What is compared. `many`: only as many pairs as outcomes make. `rated`: the arm whose rate it takes."""

    name: str
    label: str
    one_action: bool = True
    many: bool = False
    rated: str = ""


def facts_met(tree: Tree) -> Rewards:
    """The share of the question's marked facts that the episode has by then: of a search those found, of evidence those
    kept. A wrong answer is worth what was kept before it, a right one 2; a lucky one says nothing.
    """
    facts = facts_of(tree.question)
    held, values = [0.0], list[Estimate | None]([None])
    for node, (ids, kept) in [*zip(tree.nodes, found_and_kept(tree, TRANSCRIPT), strict=True)][1:]:
        held.append(sum(fact.held(ids, kept) for fact in facts) / len(facts))
        value = held[node.id]
        if node.action == "query":
            value = sum(fact.passage in ids for fact in facts) / len(facts)
        right = node.prediction_f1 == 1.0
        silent = node.failure is not None or (right and held[node.parent or 0] < 1)
        values.append(None if silent else Estimate(2.0 if right else value, 0.0, "facts"))
    return values


def _named(name: str, **more: Any) -> Label:
    config = LabelConfig.model_validate({"name": name, "alpha": 1.0, "metric": "em", **more})
    return lambda tree, found: rewards(tree, config, TRANSCRIPT, chained_met(tree, config, TRANSCRIPT, found))


LABELS: dict[str, Label] = {
    "marked facts": lambda tree, _: facts_met(tree),
    "outcomes": _named("first_answer"),
    "chained match": _named("cover", chained=True),
    "string match": _named("cover"),
    "marked passages": _named("evidence"),
}
"""By name. The last, the default of `steprag pairs`, goes by titles of passages."""
OUTCOMES = AtlasArm("outcomes", "outcomes")
ARMS = (AtlasArm("marked facts", "marked facts"), OUTCOMES, AtlasArm("chained match", "chained match"))
OTHERS = (
    AtlasArm("string match", "string match", rated="chained match"),
    AtlasArm("marked facts, as many pairs", "marked facts", many=True, rated="marked facts"),
    AtlasArm("marked passages", "marked passages", rated="marked facts"),
    AtlasArm("outcomes, any action", "outcomes", one_action=False, rated="outcomes"),
)
"""Run last, where time is left, at the rate of another arm."""
SOUND = FilterConfig(repeating=True, again=True, unread=True, made_up=True)
"""As in every arm of `steprag reproduce`: a small model rambles, asks again, makes evidence up, and guesses."""


def pairs_of(arm: AtlasArm, trees: Sequence[Tree], seed: int, found: Sequence[Sequence[Passage]] = ()) -> list[Pair]:
    """The arm's pairs in an order of the seed's, those of unsolved trees first. `found`: what a search for question and
    golden answer finds of each tree, for chained match.
    """
    config = PairsConfig(cross_action=not arm.one_action, errors=0.0)
    filters = checks(SOUND, TRANSCRIPT, content_reader(TRANSCRIPT))
    unsolved, made = unsolved_of(trees), list[Pair]()
    for tree, passages in zip(trees, found or [()] * len(trees), strict=True):
        pairs = build_pairs(tree, line_hash(tree.question.id), LABELS[arm.label](tree, passages), config)
        made += [pair for pair in pairs if all(check.passes(pair) for check in filters)]
    random.Random(seed).shuffle(made)
    made.sort(key=lambda pair: pair.question_id not in unsolved)
    return made[: len(pairs_of(OUTCOMES, trees, seed))] if arm.many else made


def unsolved_of(trees: Sequence[Tree]) -> set[str]:
    """The ids of the questions whose trees have no right answer."""
    return {tree.question.id for tree in trees if not solved(tree)}
