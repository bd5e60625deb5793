"""Usable pairs a model call, preset against preset, with the embedded model on Atlas; and how many of them are right.

    python benchmarks/pairs_on_atlas.py --index runs/demo/index [--questions 6] [--pairs 40] [--rollouts 8]

Policy and judge are the warm-started SmolLM2-135M of the demo; questions, depth, sampling and pair rules (margin 0.01,
all sibling pairs, SPRE) are the same for all presets. "right": of up to `--pairs` sampled ones, the share whose
preferred step leads to the answer more often than the rejected one, in `--rollouts` fresh episodes from each (as often:
half).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from data_generation.config import GenerateConfig
from data_generation.generate import generate
from indexes import open_retriever
from preference.config import PairsConfig, RewardConfig
from preference.pairs import build_pairs
from preference.rewards import rewards
from steprag import atlas
from steprag.config import load_config
from steprag.environment import Environment, rollout
from steprag.files import read_questions, read_records, write_records
from steprag.gate import Gate
from steprag.metrics import exact_match
from steprag.policy import Policy, open_policy
from steprag.prompts import load_profile
from steprag.tree import path_to
from steprag.types import Completion, Node, State, Tree

PRESETS = ("reasonrag", "default", "fast")


def configured(preset: str) -> GenerateConfig:
    keys = {"policy.adapter": "atlas-warmstart", "judge.adapter": "atlas-warmstart", "policy.max_tokens": 96}
    return load_config(GenerateConfig, None, {**keys, "search.preset": preset, "search.depth": 7, "seed": 1})


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

    async def _play(self, tree: Tree, state: State, seed: int) -> float:
        async with self._gate.turn(0):
            episode = await rollout(self._environment, self._policy, state, seed=1_000 * (seed + 1))
        return exact_match(episode.prediction, tree.question.golden_answers)


def pairs_of(trees: list[Tree]) -> list[tuple[Tree, Node, Node]]:
    rules = PairsConfig(margin=0.01, errors=0, per_node=None)
    return [
        (tree, tree.nodes[pair.chosen_node], tree.nodes[pair.rejected_node])
        for tree in trees
        for pair in build_pairs(tree, "", rewards(tree, RewardConfig(alpha=0.9)), rules)
    ]


async def share_right(pairs: list[tuple[Tree, Node, Node]], index: str, rollouts: int) -> float:
    config = configured("default")
    profile, retriever = load_profile("transcript"), open_retriever(index)
    environment = Environment(profile, retriever, config.retriever.top_k, config.search.depth)
    async with open_policy(config.policy, profile.grammar) as policy:
        worth = Worth(environment, policy, Gate(config.policy), rollouts)
        right = 0.0
        for tree, better, worse in pairs:
            one, other = await worth.of(tree, better), await worth.of(tree, worse)
            right += 0.5 if one == other else float(one > other)
    await retriever.close()
    return right / max(1, len(pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True, help="index of the Atlas corpus")
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of each preset that are checked")
    parser.add_argument("--rollouts", type=int, default=8, help="episodes from each step of a checked pair")
    given = parser.parse_args()
    base = None
    sys.stdout.write(
        f"{'preset':<12}{'calls':>8}{'pairs':>8}{'pairs/call':>12}{'times':>8}{'right':>8}{'seconds':>9}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.jsonl"
        write_records(file, read_questions(atlas.path("train"))[: given.questions])
        for preset in PRESETS:
            start = time.perf_counter()
            asyncio.run(generate(configured(preset), file, given.index, Path(folder) / preset))
            seconds = time.perf_counter() - start
            trees = list(read_records(Path(folder) / preset / "trees.jsonl", Tree))
            pairs, calls = pairs_of(trees), sum(tree.usage.calls for tree in trees)
            sampled = random.Random(0).sample(pairs, min(len(pairs), given.pairs))
            right = asyncio.run(share_right(sampled, given.index, given.rollouts))
            rate = len(pairs) / calls
            base = rate if base is None else base
            times = f"{rate / base:.1f}x" if base else "–"
            sys.stdout.write(
                f"{preset:<12}{calls:>8,}{len(pairs):>8,}{rate:>12.2f}{times:>8}{right:>8.1%}{seconds:>9.0f}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
