"""What `benchmarks.atlas_proof` begins with: its questions, the index, and the demonstrations."""

import random
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from apps.reproduce.stages import run_here, stage
from benchmarks.atlas.build import check, check_packages, question_row
from benchmarks.atlas.questions import bridge, one_hop
from benchmarks.atlas.splits import assign, home, in_turns
from benchmarks.atlas.world import build_world
from steprag import atlas
from steprag.records.jsonl import write_records

DEMOS = 20
ONE_HOP = 0.4
"""The share of one-hop questions in dev and test; the others have two hops."""


def prepare(out: Path, seeds: int, train: Mapping[int, int], held_out: Mapping[str, int]) -> None:
    """Makes all three in `out`. `train`: how many questions each seed has by hops, of its own; `held_out`: how many dev
    and test have. Dev, test and training ask about different groups of entities.
    """
    check_packages()
    write_questions(out / "questions", seeds, train, held_out)
    run_here(stage(out / "index", "index build", corpus=atlas.path("corpus"), encoder="none"))
    given = {"corpus": atlas.path("corpus"), "index": out / "index", "limit": DEMOS}
    run_here(stage(out / "worked", "worked", episodes=atlas.path("warmstart"), **given))


def write_questions(folder: Path, seeds: int, train: Mapping[int, int], held_out: Mapping[str, int]) -> None:
    """Files of questions whose relations take turns: `train-0` to `train-SEEDS`, `dev` and `test`."""
    world = build_world()
    split_of = assign(world)
    by_hops = {1: list(one_hop(world)), 2: list(bridge(world)), 3: list(bridge(world, 3))}
    pools = {
        (split, hops): iter(in_turns((q for q in questions if home(q, split_of) == split), random.Random(split)))
        for hops, questions in by_hops.items()
        for split in ("train", *held_out)
    }
    wanted = {f"train-{seed}": ("train", dict(train)) for seed in range(seeds + 1)}
    for name, most in held_out.items():
        ones = round(ONE_HOP * most)
        wanted[name] = name, {1: ones, 2: most - ones}
    folder.mkdir(parents=True, exist_ok=True)
    for name, (split, counts) in wanted.items():
        asked = [q for hops, count in counts.items() for q in islice(pools[split, hops], count)]
        random.Random(name).shuffle(asked)
        for question in asked:
            check(world, question)
        rows = [question_row(question, name, order) for order, question in enumerate(asked, 1)]
        write_records(folder / f"{name}.jsonl", rows)
