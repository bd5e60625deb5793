"""Do right labels of steps beat outcomes on Atlas, from 20 demonstrations? Hours on two cores, by commands of steprag.

    python -m benchmarks.atlas_proof prepare --out runs/atlas
    python -m benchmarks.atlas_proof run --out runs/atlas --engine vllm --seeds 1 2      # goes on where it stopped
    python -m benchmarks.atlas_proof report --out runs/atlas --seeds 1 2

`prepare` needs the packages of `steprag/atlas/SOURCES.md`. Every seed has questions of its own, of two and three hops,
and of each a tree by the start. All arms learn from the same trees in as many batches, by DPO from the start. The test
asks open questions of one and two hops about entities that no training question names. Rates are chosen on dev, from
the first seed. The goal was set before the run: marked facts over outcomes by five points of exact match, interval
above 0 (docs/figures/atlas-proof.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apps.reproduce.options import ProofOptions, fast, recipe
from apps.reproduce.reproduce import DEMO_PASSES
from apps.reproduce.stages import Pipeline, Stage, stage
from apps.tunnel.statistics import PairedDifference, of_seeds
from inference.scoring.runs_compared import read_run
from inference.scoring.tables import markdown
from preference.kept import found_and_kept
from preference.rewards import Estimate, Rewards
from steprag.agent.grammar import Grammar
from steprag.config.load import RECIPES, parse_arguments
from steprag.console.terminal import guarded
from steprag.engines.threads import spin_briefly
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_json
from steprag.scores.gold import facts_of
from steprag.tree import Tree

SIZES = {"train": 150, "dev": 150, "test": 400}
HOPS = {2: 200, 3: 100}
"""Questions that `prepare` makes a seed, by hops; the first of them are searched."""
CALLS, STEPS, BATCH = 16, 48, 8
RATES = (5e-5, 2e-4)
"""The recipe's and a higher one."""
SOUND = ("--products", "pairs", "--filters.repeating", "true", "--filters.again", "true", "--filters.unread", "true",
         "--filters.made_up", "true", "--pairs.errors", "0", "--balance.most", str(STEPS * BATCH))  # fmt: skip
"""Pairs of one action, those of unsolved trees first. A small model rambles, asks again, makes up and guesses."""
ARMS = {
    "facts": ("marked facts", "--label.name", "benchmarks.atlas_proof:facts_met"),
    "outcomes": ("outcomes", "--label.name", "first_answer", "--label.metric", "em", "--label.alpha", "1"),
}
"""By folder: its name in the report, and its label."""
_ALSO = {"gold_recall": 100, "searches": 1}
"""What a run's metrics tell beside, and what it is multiplied by."""


def facts_met(tree: Tree, grammar: Grammar) -> Rewards:
    """The share of the question's marked facts that the episode has by then: of a search those found, of evidence those
    kept. A wrong answer is worth what was kept before it, a right one 2; a lucky one says nothing.
    """
    facts = facts_of(tree.question)
    held, values = [0.0], list[Estimate | None]([None])
    for node, (ids, kept) in [*zip(tree.nodes, found_and_kept(tree, grammar), strict=True)][1:]:
        held.append(sum(fact.held(ids, kept) for fact in facts) / len(facts))
        value = held[node.id]
        if node.action == "query":
            value = sum(fact.passage in ids for fact in facts) / len(facts)
        right = node.prediction_f1 == 1.0
        silent = node.failure is not None or (right and held[node.parent or 0] < 1)
        values.append(None if silent else Estimate(2.0 if right else value, 0.0, "facts"))
    return values


@dataclass(frozen=True)
class Proof:
    """Where the runs are, and the options that name the engine."""

    out: Path
    served: tuple[str, ...]

    def trees(self, seed: int) -> Stage:
        """A seed's trees by the start, sampled as configs/generation/atlas.yaml says, of so many calls each."""
        whole = ("--search.rollouts", "1000", "--search.extra", "0", "--search.contrast", "none")
        return stage(
            self.out / f"trees-{seed}", "generate", *self.served, *whole, "--search.hopeless", "none",
            "--search.wave", "1", "--tree.calls", str(CALLS), "--policy.adapter", str(self.out / "warm"),
            config=RECIPES / "generation/atlas.yaml", questions=self.out / f"questions/train-{seed}.jsonl",
            index=self.out / "index", seed=seed, limit=SIZES["train"],
        )  # fmt: skip

    def learnt(self, arm: str, seed: int, rate: float) -> list[Stage]:
        """The arm's pairs of a seed's trees, and the adapter that they make of the start."""
        pairs = self.out / f"pairs-{arm}-{seed}"
        return [
            stage(pairs, "pairs", *SOUND, *ARMS[arm][1:], trees=self.out / f"trees-{seed}"),
            stage(self.out / named(arm, seed, rate), "train", *fast(), config=recipe("dpo"), pairs=pairs, seed=seed,
                  adapter=self.out / "warm", max_steps=STEPS, batch_size=BATCH, learning_rate=rate),
        ]  # fmt: skip

    def answered(self, name: str, asked: str = "test") -> Stage:
        """Greedy episodes of the adapter `name` on questions of dev or test."""
        return stage(
            self.out / asked / name, "infer", *self.served, "--policy.max_tokens", "96",
            config=RECIPES / "inference/demo.yaml", questions=self.out / f"questions/{asked}.jsonl",
            index=self.out / "index", adapter=self.out / name, limit=SIZES[asked],
        )  # fmt: skip


