"""What is compared: cells, and the arms in them with their labels and pairs, which are those of `steprag pairs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from preference.config import LabelConfig, PairsConfig
from preference.pairs import build_pairs
from preference.rewards import Estimate, Rewards, gold, rewards
from steprag.agent.grammars import TRANSCRIPT
from steprag.experiments.tunnel.truth import oracle, right_steps
from steprag.experiments.tunnel.world import HOPS, FactWorld
from steprag.records.jsonl import line_hash
from steprag.records.training_rows import Pair
from steprag.tree import Node, Tree

Label = Callable[[FactWorld, Tree], Rewards]


@dataclass(frozen=True)
class LabelArm:
    """How a policy is trained. `label`: a name of `LABELS`, or what `--reward` names. `how`: the growth of its trees.

    `keep`: which pairs stay: all, those of "mixed" trees (right and wrong answers), or as "many" as outcomes make.
    `turned`: the share of labels turned round. `method`: dpo, sft (on right episodes), both (sft, then dpo),
    whole (DPO on episodes), none.
    """

    name: str
    label: str = ""
    how: str = "flat"
    one_action: bool = True
    keep: str = "all"
    turned: float = 0.0
    method: str = "dpo"
    rate: float = 1.5e-4


def _named(name: str, **more: object) -> Label:
    config = LabelConfig.model_validate({"name": name, **more})
    return lambda world, tree: rewards(tree, config, TRANSCRIPT)


def marked_facts(world: FactWorld, tree: Tree) -> Rewards:
    """Gold-evidence recall, and for answers whether they are right; luck says nothing."""
    del world
    facts = gold(tree, TRANSCRIPT)
    last = [0.0] * len(tree.nodes)
    values: Rewards = []
    for node, fact in zip(tree.nodes, facts, strict=True):
        before = last[node.parent] if node.parent is not None else 0.0
        last[node.id] = fact.value if fact else before
        if node.terminal and node.prediction_f1 is not None:
            lucky = node.prediction_f1 > 0 and before < 1
            fact = None if lucky else Estimate(2.0 if node.prediction_f1 == 1 else before, 0.0, "gold")
        values.append(fact)
    return values


LABELS: dict[str, Label] = {
    "outcomes": _named("first_answer", alpha=1.0),
    "rollouts": _named("spre", alpha=1.0),
    "rollouts, discounted": _named("spre"),
    "string match": _named("cover", alpha=1.0),
    "gain": _named("gain"),
    "marked facts": marked_facts,
    "oracle": oracle,
}
"""Labels by name. Without discount but where they say so: an episode's length is no fault here."""

OUTCOMES = LabelArm("outcomes", "outcomes", one_action=False)
"""What every arm is compared with: the first answer below a step, right or wrong."""
ARMS = (
    LabelArm("start", method="none"),
    LabelArm("SFT on right episodes", method="sft"),
    LabelArm("SFT, then marked facts", "marked facts", method="both"),
    LabelArm("outcomes, whole episodes", method="whole"),
    OUTCOMES,
    LabelArm("outcomes, one action", "outcomes"),
    LabelArm("rollouts", "rollouts", one_action=False),
    LabelArm("rollouts, one action", "rollouts"),
    LabelArm("string match", "string match"),
    LabelArm("gain", "gain"),
    LabelArm("marked facts", "marked facts"),
    LabelArm("marked facts, any action", "marked facts", one_action=False),
    LabelArm("oracle", "oracle"),
    LabelArm("marked facts, as many pairs", "marked facts", keep="many"),
    LabelArm("marked facts, mixed trees", "marked facts", keep="mixed"),
    LabelArm("marked facts, 10 % turned", "marked facts", turned=0.1),
    LabelArm("marked facts, 20 % turned", "marked facts", turned=0.2),
    LabelArm("marked facts, 35 % turned", "marked facts", turned=0.35),
    LabelArm("outcomes, UCT", "outcomes", "uct", one_action=False),
    LabelArm("rollouts, UCT", "rollouts", "uct", one_action=False),
    LabelArm("rollouts, branching", "rollouts", "branch", one_action=False),
    LabelArm("marked facts, UCT", "marked facts", "uct"),
)


@dataclass(frozen=True)
class Made:
    """Pairs of an arm, and of each how the world sees it: 1 right, -1 wrong, 0 undecided."""

    pairs: list[Pair]
    truth: list[int]


def made_pairs(arm: LabelArm, label: Label, world: FactWorld, grown: Sequence[Tree]) -> Made:
    """The arm's pairs over all trees, before any is left out or turned."""
    config = PairsConfig(cross_action=not arm.one_action)
    pairs: list[Pair] = []
    truth: list[int] = []
    for tree in grown:
        made = build_pairs(tree, line_hash(tree.question.id), label(world, tree), config)
        right = right_steps(world, tree)
        pairs += made
        truth += [right[pair.chosen_node or 0] - right[pair.rejected_node or 0] for pair in made]
    return Made(pairs, truth)


def narrowed(arm: LabelArm, made: Made, grown: Sequence[Tree], many: int, rng: np.random.Generator) -> Made:
    """The pairs that the arm keeps, some of them turned round."""
    kept = list(range(len(made.pairs)))
    if arm.keep == "mixed":
        mixed = {tree.question.id for tree in grown if ends(tree, True) and ends(tree, False)}
        kept = [i for i in kept if made.pairs[i].question_id in mixed]
    if arm.keep == "many":
        kept = sorted(rng.permutation(kept)[:many].tolist())
    turned = rng.random(len(kept)) < arm.turned
    pairs = [_turned(made.pairs[i]) if t else made.pairs[i] for i, t in zip(kept, turned, strict=True)]
    return Made(pairs, [-made.truth[i] if t else made.truth[i] for i, t in zip(kept, turned, strict=True)])


def _turned(pair: Pair) -> Pair:
    return replace(
        pair, chosen=pair.rejected, rejected=pair.chosen, action=pair.rejected_action, rejected_action=pair.action
    )


def ends(tree: Tree, right: bool) -> list[Node]:
    """The answers of a tree that are right, or those that are wrong."""
    return [node for node in tree.nodes if node.prediction_f1 is not None and (node.prediction_f1 == 1.0) == right]


@dataclass(frozen=True)
class Cell:
    """What all arms share: the start, the questions, the calls a question, the steps of training, the test."""

    name: str
    level: str = "middle"
    hops: tuple[int, ...] = HOPS
    guessable: float = 0.0
    questions: int = 120
    calls: int = 64
    steps: int = 80
    tests: int = 1020


CELLS = (
    Cell("1 to 6 hops"),
    Cell("1 or 2 hops", hops=(1, 2)),
    Cell("4 to 6 hops", hops=(4, 5, 6)),
    Cell("weak start", level="weak"),
    Cell("strong start", level="strong"),
    Cell("half guessable", guessable=0.5),
)
