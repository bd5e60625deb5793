"""Which rule takes lucky answers out of questions that can be guessed, and what it takes out beside them.

    python benchmarks/luck.py [--trees FILE …]

A right answer is lucky where the episode does not hold the facts that it needs (`preference.kept.supported`).
`label.grounded` leaves out exactly these. The other rules ask the mirror image too ("Which is smaller?" for "Which is
larger?"), whose golden answer is the other one. No tree of a mirror image was searched. So other trees of the same kind
stand for it, those whose golden answer is the other one too: "no" for "yes", the second name for the first. The rules
then leave so many right answers on average:

- tree: the mirror's tree has a right answer at all;
- often: both trees are right more often than guessing explains (one-sided binomial test against a half, p below 0.05);
- state: an answer to the mirror from a state that holds the facts as this one does, or lacks them, is right as well.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from preference.build import read_trees
from preference.kept import supported
from steprag import atlas
from steprag.agent.grammars import TRANSCRIPT
from steprag.metrics import exact_match, guessable, normalise
from steprag.types import Tree


@dataclass(frozen=True)
class Guessed:
    """The scored answers of one tree as (right, the facts are held); `side`: which of the two answers is golden."""

    kind: str
    side: str
    answers: tuple[tuple[bool, bool], ...]


def guessed(tree: Tree) -> Guessed:
    question, known = tree.question, supported(tree, TRANSCRIPT)
    golden = question.golden_answers
    answers = tuple(
        (exact_match(node.content, golden) == 1.0, known[node.parent or 0] is True)
        for node in tree.nodes
        if node.prediction_f1 is not None
    )
    if normalise(golden[0]) in ("yes", "no"):
        return Guessed("yes-no", golden[0], answers)
    before, _, _ = normalise(question.question).partition(" or ")
    first = f" {normalise(golden[0])} " in f" {before} "
    return Guessed("comparison", "first" if first else "second", answers)


def beyond_guessing(one: Guessed) -> bool:
    count, hits = len(one.answers), sum(right for right, _ in one.answers)
    return count > 0 and sum(math.comb(count, k) for k in range(hits, count + 1)) / 2**count < 0.05


def by_tree(one: Guessed, held: bool, mirror: Guessed) -> float:
    return float(any(right for right, _ in mirror.answers))


def by_often(one: Guessed, held: bool, mirror: Guessed) -> float:
    return float(beyond_guessing(one) and beyond_guessing(mirror))


def by_state(one: Guessed, held: bool, mirror: Guessed) -> float | None:
    alike = [right for right, also in mirror.answers if also == held]
    return fmean(alike) if alike else None


Rule = Callable[[Guessed, bool, Guessed], float | None]
RULES: dict[str, Rule] = {
    "every right answer counts": lambda one, held, mirror: 1.0,
    "`label.grounded`": lambda one, held, mirror: float(held),
    "mirror, by tree": by_tree,
    "mirror, more often than by guessing": by_often,
    "mirror, from a state that holds as much": by_state,
}


def left(rule: Rule, trees: Sequence[Guessed], held: bool) -> float:
    """How many right answers whose facts are held, or are not, the rule leaves on average."""
    total = 0.0
    for one in trees:
        mirrors = [other for other in trees if other.kind == one.kind and other.side != one.side]
        told = [share for mirror in mirrors if (share := rule(one, held, mirror)) is not None]
        total += sum(right and also == held for right, also in one.answers) * (fmean(told) if told else 0.0)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trees", nargs="+", type=Path, default=[atlas.DATA / "trees.jsonl.gz"], metavar="FILE")
    given = parser.parse_args()
    trees = [
        guessed(tree)
        for tree, _ in read_trees(*given.trees)
        if guessable(tree.question.question, tree.question.golden_answers)
    ]
    lines = [f"{len(trees)} trees, {sum(len(tree.answers) for tree in trees)} answers", "",
             "| rule | lucky right answers left | right answers with the facts left |", "|---|---|---|"]  # fmt: skip
    lines += [f"| {name} | {left(rule, trees, False):.1f} | {left(rule, trees, True):.1f} |"
              for name, rule in RULES.items()]  # fmt: skip
    lines += ["", "| kind, golden answer | trees | right without the facts | right with them |", "|---|---|---|---|"]
    for kind, side in sorted({(tree.kind, tree.side) for tree in trees}):
        some = [tree for tree in trees if (tree.kind, tree.side) == (kind, side)]
        cells = [[right for tree in some for right, also in tree.answers if also == held] for held in (False, True)]
        lines.append(f"| {kind}, {side} | {len(some)} | {' | '.join(f'{sum(c)} of {len(c)}' for c in cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
