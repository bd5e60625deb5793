"""A seed of a cell: searched once, trained and tested once an arm."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steprag.console.progress import say
from steprag.experiments.tunnel.arms import LABELS, OUTCOMES, Cell, Label, LabelArm, ends, made_pairs, narrowed
from steprag.experiments.tunnel.grow import trees, with_beliefs
from steprag.experiments.tunnel.learn import trained
from steprag.experiments.tunnel.play import answers
from steprag.experiments.tunnel.policy import BatchedPolicy
from steprag.experiments.tunnel.pretrain import Recipe, pretrained
from steprag.experiments.tunnel.train import Schedule
from steprag.experiments.tunnel.world import HOPS, FactWorld
from steprag.records.jsonl import PARTIAL, read_json, write_json
from steprag.scores.metrics import exact_match
from steprag.tree import Tree

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SHIPPED = Path(__file__).parent / "start"
"""The start of level "middle", as `Recipe()` makes it."""
OTHERS = {level: Recipe(level, steps=250, rate=1e-3, single=0.0, double=0.2, seed=1) for level in ("weak", "strong")}
"""How the others are made of it."""
TEST_WORLD = 77


def start_of(level: str, out: Path) -> LlamaForCausalLM:
    """The start of a level: the shipped one, or one made of it, which is kept below `out`."""
    from transformers import LlamaForCausalLM

    folder = SHIPPED if level == "middle" else out / "starts" / level
    if not folder.is_dir():
        say(f"tunnel: makes the {level} start, a minute")
        part = folder.with_suffix(PARTIAL)
        pretrained(OTHERS[level], start_of("middle", out)).save_pretrained(part)
        os.replace(part, folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)


class Seed:
    """One seed of a cell: its trees, made when the first arm needs them, and what its arms reached."""

    def __init__(self, cell: Cell, seed: int, out: Path) -> None:
        self._cell, self._seed = cell, seed
        self._start = start_of(cell.level, out)
        self._folder = out / cell.name.replace(" ", "-") / str(seed)
        self._world, self._test = FactWorld(5000 + seed), FactWorld(TEST_WORLD)
        self._asked = self._world.questions(cell.questions, cell.hops, cell.guessable)
        self._tests = self._test.questions(cell.tests, HOPS, cell.guessable, "test")
        self._grown: dict[str, list[Tree]] = {}

    def run(self, arms: Sequence[LabelArm], labels: dict[str, Label]) -> None:
        """Trains and tests the arms that have no result yet."""
        torch.set_num_threads(1)
        for arm in arms:
            file = self._folder / f"{arm.name}.json"
            if file.exists() and read_json(file)["arm"] == asdict(arm):
                continue
            started = time.process_time()
            result = self._result(arm, labels)
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(file, {**result, "arm": asdict(arm), "seconds": round(time.process_time() - started, 1)})
            em = 100 * sum(result["right"]) / len(result["right"])
            say(f"tunnel: {self._cell.name}, seed {self._seed}: {arm.name} {em:.1f}")

    def _result(self, arm: LabelArm, labels: dict[str, Label]) -> dict[str, Any]:
        rng = np.random.default_rng(100 + self._seed)
        facts: dict[str, Any] = {}
        pairs, grown = [], self._trees(arm) if arm.method != "none" else []
        if arm.label:
            made = made_pairs(arm, labels[arm.label], self._world, grown)
            many = len(made_pairs(OUTCOMES, LABELS["outcomes"], self._world, grown).pairs) if arm.keep == "many" else 0
            made = narrowed(arm, made, grown, many, rng)
            pairs = made.pairs
            facts = _counted(made.truth, [pair.question_id for pair in pairs], grown)
        schedule = Schedule(self._cell.steps)
        model = trained(arm, self._start, pairs, grown, schedule, rng)
        policy = BatchedPolicy(model, 0.0)
        played = answers(self._test, policy, self._tests)
        right = [
            exact_match(one.prediction, asked.golden_answers) for one, asked in zip(played, self._tests, strict=True)
        ]
        return {**facts, "right": [int(one) for one in right], "hops": [q.metadata["hops"] for q in self._tests]}

    def _trees(self, arm: LabelArm) -> list[Tree]:
        """The arm's trees; with beliefs where its label is gain."""
        name = f"{arm.how}/{arm.label == 'gain'}"
        if name not in self._grown:
            policy = BatchedPolicy(self._start, 1.0)
            if arm.label == "gain":
                self._grown[name] = with_beliefs(self._world, policy, self._trees(LabelArm("", how=arm.how)))
            else:
                self._grown[name] = trees(self._world, policy, self._asked, self._cell.calls, self._seed, arm.how)
        return self._grown[name]


def _counted(truth: list[int], whose: list[str], grown: Sequence[Tree]) -> dict[str, Any]:
    """How many pairs are right, wrong and undecided: in all, by hops of the question, and of unsolved trees."""
    hops = {tree.question.id: str(tree.question.metadata["hops"]) for tree in grown}
    unsolved = {tree.question.id for tree in grown if not ends(tree, True)}
    groups: dict[str, list[int]] = {"all": [0, 0, 0], "unsolved": [0, 0, 0]}
    for told, question in zip(truth, whose, strict=True):
        for name in ("all", hops[question], *(["unsolved"] if question in unsolved else [])):
            groups.setdefault(name, [0, 0, 0])[{1: 0, -1: 1, 0: 2}[told]] += 1
    return {"pairs": groups, "unsolved": len(unsolved)}
