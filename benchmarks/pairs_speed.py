"""How long `steprag pairs` takes over many trees, and whether its memory stays flat.

    OMP_NUM_THREADS=1 taskset -c 0 python -m benchmarks.pairs_speed [--trees 10000] [--nodes 60]

The trees come from the real search with a scripted policy over passages of Wikipedia's length: `--distinct` of them,
cut to `--nodes` nodes each and written again and again as other questions. The command runs in a process of its own,
once over a tenth of the trees and once over all: seconds, CPU seconds and peak memory of both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.scripted_search import InstantPolicy, Shelf
from data_generation.config import GenerateConfig
from data_generation.expand import make_searcher
from data_generation.growth import finished, root_only
from data_generation.search import run_wave
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.config.load import load_config
from steprag.records.jsonl import dump_line
from steprag.tree import Tree
from steprag.types import Passage, Question

WORDS = [f"word{i}" for i in range(3000)]
GOLDEN = "word7 word11 word13"


def step(allowed: tuple[str, ...], rng: random.Random) -> str:
    """Any allowed step, of a trained model's length; one answer in three is right."""
    action, thought = rng.choice(allowed), f"{_text(rng, 18).capitalize()}. "
    if action == "query":
        return f"{thought}So the next query is <query> {_text(rng, 6)} </query>"
    if action == "evidence":
        return f"Based on the query, the relevant evidence is <evidence> {_text(rng, 20)} </evidence>"
    wrong = f"{_text(rng, 2)} word{rng.choice([7, 1])}"
    return f"{thought}So the answer is <answer> {GOLDEN if rng.random() < 1 / 3 else wrong} </answer>"


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


class Library(Shelf):
    """A retriever of passages of 100 words."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        rng = random.Random(query)
        return tuple(Passage(str(rng.randrange(10**6)), _text(rng, 3), _text(rng, 100), 1.0) for _ in range(top_k))


async def grown(number: int, nodes: int) -> Tree:
    """A tree of `nodes` nodes; the search goes on until it has them, and the last wave is cut."""
    keys = {"search.rollouts": 10**6, "search.contrast": None, "search.hopeless": None}
    config = load_config(GenerateConfig, None, {**keys, "seed": number})
    environment = Environment(load_profile("transcript"), Library(), 3, config.episode.depth)
    searcher = make_searcher(environment, InstantPolicy(say=step), None, config)
    asked = Question(f"q{number}", f"What is {_text(random.Random(number), 12)}?", (GOLDEN,), {"supporting_ids": ["7"]})
    growth = root_only(asked, searcher.environment)
    while len(growth.nodes) < nodes and not growth.root.closed:
        await run_wave(growth, searcher)
    tree = finished(growth, "rollouts")
    return replace(tree, nodes=tree.nodes[:nodes])


def lines(distinct: int, nodes: int, count: int) -> Iterator[str]:
    """Lines of trees.jsonl; trees that closed before they had `nodes` nodes are left out."""
    made: list[Tree] = []
    number = 0
    while len(made) < distinct:
        tree = asyncio.run(grown(number, nodes))
        number += 1
        if len(tree.nodes) == nodes:
            made.append(tree)
    dumped = [(tree.question.question, dump_line(tree)) for tree in made]
    for i in range(count):
        question, line = dumped[i % distinct]
        yield line.replace(question, f"{question} ({i})").replace('"id":"q', f'"id":"q{i}-', 1)


def measured(trees: Path, out: Path, options: list[str]) -> dict[str, float]:
    """Seconds, CPU seconds and peak MiB of `steprag pairs` over a file."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "apps.commands", "pairs", "--trees", str(trees), "--out", str(out), *options]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"steprag pairs ended with status {status}")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "mib": usage.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=10_000, help="trees [10000]")
    parser.add_argument("--nodes", type=int, default=60, help="nodes of a tree [60]")
    parser.add_argument("--distinct", type=int, default=200, help="different trees among them [200]")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (given.trees // 10, given.trees):
            file = folder / f"{count}.jsonl"
            with file.open("w") as stream:
                stream.writelines(line + "\n" for line in lines(given.distinct, given.nodes, count))
            found, size = measured(file, folder / f"out{count}", options), file.stat().st_size / 2**20
            sys.stdout.write(
                f"{count:>6} trees of {given.nodes} nodes, {size:,.0f} MiB: {found['seconds']:.1f} s, "
                f"{found['cpu']:.1f} s of CPU, {found['mib']:.0f} MiB at most\n"
            )


if __name__ == "__main__":
    main()
