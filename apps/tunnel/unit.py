"""A seed of a cell: searched once, trained and tested once an arm."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apps.tunnel import grpo
from apps.tunnel.arms import OUTCOMES, Cell, LabelArm
from apps.tunnel.grow import Forest, Search, answers, environment_of, grown, with_ends
from apps.tunnel.labels import LABELS, Label
from apps.tunnel.model import FACTS, Weights, start_of
from apps.tunnel.train import LearntPair, LearntRow, Schedule, dpo, sft
from apps.tunnel.world import HOPS, FactWorld
from preference.config import PairsConfig
from preference.pairs import build_pairs
from steprag.agent.facts import solved
from steprag.console.progress import say
from steprag.records.jsonl import line_hash, read_json, write_json
from steprag.records.training_rows import Pair
from steprag.scores.metrics import exact_match
from steprag.tree import Node, Tree, path_to
from steprag.types import Message

ToldPair = tuple[Pair, int]
"""A pair, and how the world sees it: 1 right, -1 wrong, 0 undecided."""


def file_of(out: Path, cell: Cell, seed: int, arm: LabelArm) -> Path:
    """Where an arm's result stands."""
    return work_of(out, cell, seed).parent / f"{_as_name(arm.name)}.json"


def work_of(out: Path, cell: Cell, seed: int) -> Path:
    """Where a seed keeps what it was made of, if it keeps it."""
    return out / _as_name(cell.name) / str(seed) / "work"


def _as_name(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower())


def made_of(cell: Cell, arm: LabelArm) -> str:
    """What a result was made of, as one short hash: where it differs, the result is made again."""
    return line_hash(repr((cell, arm)))


def missing(out: Path, cell: Cell, seed: int, arms: Sequence[LabelArm]) -> list[LabelArm]:
    """The arms that have no result yet."""
    files = {arm: file_of(out, cell, seed, arm) for arm in arms}
    return [arm for arm, file in files.items() if not file.exists() or read_json(file)["made_of"] != made_of(cell, arm)]


def made_pairs(arm: LabelArm, label: Label, forest: Forest) -> list[ToldPair]:
    """The arm's pairs over all trees, before any is left out or turned."""
    config = PairsConfig(cross_action=not arm.one_action, margin=arm.margin, errors=arm.errors)
    made: list[ToldPair] = []
    for tree, values in zip(forest.trees, label(forest), strict=True):
        right = forest.world.right_steps(tree)
        made += [(pair, right[pair.chosen_node or 0] - right[pair.rejected_node or 0])
                 for pair in build_pairs(tree, line_hash(tree.question.id), values, config)]  # fmt: skip
    return made


def narrowed(
    arm: LabelArm, made: Sequence[ToldPair], forest: Forest, rng: np.random.Generator,
    outcomes: Label = LABELS["outcomes"],
) -> list[ToldPair]:  # fmt: skip
    """The pairs that the arm keeps, some of them turned round. `outcomes`: the label whose pairs are counted."""
    kept = list(made)
    if arm.keep == "mixed":
        mixed = {tree.question.id for tree in forest.trees if ends(tree, True) and ends(tree, False)}
        kept = [(pair, told) for pair, told in made if pair.question_id in mixed]
    if arm.keep == "many":
        many = len(made_pairs(OUTCOMES, outcomes, forest))
        kept = [made[i] for i in sorted(rng.permutation(len(made))[:many].tolist())]
    turned = rng.random(len(kept)) < arm.turned
    return [
        (replace(pair, chosen=pair.rejected, rejected=pair.chosen), -told) if turn else (pair, told)
        for (pair, told), turn in zip(kept, turned, strict=True)
    ]


def ends(tree: Tree, right: bool) -> list[Node]:
    """The answers of a tree that are right, or those that are wrong."""
    return [node for node in tree.nodes if node.prediction_f1 is not None and (node.prediction_f1 == 1.0) == right]


def counted(made: Sequence[ToldPair], forest: Forest) -> dict[str, list[int]]:
    """How many pairs are right, wrong and undecided: in all, by hops of the question, and of unsolved trees."""
    groups: dict[str, list[int]] = {"all": [0, 0, 0], "unsolved": [0, 0, 0]}
    names = {tree.question.id: ["all", str(tree.question.metadata["hops"]), *["unsolved"] * (not solved(tree))]
             for tree in forest.trees}  # fmt: skip
    for pair, told in made:
        for name in names[pair.question_id]:
            groups.setdefault(name, [0, 0, 0])[(1, -1, 0).index(told)] += 1
    return groups


def pair_rows(made: Sequence[ToldPair]) -> list[LearntPair]:
    """Pairs as rows of tokens."""

    def row(prompt: tuple[Message, ...], reply: tuple[Message, ...]) -> LearntRow:
        before, step = FACTS.prompt(prompt), FACTS.encode(reply[0]["content"])
        return LearntRow(before + step, ((len(before), len(before) + len(step)),))

    return [(row(pair.prompt, pair.chosen), row(pair.prompt, pair.rejected)) for pair, _ in made]


