"""`steprag plan labels`: does the policy ever sample a right step? Read from trees, before any training.

Labels teach a choice between sampled steps: where no right one is sampled there is nothing to choose, and where most
states have one, outcomes find it too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from preference.build import one_prompt, read_trees
from preference.chained import chain
from preference.config import LabelConfig
from preference.rewards import rewards
from steprag.agent.facts import Facts, facts_about, keeping, retrieving, without_luck
from steprag.agent.profiles import check_follows
from steprag.batch.tree_results import trees_file
from steprag.config.load import parse_arguments
from steprag.console.progress import say_next
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, counted
from steprag.runs.run import run_of
from steprag.scores.stats import ClusteredShare
from steprag.tree import children_of

SEARCH, KEEP, ANSWER = range(3)
FEW, MOST = 0.13, 0.45
"""Shares of open states with a right step: below the first worked solutions are needed, from the second on outcomes
suffice. They fit cells of `steprag tunnel` with 64 calls a question; other searches may have other bounds.
"""
FORECASTS = {
    "worked": "worked solutions first: right steps are sampled too seldom for labels or outcomes to teach them",
    "labels": "labels can help: right steps are sampled, but seldom enough that outcomes alone miss most of them",
    "outcomes": "outcomes may suffice: most open states have a right step already, so labels add little",
}
NEXT = {"worked": ("trees", "worked", "--help"), "labels": ("pairs",), "outcomes": ("pairs",)}


class OpenState(NamedTuple):
    """A state whose next step was sampled. `hop`: facts found by then; `right`: whether a right step was among them."""

    hop: int
    right: bool


@dataclass(frozen=True)
class StepSupport:
    """How many open states have a right step. `low`, `high`: the 95 % interval of the share, over questions.

    `hop` is None for all hops together.
    """

    hop: int | None
    states: int
    right: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Of the states."""
        return self.right / self.states


def open_states(facts: Facts) -> list[OpenState]:
    """The open states of a tree; none where its question marks nothing and can be guessed.

    A step is right where it finds or keeps more than its episode had; an answer where it is right, and no luck. Two
    kinds of states are left out: nobody knows anything of their next steps (a plan, passages that no prompt shows), or
    their search found nothing new, so that nothing right can be kept.
    """
    if facts.gold is None and facts.guessable:
        return []
    label = LabelConfig(alpha=1.0)  # marked passages where a question has marks, else chained match
    facts = without_luck(chain(facts, label))
    values, nodes = rewards(facts, label), facts.tree.nodes
    kinds = {facts.grammar.answer.name: ANSWER} | dict.fromkeys(retrieving(facts.grammar), SEARCH)
    kinds |= dict.fromkeys(keeping(facts.grammar), KEEP)
    best, hops, right, known = [[0.0, 0.0]], [0], [False], [False]
    for node, value in zip(nodes[1:], values[1:], strict=True):  # parents come before their children
        kind, held = kinds.get(node.action or ""), best[node.parent or 0].copy()
        known.append(node.failure is not None or kind == ANSWER or (kind is not None and value is not None))
        right.append(value is not None and (value.value == 1.0 if kind == ANSWER else value.value > held[kind or 0]))
        hops.append(hops[node.parent or 0] + (right[-1] and kind == KEEP))
        if right[-1] and value and kind in (SEARCH, KEEP):
            held[kind] = value.value
        best.append(held)
    vain = [kinds.get(node.action or "") == SEARCH and best[node.id][SEARCH] <= best[node.id][KEEP] for node in nodes]
    return [
        OpenState(hops[number], any(right[child.id] for child in children))
        for number, children in enumerate(children_of(facts.tree))
        if not vain[number] and any(known[child.id] for child in children)
    ]


def support(trees: Iterable[list[OpenState]]) -> list[StepSupport]:
    """By hop, then of all hops together, which comes last."""
    shares: dict[float, ClusteredShare] = defaultdict(ClusteredShare)
    for number, states in enumerate(trees):
        for state in states:
            shares[state.hop].add(number, state.right)
            shares[float("inf")].add(number, state.right)
    found = [(hop, shares[hop].interval()) for hop in sorted(shares)]
    return [StepSupport(int(hop) if hop < float("inf") else None, states, right, *bounds)
            for hop, (right, states, bounds) in found]  # fmt: skip


def forecast(share: float) -> str:
    """A key of `FORECASTS`, by the share of all open states that have a right step."""
    return "worked" if share < FEW else "labels" if share < MOST else "outcomes"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag plan labels", description="Can labels help, before any training?")
    parser.add_argument(
        "--trees",
        required=True,
        nargs="+",
        metavar="RUN",
        help="run folders of steprag generate, or files like trees.jsonl",
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    given = parse_arguments(parser, argv)
    states = list(_states([trees_file(each) for each in given.trees]))
    told, silent = support(states), sum(not some for some in states)
    if not told:
        raise ConfigError(f"{', '.join(given.trees)}: {counted(len(states), 'tree')} without a labelled step; mark "
                          "passages (supporting_titles), or ask questions that cannot be guessed")  # fmt: skip
    kind = forecast(told[-1].share)
    report = {"trees": len(states), "unlabelled": silent, "forecast": kind, "support": [*map(asdict, told)]}
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(told, kind, len(states), silent))
    say_next(*NEXT[kind], *(given.trees if kind != "worked" else ()))
    return 0


def _states(files: list[Path]) -> Iterator[list[OpenState]]:
    """Of every tree. Raises ConfigError for trees of several prompts, and DataError."""
    _, grammar = one_prompt(files, [run_of(file) for file in files])
    for tree, _ in read_trees(*files):
        check_follows(tree, grammar)
        yield open_states(facts_about(tree, grammar))


def _table(told: list[StepSupport], kind: str, trees: int, silent: int) -> str:
    rows = [f"{'facts found':>12} {'open states':>12} {'with a right step':>18}   95 %"]
    for one in told:
        hop = "all" if one.hop is None else one.hop
        rows.append(f"{hop:>12} {one.states:>12} {one.share:>18.1%}   {one.low:.1%} to {one.high:.1%}")
    whole = told[-1]
    unsure = [f"{bound:.0%}" for bound in (FEW, MOST) if whole.low < bound < whole.high]
    said = [f"{silent} of {counted(trees, 'tree')} are left out: no label speaks of their steps"] if silent else []
    said += [f"unsure: the interval holds {unsure[0]}, where the forecast changes; grow more trees"] if unsure else []
    return "\n".join([*rows, FORECASTS[kind], *said]) + "\n"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
