"""The arms: how a policy is trained on the trees of one seed. Labels and pairs are those of `steprag pairs`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from preference.config import LabelConfig, PairsConfig
from preference.pairs import build_pairs
from preference.rewards import Estimate, Rewards, rewards
from steprag.agent.grammars import TRANSCRIPT
from steprag.experiments.tunnel.grow import hash_of
from steprag.experiments.tunnel.policy import prompt_ids
from steprag.experiments.tunnel.train import Row, Schedule, dpo, sft
from steprag.experiments.tunnel.truth import oracle, right_steps
from steprag.experiments.tunnel.words import encode
from steprag.experiments.tunnel.world import World
from steprag.records.training_rows import Pair
from steprag.tree import Node, Tree, path_to
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

Label = Callable[[World, Tree], Rewards]


@dataclass(frozen=True)
class Arm:
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


def marked_facts(world: World, tree: Tree) -> Rewards:
    """Gold-evidence recall, and for answers whether they are right; luck says nothing."""
    del world
    facts = rewards(tree, LabelConfig(name="gold"), TRANSCRIPT)
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

OUTCOMES = Arm("outcomes", "outcomes", one_action=False)
"""What every arm is compared with: the first answer below a step, right or wrong."""
ARMS = (
    Arm("start", method="none"),
    Arm("SFT on right episodes", method="sft"),
    Arm("SFT, then marked facts", "marked facts", method="both"),
    Arm("outcomes, whole episodes", method="whole"),
    OUTCOMES,
    Arm("outcomes, one action", "outcomes"),
    Arm("rollouts", "rollouts", one_action=False),
    Arm("rollouts, one action", "rollouts"),
    Arm("string match", "string match"),
    Arm("gain", "gain"),
    Arm("marked facts", "marked facts"),
    Arm("marked facts, any action", "marked facts", one_action=False),
    Arm("oracle", "oracle"),
    Arm("marked facts, as many pairs", "marked facts", keep="many"),
    Arm("marked facts, mixed trees", "marked facts", keep="mixed"),
    Arm("marked facts, 10 % turned", "marked facts", turned=0.1),
    Arm("marked facts, 20 % turned", "marked facts", turned=0.2),
    Arm("marked facts, 35 % turned", "marked facts", turned=0.35),
    Arm("outcomes, UCT", "outcomes", "uct", one_action=False),
    Arm("rollouts, UCT", "rollouts", "uct", one_action=False),
    Arm("rollouts, branching", "rollouts", "branch", one_action=False),
    Arm("marked facts, UCT", "marked facts", "uct"),
)


@dataclass(frozen=True)
class Made:
    """Pairs of an arm, and of each how the world sees it: 1 right, -1 wrong, 0 undecided."""

    pairs: list[Pair]
    truth: list[int]


def made_pairs(arm: Arm, label: Label, world: World, grown: Sequence[Tree]) -> Made:
    """The arm's pairs over all trees, before any is left out or turned."""
    config = PairsConfig(cross_action=not arm.one_action)
    pairs: list[Pair] = []
    truth: list[int] = []
    for tree in grown:
        made = build_pairs(tree, hash_of(tree), label(world, tree), config)
        right = right_steps(world, tree)
        pairs += made
        truth += [right[pair.chosen_node or 0] - right[pair.rejected_node or 0] for pair in made]
    return Made(pairs, truth)


def narrowed(arm: Arm, made: Made, grown: Sequence[Tree], many: int, rng: np.random.Generator) -> Made:
    """The pairs that the arm keeps, some of them turned round."""
    kept = list(range(len(made.pairs)))
    if arm.keep == "mixed":
        mixed = {tree.question.id for tree in grown if _mixed(tree)}
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


def _mixed(tree: Tree) -> bool:
    scores = {node.prediction_f1 == 1.0 for node in tree.nodes if node.prediction_f1 is not None}
    return len(scores) == 2


def solved(tree: Tree) -> bool:
    """Whether a right answer stands in the tree."""
    return any(node.prediction_f1 == 1.0 for node in tree.nodes)


def step_row(prompt: tuple[Message, ...], text: str) -> Row:
    """A prompt and the step that is learnt behind it."""
    before, step = prompt_ids(prompt), encode(text)
    return Row(before + step, ((len(before), len(before) + len(step)),))


def pair_rows(pairs: Sequence[Pair]) -> list[tuple[Row, Row]]:
    """Pairs as rows."""
    sides = ("chosen", "rejected")
    return [tuple(step_row(pair.prompt, getattr(pair, side)[0]["content"]) for side in sides) for pair in pairs]  # pyright: ignore[reportReturnType]


def episode_row(tree: Tree, leaf: Node) -> Row:
    """A whole episode; its steps are learnt."""
    path = path_to(tree, leaf)
    *_, last = path[:-1]
    ids, spans = prompt_ids(last.messages or ()), []
    for above, node in zip(path, path[1:], strict=False):
        start = len(prompt_ids(above.messages or ()))
        spans.append((start, start + len(encode(node.text))))
    return Row([*ids, *encode(leaf.text)], tuple(spans))


def ends(tree: Tree, right: bool) -> list[Node]:
    """The answers of a tree that are right, or those that are wrong."""
    return [node for node in tree.nodes if node.prediction_f1 is not None and (node.prediction_f1 == 1.0) == right]


def whole_pairs(grown: Sequence[Tree], rng: np.random.Generator, each: int = 4) -> list[tuple[Row, Row]]:
    """Right episodes against wrong ones of the same question."""
    rows = []
    for tree in grown:
        good, bad = ends(tree, True), ends(tree, False)
        if good and bad:
            drawn = [(good[rng.integers(len(good))], bad[rng.integers(len(bad))]) for _ in range(each)]
            rows += [(episode_row(tree, one), episode_row(tree, other)) for one, other in drawn]
    return rows


def trained(
    arm: Arm,
    start: LlamaForCausalLM,
    pairs: Sequence[Pair],
    grown: Sequence[Tree],
    schedule: Schedule,
    rng: np.random.Generator,
) -> LlamaForCausalLM:
    """The policy that the arm makes of the start, by `schedule` and the arm's own rate."""
    model, schedule = copy.deepcopy(start), replace(schedule, rate=arm.rate)
    rows = pair_rows(pairs) if arm.method != "whole" else whole_pairs(grown, rng)
    right = [episode_row(tree, leaf) for tree in grown for leaf in ends(tree, True)]
    if arm.method in ("sft", "both") and right:
        sft(model, right, replace(schedule, batch=2 * schedule.batch), rng)
    if arm.method in ("dpo", "both", "whole") and rows:
        dpo(model, rows, schedule, rng)
    return model