def episode_row(tree: Tree, leaf: Node) -> LearntRow:
    """A whole episode; its steps are learnt."""
    path = path_to(tree, leaf)
    starts = [len(FACTS.prompt(above.messages or ())) for above in path[:-1]]
    spans = tuple((start, start + len(FACTS.encode(node.text))) for start, node in zip(starts, path[1:], strict=True))
    return LearntRow([*FACTS.prompt(path[-2].messages or ()), *FACTS.encode(leaf.text)], spans)


def whole_pairs(trees: Sequence[Tree], rng: np.random.Generator) -> list[LearntPair]:
    """Right episodes against wrong ones of the same question, four pairs a tree."""
    rows: list[LearntPair] = []
    for tree in trees:
        good, bad = ends(tree, True), ends(tree, False)
        if good and bad:
            drawn = [(good[rng.integers(len(good))], bad[rng.integers(len(bad))]) for _ in range(4)]
            rows += [(episode_row(tree, one), episode_row(tree, other)) for one, other in drawn]
    return rows


class Seed:
    """One seed of a cell: its trees, made when the first arm needs them, and what its arms reached."""

    def __init__(self, cell: Cell, seed: int, labels: Mapping[str, Label], searches: Mapping[str, Search]) -> None:
        self._cell, self._seed, self._labels, self._searches = cell, seed, labels, searches
        self._start = start_of(cell.level)
        self._world, self._test = FactWorld(5000 + seed), FactWorld(cell.test_world)
        self._asked = self._world.questions(cell.questions, cell.hops, cell.guessable)
        self._tests = self._test.questions(cell.tests, HOPS, cell.guessable, "test")
        self._forests: dict[tuple[str, int], Forest] = {}

    def run(self, arms: Sequence[LabelArm], out: Path) -> None:
        """Trains and tests the arms that have no result yet."""
        for arm in missing(out, self._cell, self._seed, arms):
            started = time.process_time()
            said, facts = self._said(arm)
            right = [exact_match(one, asked.golden_answers) for one, asked in zip(said, self._tests, strict=True)]
            seconds = round(time.process_time() - started, 2)
            told = {"cell": self._cell.name, "arm": arm.name, "rate": arm.rate, "made_of": made_of(self._cell, arm),
                    "seconds": seconds, **facts, "right": [int(one) for one in right],
                    "hops": [asked.metadata["hops"] for asked in self._tests]}  # fmt: skip
            file = file_of(out, self._cell, self._seed, arm)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, told)
            em = 100 * sum(right) / len(right)
            say(f"tunnel: {self._cell.name}, seed {self._seed}: {arm.name} {em:.1f}, {seconds:.0f} s")

    def _said(self, arm: LabelArm) -> tuple[list[str | None], dict[str, Any]]:
        """What the arm's policy answers to the test questions, and what to report of its training."""
        if arm.method == "grpo":
            weights, facts = grpo.trained(arm, self._world, self._asked, self._seed)
            return answers(with_ends(environment_of(self._test)), weights, self._tests), facts
        weights, facts = self._learnt(arm)
        return answers(environment_of(self._test), weights, self._tests), facts

    def _learnt(self, arm: LabelArm) -> tuple[Weights, dict[str, Any]]:
        """The arm's policy, and what to report of its calls and pairs."""
        rng, weights, facts = np.random.default_rng(100 + self._seed), self._start, {}
        for turn in range(arm.rounds if arm.method != "none" else 0):
            weights, facts = self._trained(arm, weights, self._forest(arm, turn, weights), rng)
        return weights, facts

    def _forest(self, arm: LabelArm, turn: int, weights: Weights) -> Forest:
        """The arm's trees: of the start, which arms share, and in later rounds of its policy so far."""
        key = (arm.how, arm.rounds)
        if turn == 0 and key in self._forests:
            return self._forests[key]
        calls, seed = self._cell.calls // arm.rounds, self._seed + 1000 * turn
        trees = grown(self._world, weights, self._asked, calls, seed, self._searches[arm.how])
        forest = Forest(self._world, trees, weights)
        return forest if turn else self._forests.setdefault(key, forest)

    def _trained(
        self, arm: LabelArm, weights: Weights, forest: Forest, rng: np.random.Generator
    ) -> tuple[Weights, dict[str, Any]]:
        """What the arm makes of the policy by these trees, and what to report of its pairs."""
        schedule = Schedule(self._cell.steps // arm.rounds, rate=arm.rate)
        facts: dict[str, Any] = {"calls": sum(tree.usage.calls for tree in forest.trees) * arm.rounds,
                                 "unsolved": sum(not solved(tree) for tree in forest.trees)}  # fmt: skip
        pairs = whole_pairs(forest.trees, rng) if arm.method == "whole" else []
        if arm.label:
            made = narrowed(arm, made_pairs(arm, self._labels[arm.label], forest), forest, rng)
            pairs, facts["pairs"] = pair_rows(made), counted(made, forest)
        if arm.method in ("sft", "both"):
            right = [episode_row(tree, leaf) for tree in forest.trees for leaf in ends(tree, True)]
            weights = sft(weights, right, replace(schedule, batch=2 * schedule.batch), rng) if right else weights
        return (dpo(weights, pairs, schedule, rng) if pairs else weights), facts
