"""A seed of a cell of the village: trees over the product's BM25 index, and the product's trainer.

Agent, search, labels and pairs are those that the tunnel's other world uses too; training is `steprag train`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import numpy as np

from apps.commands import run
from apps.tunnel.arms import MARKED, OUTCOMES, LabelArm, VillageCell
from apps.tunnel.grow import Forest, Search, gathered, graft, predictions, searcher_of
from apps.tunnel.labels import Label
from apps.tunnel.model import Weights, start_of, write_folder
from apps.tunnel.policy import BatchedPolicy
from apps.tunnel.unit import Seed, counted, ends, made_of, made_pairs, narrowed
from apps.tunnel.village import HOPS, Village, VillageHop, environment_over, worked
from apps.tunnel.village_words import VILLAGE
from data_generation.expand import Searcher
from data_generation.growth import SearchTree, root_only
from data_generation.search import grow
from indexes import open_retriever
from preference.chained import chain
from preference.config import LabelConfig
from preference.rewards import rewards
from preference.support import FORECASTS, forecast, open_states, support
from steprag.agent.environment import Environment
from steprag.agent.facts import facts_about, solved
from steprag.agent.grammars import TRANSCRIPT
from steprag.console.progress import say
from steprag.errors import TrainingError
from steprag.records.jsonl import files_hash, line_hash, read_records, write_records
from steprag.records.training_rows import Pair
from steprag.tree import Tree
from steprag.types import Completion, Episode, Question, Usage

STARTS = Path(__file__).parent / "village_start"


def product_label(**keys: Any) -> Label:
    """A label of `steprag pairs`, without discount; an answer is right to the word or wrong, for first names recur."""
    config = LabelConfig.model_validate({"alpha": 1.0, "metric": "em", **keys})
    return lambda forest: [rewards(chain(facts_about(tree, TRANSCRIPT), config), config) for tree in forest.trees]


VILLAGE_LABELS = {
    "outcomes": product_label(name="first_answer"),
    "rollouts": product_label(name="spre"),
    "chained match": product_label(name="cover", chained=True),
    "marked facts": product_label(name="gold"),
}


async def worked_tree(environment: Environment, question: Question, hops: Sequence[VillageHop]) -> SearchTree:
    """A tree that holds the question and the steps of one episode, which cost no call."""
    tree = root_only(question, environment)
    state = tree.root.state
    for step in worked(question, hops, lambda action, place: False).steps:
        state = await environment.apply(state, environment.parse(state, Completion(step.text, "written")))
    graft(tree, tree.root, Episode(state, "answer", Usage()), environment)
    return tree


def restarting(world: Village) -> Search:
    """The product's search over trees that hold the worked way: it restarts from the states of that way, and the worked
    steps are siblings of sampled ones.
    """

    async def restarted(tree: SearchTree, searcher: Searcher) -> Tree:
        return await grow(await worked_tree(searcher.environment, tree.question, world.chain(tree.question)), searcher)

    return restarted


class VillageSeed(Seed):
    """One seed of a cell of the village. `work`: where its indexes, trees, pairs and models are kept."""

    def __init__(
        self, cell: VillageCell, seed: int, labels: Mapping[str, Label], searches: Mapping[str, Search], work: Path
    ) -> None:
        self._cell, self._seed, self._searches = cell, seed, searches
        starts = files_hash(sorted(STARTS.glob("*.safetensors")))
        self._work = work / line_hash(f"{cell!r} {starts}")[:12]  # another start or size does not find these trees
        self._labels = {**labels, **VILLAGE_LABELS}
        self._start = start_of(cell.level, STARTS)
        self._place = Village(5000 + seed, cell.told)
        self._exam = Village(cell.test_world, cell.told, fresh=True, unseen=True)
        self._asked = self._place.questions(cell.questions, cell.hops)
        self._tests = self._exam.questions(cell.tests, HOPS, "test")
        self._searched: dict[str, Forest] = {}

    def _said(self, arm: LabelArm) -> tuple[list[str | None], dict[str, Any]]:
        weights, facts = self._start, {}
        if arm.label:
            forest = self._trees_of(arm.how)
            made = narrowed(arm, made_pairs(arm, self._labels[arm.label], forest), forest,
                            np.random.default_rng(100 + self._seed), self._labels["outcomes"])  # fmt: skip
            facts = {"calls": sum(tree.usage.calls for tree in forest.trees), "pairs": counted(made, forest),
                     "unsolved": sum(not solved(tree) for tree in forest.trees)}  # fmt: skip
            if made:
                weights = self._taught(arm, [pair for pair, _ in made])
        return asyncio.run(self._answered(weights)), facts

    def _trees_of(self, how: str) -> Forest:
        """The trees of the start by this search, from the disk where they are there."""
        if how not in self._searched:
            file = self._work / f"trees-{how.lower()}.jsonl"
            if not file.exists():
                self._work.mkdir(parents=True, exist_ok=True)
                write_records(file, asyncio.run(self._grown(how)))
            self._searched[how] = Forest(cast(Any, self._place), list(read_records(file, Tree)), {})
            self._forecast(self._searched[how])
        return self._searched[how]

    async def _grown(self, how: str) -> list[Tree]:
        search = restarting(self._place) if self._cell.worked else self._searches[how]
        policy, index = BatchedPolicy(self._start, 1.0, VILLAGE), self._place.build(self._work / "village")
        async with aclosing(open_retriever(index)) as retriever:
            environment = environment_over(retriever)
            searcher = searcher_of(environment, policy, self._cell.calls, self._seed)
            grown = (search(root_only(asked, environment), searcher) for asked in self._asked)
            return await gathered(grown, VILLAGE.batch)

    def _forecast(self, forest: Forest) -> None:
        """Says what `steprag plan labels` says of the trees, before any arm is trained, and what pairs they give."""
        trees = forest.trees
        share = support(open_states(facts_about(tree, TRANSCRIPT)) for tree in trees)[-1].share
        mixed = sum(bool(ends(tree, True) and ends(tree, False)) for tree in trees)
        outcomes, marked = ([pair for pair, _ in made_pairs(arm, self._labels[arm.label], forest)]
                            for arm in (OUTCOMES, MARKED))  # fmt: skip
        later = sum(pair.action == "query" and pair.depth > 1 for pair in marked)
        say(
            f"tunnel: {self._cell.name}, seed {self._seed}: {sum(not solved(tree) for tree in trees)} of {len(trees)} "
            f"trees unsolved, {mixed} mixed; {len(outcomes)} pairs of outcomes, {len(marked)} of marked facts, {later} "
            f"of these of later queries; {share:.0%} of open states have a right step: {FORECASTS[forecast(share)]}"
        )

    def _taught(self, arm: LabelArm, pairs: Sequence[Pair]) -> Weights:
        """What DPO makes of the start by these pairs. Raises TrainingError."""
        from safetensors.torch import load_file

        folder = self._work / made_of(self._cell, arm)[:12]
        write_folder(self._start, folder / "start", VILLAGE)
        write_records(folder / "pairs.train.jsonl", pairs)
        code = run(["train", str(folder), "--stage", "dpo", "--finetuning", "full", "--model", str(folder / "start"),
                    "--out", str(folder / "model"), "--max_steps", str(self._cell.steps), "--batch_size", "16",
                    "--max_length", str(VILLAGE.longest), "--learning_rate", str(arm.rate), "--warmup", "10",
                    "--scheduler", "linear", "--dpo.sft_weight", "1", "--held_out", "0", "--collapse", "false",
                    "--save_steps", "10000", "--threads", "1"])  # fmt: skip
        if code:
            raise TrainingError(f"{folder}: training ended with exit code {code}")
        saved = load_file(folder / "model" / "model.safetensors")
        return {name: saved[name].float() for name in self._start}

    async def _answered(self, weights: Weights) -> list[str | None]:
        """The greedy answers to the test questions."""
        policy, index = BatchedPolicy(weights, 0.0, VILLAGE), self._exam.build(self._work / "test-village")
        async with aclosing(open_retriever(index)) as retriever:
            return await predictions(environment_over(retriever), policy, self._tests, VILLAGE.batch)
