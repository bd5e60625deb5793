"""Whether one recipe beats another when each is trained from several seeds.

    python benchmarks/seeds.py --base RUN … --arm NAME RUN … [--arm NAME RUN …]

Every RUN is a run folder of `steprag infer` on the same questions; those of one name differ in the seed of their
training alone. An arm's score on a question is the mean of its runs' exact match, so what one seed does by chance
counts less. Differences are between such means, question by question, with a paired bootstrap's 95 % interval and the p
of a paired permutation test (9,999 random signs; with one run each it comes close to the exact McNemar test). Both say
what other questions could change. What other seeds could change is told by the scores of the single runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from inference.scoring.runs_compared import Scored, check_alike, groups_of, read_run
from steprag.config.load import parse_arguments
from steprag.console.terminal import guarded
from steprag.errors import ConfigError
from steprag.scores.stats import mean_interval, shown


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone."""

    name: str
    runs: tuple[Scored, ...]

    def em(self) -> dict[str, float]:
        """The mean exact match by question id, 0 to 1."""
        return {key: fmean(run.scores[key].em for run in self.runs) for key in self.runs[0].scores}


def compared(mine: Arm, base: Arm) -> str:
    """A row of the table: the difference of two arms, in points."""
    em, other = mine.em(), base.em()
    gains = [em[key] - other[key] for key in em]
    low, high = mean_interval(gains)
    p = sign_flips(gains)
    verdict = {1: "a gain", 0: "no", -1: "a loss"}[shown(low, high, p)]
    scores = f"{100 * fmean(em.values()):.1f}, {100 * fmean(other.values()):.1f}"
    return (
        f"| {mine.name} over {base.name} | {scores} "
        f"| {100 * fmean(gains):+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) | {p:.2g} | {verdict} |"
    )


def sign_flips(gains: list[float]) -> float:
    """Two-sided p of the mean: how often random signs before the differences give one as far from zero, seeded."""
    from scipy.stats import permutation_test

    def mean(values: Any, axis: int) -> Any:
        return values.mean(axis=axis)

    return float(permutation_test((gains,), mean, permutation_type="samples", vectorized=True, rng=0).pvalue)


def scores_of(arms: Sequence[Arm]) -> list[str]:
    """A row an arm: the mean EM, and that of every run, in all and by kind of question."""
    groups = groups_of([run for arm in arms for run in arm.runs])
    head = [
        "run",
        f"EM ({len(arms[0].runs[0].scores)})",
        *(f"{name} ({len(p[0].scores)})" for name, p in groups.items()),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    at = 0
    for arm in arms:
        parts = [list(arm.runs), *(part[at : at + len(arm.runs)] for part in groups.values())]
        lines.append("| " + " | ".join([arm.name, *map(_cell, parts)]) + " |")
        at += len(arm.runs)
    return lines


def _cell(runs: Sequence[Scored]) -> str:
    each = [100 * fmean(one.em for one in run.scores.values()) for run in runs]
    return f"{fmean(each):.1f}" + (f" ({', '.join(f'{em:.1f}' for em in each)})" if len(each) > 1 else "")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/seeds.py", description="Arms of several seeds each, compared.")
    parser.add_argument("--base", nargs="+", required=True, metavar="RUN", help="what all arms started from")
    parser.add_argument("--arm", nargs="+", action="append", required=True, metavar="NAME RUN", help="one arm's runs")
    given = parse_arguments(parser, argv)
    arms = [read_arm("the start", given.base), *(read_arm(name, runs) for name, *runs in given.arm)]
    check_alike([run for arm in arms for run in arm.runs])
    pairs = [(mine, base) for base, mine in combinations(arms, 2)]
    table = ["| comparison | EM | points | p | shown |", "|---|---|---|---|---|", *(compared(*pair) for pair in pairs)]
    sys.stdout.write("\n".join([*table, "", *scores_of(arms)]) + "\n")
    return 0


def read_arm(name: str, folders: Sequence[str]) -> Arm:
    """Raises ConfigError where there is no run, or a question of one failed: a mean over seeds needs all of them."""
    if not folders:
        raise ConfigError(f"--arm {name}: name its run folders")
    runs = tuple(read_run(Path(folder), Path(folder).name) for folder in folders)
    if failed := next((run for run in runs if run.failed), None):
        raise ConfigError(f"{failed.name}: {len(failed.failed)} questions failed; run it again")
    return Arm(name, runs)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
