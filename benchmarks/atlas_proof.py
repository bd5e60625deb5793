"""Do right labels of steps beat outcomes where an agent must read? Atlas from 20 demonstrations, minutes on one GPU.

    python -m benchmarks.atlas_proof prepare --out runs/atlas    # anywhere: questions, BM25 index, start (an adapter)
    python -m benchmarks.atlas_proof run --out runs/atlas --jobs 6 --until 480  # on the GPU; goes on where it stopped
    python -m benchmarks.atlas_proof report --out runs/atlas

`prepare` needs the packages of `steprag/atlas/SOURCES.md`. Every seed has questions of its own, of two and three hops,
and of each a tree by the search of `steprag generate`. All arms learn from the same trees in as many batches, by DPO of
all weights. The test asks open questions of one and two hops about entities that no training question names. Rates are
chosen by a seed of their own, on questions of their own. The goal was set before the run: marked facts over outcomes by
five points of exact match, interval above 0.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.atlas_arms import ARMS, OTHERS, AtlasArm, pairs_of, unsolved_of
from benchmarks.batched import SlotModel, SlotPolicy
from benchmarks.gpu_training import Descent, LearntReply, dpo, sft
from data_generation.config import GenerateConfig
from data_generation.expand import make_searcher
from data_generation.growth import root_only
from data_generation.search import grow
from indexes import open_retriever
from preference.chained import AnswerSearches
from steprag.agent.environment import Environment
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.config.load import parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.engines.models import EMBEDDED, resolve_model
from steprag.engines.pretrained import from_pretrained
from steprag.engines.tokens import prompt_tokens, reply_tokens
from steprag.engines.weights import load_tokenizer, merged_folder
from steprag.experiments.options import recipe
from steprag.experiments.reproduce import DEMO_PASSES
from steprag.experiments.tunnel.grow import together
from steprag.experiments.tunnel.statistics import PairedDifference, holm, of_seeds
from steprag.records.inputs import read_questions
from steprag.records.jsonl import PARTIAL, read_json, read_records, read_rows, write_json, write_records
from steprag.records.training_rows import Pair
from steprag.records.yaml_files import read_yaml
from steprag.scores.metrics import exact_match
from steprag.tree import Tree
from steprag.types import Message, Question
from training.config import TrainConfig
from training.model import load_policy

TUNING = 0  # the seed that chooses rates; its trees are trained on nowhere else
RATES = (3e-6, 1e-5, 3e-5)
USUAL = 1e-5  # where the choice was not done in time
DEPTH, SHOWN = 7, 3
SLOTS, LENGTH = 320, 640


@dataclass(frozen=True)
class AtlasSizes:
    """Questions of a seed by hops, requests a tree, batches of pairs and pairs in one, questions of dev and test."""

    train: tuple[tuple[int, int], ...] = ((2, 200), (3, 100))
    calls: int = 32
    steps: int = 64
    batch: int = 16
    dev: int = 300
    test: int = 1000
    slots: int = SLOTS
    graphs: bool = True


QUICK = AtlasSizes(((2, 6), (3, 2)), 8, 4, 4, 4, 100, 64)


class AtlasBench:
    """What a process holds to make trees, to train and to score: the start on its device, the agent's world."""

    def __init__(self, out: Path, sizes: AtlasSizes) -> None:
        from transformers import AutoModelForCausalLM

        self.out, self.sizes = out, sizes
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(1)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every length of prompts
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        folder = merged_folder(files := resolve_model(start_of(out)))
        self.tokenizer = load_tokenizer(files)
        self.start = from_pretrained(AutoModelForCausalLM, folder, dtype=dtype).to(self.device).eval()

    @cached_property
    def environment(self) -> Environment:
        """The agent's world over the BM25 index."""
        return Environment(load_profile("transcript"), open_retriever(self.out / "index"), SHOWN, DEPTH)

    def policy(self, model: Any, **sampling: Any) -> SlotPolicy:
        """The model as a policy of this process."""
        closing = [action.closing for action in TRANSCRIPT.actions]
        slots = SlotModel(model, self.sizes.slots, LENGTH, self.sizes.graphs)
        return SlotPolicy(slots, self.tokenizer, closing, form=TRANSCRIPT.regex, **sampling)

    def trees(self, seed: int) -> None:
        """The search trees of a seed's own questions, by the start, as configs/generation/atlas.yaml samples."""
        policy, environment = self.policy(self.start, temperature=1.0, min_p=0.05, seed=seed), self.environment
        search = {"rollouts": 1000, "extra": 0, "children": 3, "wave": 1, "contrast": None, "hopeless": None}
        given = {"search": search, "tree": {"calls": self.sizes.calls}, "seed": seed, "episode": {"depth": DEPTH}}
        searcher = make_searcher(environment, policy, None, GenerateConfig.model_validate(given))
        started = time.monotonic()
        grown = together(grow(root_only(one, environment), searcher) for one in self.asked(f"train-{seed}"))
        write_records(tree_file(self.out, seed), grown)
        self._let_go()
        seconds = time.monotonic() - started
        say(f"atlas: seed {seed}: {len(grown)} trees, {len(unsolved_of(grown))} unsolved, {policy.requests} requests, "
            f"{policy.tokens} tokens in {seconds:.0f} s")  # fmt: skip

    def asked(self, name: str) -> list[Question]:
        """The questions of a file that `prepare` made, as many as the sizes say."""
        questions = read_questions(self.out / "questions" / f"{name}.jsonl")
        if name in ("dev", "test"):
            return questions[: getattr(self.sizes, name)]
        by_hops = {hops: [q for q in questions if q.metadata["hops"] == hops] for hops, _ in self.sizes.train}
        return [q for hops, count in self.sizes.train for q in by_hops[hops][:count]]

    def scored(self, model: Any, name: str) -> dict[str, Any]:
        """Greedy episodes of the model on the questions `name`: of each whether it is right, and how it ended."""
        policy, environment, asked = self.policy(model), self.environment, self.asked(name)
        states = [environment.start(one.question) for one in asked]
        played = together(episode_of(rollout(environment, policy, state, seed=0)) for state in states)
        right = [exact_match(one.prediction, q.golden_answers) for one, q in zip(played, asked, strict=True)]
        facts = {"right": [int(one) for one in right], "hops": [q.metadata["hops"] for q in asked]}
        return {**facts, "ends": dict(Counter(one.finish for one in played)), "requests": policy.requests}

    def trained(self, arm: AtlasArm, seed: int, rate: float) -> tuple[Any, dict[str, Any]]:
        """The policy that the arm makes of the start, and what it was made from."""
        sizes, trees = self.sizes, list(read_records(tree_file(self.out, seed), Tree))
        found = asyncio.run(AnswerSearches(self.environment.retriever).found(trees)) if "chained" in arm.label else ()
        pairs, unsolved = pairs_of(arm, trees, seed, found), unsolved_of(trees)
        facts = {"pairs": len(pairs), "unsolved": len(unsolved), "rate": rate}
        facts |= {"from unsolved": sum(pair.question_id in unsolved for pair in pairs)}
        facts |= {"actions": dict(Counter(pair.action for pair in pairs))}
        model = copy.deepcopy(self.start)
        if pairs:
            rows = [self._rows(pair) for pair in pairs[: sizes.steps * sizes.batch]]
            facts["loss"] = dpo(model, rows, Descent(sizes.steps, sizes.batch, rate), np.random.default_rng(seed))
        return model.eval(), facts

    def _rows(self, pair: Pair) -> tuple[LearntReply, LearntReply]:
        return tuple(learnt(pair.prompt, side[0], self.tokenizer) for side in (pair.chosen, pair.rejected))  # pyright: ignore[reportReturnType]

    def result(self, file: Path, arm: AtlasArm | None, seed: int, rate: float, name: str) -> None:
        """Trains an arm (none: the start) and writes what it scores."""
        started = time.monotonic()
        model, facts = self.trained(arm, seed, rate) if arm else (self.start, {})
        trained = time.monotonic() - started
        found = {**self.scored(model, name), **facts, "seconds": [round(trained), round(time.monotonic() - started)]}
        write_json(file, found)
        del model
        self._let_go()
        em, count = 100 * np.mean(found["right"]), len(found["right"])
        say(f"atlas: {file.stem}: {em:.1f} of {count} {name}, {facts.get('pairs', 0)} pairs, loss {facts.get('loss')}, "
            f"{found['seconds']} s, {found['ends']}")  # fmt: skip

    def _let_go(self) -> None:
        """Gives memory of the card back to the processes beside this one."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def start_of(out: Path) -> Path:
    """What everything starts from: an adapter, or a whole model of Llama's shape."""
    return out / "start"