def named(arm: str, seed: int, rate: float) -> str:
    """The folder of an adapter."""
    return f"{arm}-{seed}-{rate:g}"


def run(proof: Proof, seeds: Sequence[int]) -> None:
    """Start, trees, pairs, the choice of rates, then every arm of every seed; what is finished is reused."""
    pipeline, arms = Pipeline(proof.out, 2), [(arm, seed) for seed in seeds for arm in ARMS]
    pipeline.run(stage(proof.out / "warm", "train", *fast(), config=recipe("warmstart"), pairs=proof.out / "worked",
                       epochs=DEMO_PASSES))  # fmt: skip
    pipeline.together([[proof.trees(seed)] for seed in seeds])
    for arm, seed in arms:
        pipeline.run(proof.learnt(arm, seed, RATES[0])[0])
    pipeline.together([
        [*proof.learnt(arm, seeds[0], rate), proof.answered(named(arm, seeds[0], rate), "dev")]
        for rate in RATES for arm in ARMS
    ])  # fmt: skip
    rates = chosen_rates(proof.out, seeds[0])
    chains = [
        [*proof.learnt(arm, seed, rates[arm]), proof.answered(named(arm, seed, rates[arm]))]
        for arm, seed in reversed(arms)  # the first seed's are trained already
    ]
    pipeline.together([*chains, [proof.answered("warm")]])


def chosen_rates(out: Path, seed: int) -> dict[str, float]:
    """The rate of each arm that was best on dev; the lower one of equals."""
    told = {(arm, rate): right(out / "dev" / named(arm, seed, rate)).sum() for arm in ARMS for rate in RATES}
    return {arm: max(RATES, key=lambda rate: told[arm, rate]) for arm in ARMS}


def right(folder: Path) -> np.ndarray:
    """Of the questions in the order of their ids: 1 where it was answered rightly."""
    return np.array([one.em for _, one in sorted(read_run(folder, folder.name).scores.items())], dtype=float)


def report(out: Path, seeds: Sequence[int]) -> str:
    """EM of the start and of every arm and seed, and differences, paired by seed and by question."""
    asked = sorted(read_questions(out / "questions/test.jsonl"), key=lambda one: one.id)
    rates, start = chosen_rates(out, seeds[0]), out / "test/warm"
    runs = {"start": [start], **{arm: [out / "test" / named(arm, seed, rates[arm]) for seed in seeds] for arm in ARMS}}
    scores = {arm: 100 * np.stack([*map(right, folders)]) for arm, folders in runs.items()}
    hops = np.array([one.metadata["hops"] for one in asked[: scores["start"].shape[1]]])
    rows = list[list[str]]()
    for arm, folders in runs.items():
        told = [read_json(folder / "metrics.json") for folder in folders]
        made = [read_json(out / f"pairs-{arm}-{seed}/report.json")["pairs"]["pairs"] for seed in seeds if arm in ARMS]
        parts = [scores[arm], *(scores[arm][:, hops == count] for count in (1, 2))]
        shown = [f"{part.mean():.1f}" for part in parts]
        shown += [f"{np.mean([each[key] for each in told]) * scale:.1f}" for key, scale in _ALSO.items()]
        rows.append([ARMS[arm][0] if arm in ARMS else arm, ", ".join(f"{em:.1f}" for em in scores[arm].mean(1)), *shown,
                     ", ".join(map(str, made)), f"{rates[arm]:g}" if arm in ARMS else ""])  # fmt: skip
    gaps: dict[str, PairedDifference] = {
        "marked facts over outcomes": of_seeds(scores["facts"] - scores["outcomes"]),
        **{f"{ARMS[arm][0]} over start": of_seeds(scores[arm] - scores["start"]) for arm in ARMS},
    }
    head = ["arm", "EM by seed", "mean", "1 hop", "2 hops", "gold found", "searches", "pairs", "rate"]
    differences = [[name, *each.shown, ", ".join(f"{gap:+.1f}" for gap in each.seeds)] for name, each in gaps.items()]
    table = markdown(["comparison", "points (95 %, t over seeds)", "bootstrap", "by seed"], differences)
    return f"{markdown(head, rows)}\n{table}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/atlas_proof.py", description="Labels of steps on Atlas.")
    parser.add_argument("what", choices=("prepare", "run", "report"))
    parser.add_argument("--out", type=Path, default=Path("runs/atlas"), metavar="DIR", help="run folder [runs/atlas]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="[1 2]")
    parser.add_argument("--engine", default="llamacpp", choices=("llamacpp", "vllm"), help="what serves [llamacpp]")
    given = parse_arguments(parser, argv)
    if given.what == "prepare":
        from benchmarks.atlas.proof import prepare

        prepare(given.out, max(given.seeds), HOPS, {"dev": 300, "test": 1000})
        return 0
    spin_briefly()  # before a stage loads torch
    if given.what == "run":
        run(Proof(given.out, ProofOptions(out=given.out, engine=given.engine).served), given.seeds)
    sys.stdout.write(report(given.out, given.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
