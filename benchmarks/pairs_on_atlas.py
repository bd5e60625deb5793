"""Usable pairs a model call, preset against preset, with the embedded model on Atlas; and how many of them are right.

    python benchmarks/pairs_on_atlas.py --index INDEX [--questions 6] [--pairs 40] [--rollouts 8] [--trees RUN]

Policy and judge are the warm-started SmolLM2-135M of the demo; questions, depth and sampling are the same for all
presets. Pairs are counted and checked by two rules: `published` (all sibling pairs with a gap of 0.01) and `steprag`
(the defaults of `steprag pairs`). Of up to `--pairs` sampled ones, `--rollouts` fresh episodes are played from either
step: "right" is the share whose preferred step leads to the answer more often (as often: half), which few episodes pull
towards a half; "gap" is how much more often it does so on average, which they do not. With `--trees`, pairs of that
run are checked and nothing is searched.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from statistics import fmean, stdev

from data_generation.config import GenerateConfig
from data_generation.generate import generate
from indexes import open_retriever
from preference.config import LabelConfig, PairsConfig
from preference.pairs import build_pairs
from preference.rewards import rewards
from steprag import atlas
from steprag.agent.environment import Environment
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.config import load_config
from steprag.files import read_records, write_records
from steprag.inputs import read_questions
from steprag.metrics import exact_match
from steprag.policy.client import Policy, open_policy
from steprag.policy.gate import Gate
from steprag.tree import path_to
from steprag.types import Completion, Node, State, Tree

PRESETS = ("reasonrag", "default", "fast")
RULES = {"published": PairsConfig(margin=0.01, errors=0, per_node=None), "steprag": PairsConfig()}


def configured(preset: str) -> GenerateConfig:
    keys = {"policy.adapter": "atlas-warmstart", "judge.adapter": "atlas-warmstart", "policy.max_tokens": 96}
    return load_config(GenerateConfig, None, {**keys, "search.preset": preset, "episode.depth": 7, "seed": 1})


async def state_at(tree: Tree, node: Node, environment: Environment) -> State:
    """The state after the steps that lead to `node`, its passages searched again."""
    state = environment.start(tree.question.question)
    for step in path_to(tree, node)[1:]:
        state = await environment.apply(state, environment.parse(state, Completion(step.text, "stop")))
    return state


class Worth:
    """The chance that a step leads to the answer, by fresh episodes; each step is played once."""

    def __init__(self, environment: Environment, policy: Policy, gate: Gate, rollouts: int) -> None:
        self._environment, self._policy, self._gate, self._rollouts = environment, policy, gate, rollouts

    async def of(self, tree: Tree, node: Node) -> float:
        if node.prediction_f1 is not None:
            return exact_match(node.content, tree.question.golden_answers)
        state = await state_at(tree, node, self._environment)
        hits = await asyncio.gather(*(self._play(tree, state, seed) for seed in range(self._rollouts)))
        return sum(hits) / self._rollouts

    async def gap(self, tree: Tree, better: Node, worse: Node) -> float:
        one, other = await asyncio.gather(self.of(tree, better), self.of(tree, worse))
        return one - other

    async def _play(self, tree: Tree, state: State, seed: int) -> float:
        async with self._gate.turn(0):
            episode = await episode_of(rollout(self._environment, self._policy, state, seed=1_000 * (seed + 1)))
        return exact_match(episode.prediction, tree.question.golden_answers)


def pairs_of(trees: list[Tree], rules: PairsConfig) -> list[tuple[Tree, Node, Node]]:
    return [
        (tree, tree.nodes[pair.chosen_node], tree.nodes[pair.rejected_node])
        for tree in trees
        for pair in build_pairs(tree, "", rewards(tree, LabelConfig(alpha=0.9), TRANSCRIPT), rules)
    ]


async def checked(pairs: list[tuple[Tree, Node, Node]], index: str, rollouts: int) -> tuple[float, float, float]:
    """Share of right ones, mean gap and its standard error; NaN where there are no pairs."""
    config = configured("default")
    profile = load_profile("transcript")
    async with aclosing(open_retriever(index)) as retriever, open_policy(config.policy, profile.grammar) as policy:
        environment = Environment(profile, retriever, config.episode.top_k, config.episode.depth)
        worth = Worth(environment, policy, Gate(config.policy), rollouts)
        gaps = [await worth.gap(*pair) for pair in pairs]
    if len(gaps) < 2:
        return math.nan, math.nan, math.nan
    right = fmean(0.5 if gap == 0 else float(gap > 0) for gap in gaps)
    return right, fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))


def report(name: str, trees: list[Tree], given: argparse.Namespace, base: dict[str, float]) -> None:
    """Two lines, one for each rule; `base` holds the pairs a call of the first run, by rule."""
    calls = sum(tree.usage.calls for tree in trees)
    for rule, config in RULES.items():
        pairs = pairs_of(trees, config)
        rate = len(pairs) / calls
        base.setdefault(rule, rate)
        times = f"{rate / base[rule]:.1f}x" if base[rule] else "–"
        sampled = random.Random(0).sample(pairs, min(len(pairs), given.pairs))
        right, gap, error = asyncio.run(checked(sampled, given.index, given.rollouts))
        sys.stdout.write(
            f"{name:<12}{rule:<11}{calls:>8,}{len(pairs):>8,}{rate:>12.2f}{times:>8}{len(sampled):>9}{right:>8.1%}"
            f"{gap:>+8.2f} ± {error:.2f}\n"
        )
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True, help="index of the Atlas corpus")
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of each preset and rule that are checked")
    parser.add_argument("--rollouts", type=int, default=8, help="episodes from each step of a checked pair")
    parser.add_argument("--trees", help="run folder of steprag generate whose pairs are checked")
    given = parser.parse_args()
    sys.stdout.write(
        f"{'preset':<12}{'rule':<11}{'calls':>8}{'pairs':>8}{'pairs/call':>12}{'times':>8}{'checked':>9}{'right':>8}"
        f"{'gap':>8}\n"
    )
    base: dict[str, float] = {}
    if given.trees:
        report(Path(given.trees).name, list(read_records(Path(given.trees) / "trees.jsonl", Tree)), given, base)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.jsonl"
        write_records(file, read_questions(atlas.path("train"))[: given.questions])
        for preset in PRESETS:
            asyncio.run(generate(configured(preset), file, given.index, Path(folder) / preset))
            report(preset, list(read_records(Path(folder) / preset / "trees.jsonl", Tree)), given, base)


if __name__ == "__main__":
    main()