def learnt(prompt: Sequence[Message], reply: Message, tokenizer: Any) -> LearntReply:
    """A prompt and its reply as tokens."""
    return LearntReply(prompt_tokens(prompt, tokenizer), reply_tokens(prompt, reply, tokenizer))


def make_start(out: Path, passes: int = DEMO_PASSES) -> None:
    """The start, by the recipe of `steprag reproduce`, where the folder has none: from the worked episodes there."""
    if (folder := start_of(out)).exists():
        return
    files = resolve_model(EMBEDDED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = TrainConfig.model_validate({**read_yaml(recipe("warmstart")), "bf16": device == "cuda"})
    tokenizer, model = load_tokenizer(files), load_policy(files, config).to(device)
    told = [row for _, row in read_rows(out / "worked" / "sft.train.jsonl")]
    rows = [learnt(row["prompt"], row["completion"][0], tokenizer) for row in told]
    steps = math.ceil(passes * len(rows) / config.batch_size)
    how = Descent(steps, config.batch_size, config.learning_rate, int(config.warmup), cosine=True)
    say(f"atlas: the start, from {len(rows)} steps: loss {sft(model, rows, how, np.random.default_rng(config.seed))}")
    part = folder.with_suffix(PARTIAL)
    model.save_pretrained(part)
    os.replace(part, folder)


def tree_file(out: Path, seed: int) -> Path:
    """The trees of a seed."""
    return out / "trees" / f"{seed}.jsonl"


_BENCH: list[AtlasBench] = []  # of a process of the pool, made once


def begin(out: Path, sizes: AtlasSizes) -> None:
    """What a process of the pool does first."""
    _BENCH.append(AtlasBench(out, sizes))


def work(deadline: float, file: Path, method: str, *given: Any) -> None:
    """A job: nothing where its file is there, or the time is over."""
    if not file.exists() and time.time() < deadline:
        file.parent.mkdir(parents=True, exist_ok=True)
        getattr(_BENCH[0], method)(*given)


def run(out: Path, sizes: AtlasSizes, seeds: int, jobs: int, until: float) -> list[BaseException]:
    """Trees of all seeds, the choice of rates, every arm and seed: files that appear whole. Returns what went wrong."""
    deadline, results = time.time() + until, out / "results"
    make_start(out)
    merged_folder(resolve_model(start_of(out)))  # once, before processes side by side
    with ProcessPoolExecutor(jobs, get_context("spawn"), begin, (out, sizes)) as pool:

        def ask(file: Path, method: str, *given: Any) -> Future[None]:
            return pool.submit(work, deadline, file, method, *given)

        def score(name: str, arm: AtlasArm | None, seed: int, rate: float, asked: str) -> Future[None]:
            file = results / asked / f"{name}.json"
            return ask(file, "result", file, arm, seed, rate, asked)

        trees = [ask(tree_file(out, seed), "trees", seed) for seed in range(seeds + 1)]
        started = score("start", None, 0, 0.0, "test")
        trees[TUNING].exception()  # waits: rates are chosen on these, while the others grow
        tuned = [score(f"{arm.name}-{rate:g}", arm, TUNING, rate, "dev") for arm in ARMS for rate in RATES]
        failed = [*failures(trees), *failures(tuned), *failures([started])]
        rates = chosen_rates(out)
        say(f"atlas: rates {rates}")
        wanted = [(arm, seed) for arms in (ARMS, OTHERS) for seed in range(1, seeds + 1) for arm in arms]
        made = [score(f"{arm.name}-{seed}", arm, seed, rates[arm.rated or arm.name], "test") for arm, seed in wanted]
        return failed + failures(made)


def failures(jobs: Sequence[Future[None]]) -> list[BaseException]:
    """Waits for jobs, and says what went wrong in each as it is heard: the others go on."""
    failed = [error for job in jobs if (error := job.exception()) is not None]
    for error in failed:
        say(f"atlas: a job failed: {error!r}")
    return failed


def chosen_rates(out: Path) -> dict[str, float]:
    """The rate of each arm that was best on dev; the lower one of equals."""
    rates = {}
    for arm in ARMS:
        files = {rate: out / "results/dev" / f"{arm.name}-{rate:g}.json" for rate in RATES}
        told = {rate: sum(read_json(file)["right"]) for rate, file in files.items() if file.exists()}
        rates[arm.name] = max(told, key=told.__getitem__, default=USUAL)
    return rates


def report(out: Path) -> str:
    """The page: EM of every arm and seed, and differences, paired by seed and question."""
    start, found = read_json(out / "results/test/start.json"), dict[str, dict[int, Any]]()
    for arm in (*ARMS, *OTHERS):
        files = {seed: out / "results/test" / f"{arm.name}-{seed}.json" for seed in range(1, 100)}
        found[arm.name] = {seed: read_json(file) for seed, file in files.items() if file.exists()}
    found = {name: told for name, told in found.items() if told}
    lines = [*_head("arm", "EM by seed", "mean", "1 hop", "2 hops", "pairs", "of unsolved trees", "rate")]
    lines += [_row(name, list(told.values())) for name, told in {"start": {0: start}, **found}.items()]
    told = dict[str, PairedDifference]()
    for name, mine in found.items():
        others = {"outcomes": found.get("outcomes", {})} if name != "outcomes" else {}
        for other, theirs in {**others, "start": dict.fromkeys(mine, start)}.items():
            if both := sorted(mine.keys() & theirs.keys()):
                one, two = (np.array([arm[seed]["right"] for seed in both], dtype=float) for arm in (mine, theirs))
                told[f"{name} over {other}"] = of_seeds(100 * (one - two))
    ps = holm({name: each.p for name, each in told.items()})
    lines += ["", *_head("comparison", "points (95 %, t over seeds)", "bootstrap", "p (Holm)", "by seed")]
    for name, each in told.items():
        seeds = ", ".join(f"{gap:+.1f}" for gap in each.seeds)
        lines.append(f"| {name} | {' | '.join(each.shown)} | {ps[name]:.2g} | {seeds} |")
    return "\n".join(lines) + "\n"


def _head(*names: str) -> tuple[str, str]:
    return f"| {' | '.join(names)} |", "|---" * len(names) + "|"


def _row(name: str, told: list[dict[str, Any]]) -> str:
    right, hops = 100 * np.array([one["right"] for one in told], dtype=float), np.array(told[0]["hops"])
    seeds = ", ".join(f"{em:.1f}" for em in right.mean(1))
    parts = [f"{right[:, asked].mean():.1f}" for asked in (hops > 0, hops == 1, hops == 2) if asked.any()]
    parts += [f"{np.mean([one.get(key, 0) for one in told]):.0f}" for key in ("pairs", "from unsolved")]
    return f"| {name} | {seeds} | {' | '.join(parts)} | {told[0].get('rate', 0):g} |"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/atlas_proof.py", description="Labels of steps on Atlas.")
    parser.add_argument("what", choices=("prepare", "run", "report"))
    parser.add_argument("--out", type=Path, default=Path("runs/atlas"), metavar="DIR", help="run folder [runs/atlas]")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N [5]")
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help="processes that share the GPU [6]")
    parser.add_argument("--until", type=float, default=1e9, metavar="SECONDS", help="no job is begun after that [none]")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: slower, should they fail on a card")
    given = parse_arguments(parser, argv)
    sizes = replace(QUICK if given.quick else AtlasSizes(), graphs=not given.eager)
    if given.what == "prepare":
        from benchmarks.atlas.proof import prepare

        prepare(given.out, given.seeds, dict(sizes.train), {"dev": sizes.dev, "test": sizes.test})
        return 0
    failed = run(given.out, sizes, given.seeds, given.jobs, given.until) if given.what == "run" else []
    page = report(given.out)
    (given.out / "report.md").write_text(page, encoding="utf-8")
    sys.stdout.write(page)
    if failed:
        raise failed[0]
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
