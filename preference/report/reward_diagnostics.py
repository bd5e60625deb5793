"""Diagnostics: how far the rewards of a run's trees, and the policy's beliefs, can be trusted, gathered tree by tree.

Everything compares siblings, since that is what a pair does: two signals agree on two siblings where they put them in
the same order. Comparisons on which a signal is level are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, cycle
from typing import Any, NamedTuple

from preference.labels.estimates import Estimate, Rewards
from preference.labels.gold import gold
from preference.labels.judge import judge
from preference.labels.spre import mean_below, summed_below
from preference.pairs import margin_error
from steprag.agent.belief import probability
from steprag.agent.facts import Facts
from steprag.scores.metrics import exact_match
from steprag.scores.stats import ClusteredShare, share_interval
from steprag.tree import Node, Tree, children_of

GRID = 20
"""Cells a side of the picture of reward against judge."""
EDGES = (0.0, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Bounds of the curve's bins: narrow where most beliefs are."""


@dataclass
class Depth:
    """Sums over the rewarded steps of one action at one depth, and shares of their comparisons with siblings."""

    steps: int = 0
    reward: float = 0.0
    answers_below: float = 0.0
    with_error: int = 0
    error: float = 0.0
    clear: ClusteredShare = field(default_factory=ClusteredShare)
    halves: ClusteredShare = field(default_factory=ClusteredShare)
    first: ClusteredShare = field(default_factory=ClusteredShare)


class RewardDiagnostics:
    """Sums of all trees so far; `report` turns them into shares and intervals."""

    def __init__(self) -> None:
        self._depths: dict[tuple[str, int], Depth] = defaultdict(Depth)
        self._agreement: dict[tuple[str, str, int], ClusteredShare] = defaultdict(ClusteredShare)
        self._grid = [[0] * GRID for _ in range(GRID)]
        self._tree = 0
        self._trees = {"mixed": 0, "all right": 0, "all wrong": 0, "level": 0, "no answer": 0}

    def add(self, facts: Facts, worth: list[float | None]) -> None:
        """Takes a tree into account. `worth`: the outcomes of its answers, by node id."""
        tree, rollouts = facts.tree, mean_below(facts.tree, worth, "spre")
        self._tree += 1
        self._trees[contrast([value for value in worth if value is not None], tree)] += 1
        judged, recall = judge(facts), gold(facts)
        named = {"rollouts": rollouts, "judge": judged, "gold": recall}
        signals = {name: signal for name, signal in named.items() if any(signal)}
        (_, answers), halves = _totals(tree, worth), half_means(tree, worth)
        for node in tree.nodes:
            self._step(node, rollouts[node.id], answers[node.id], judged[node.id])
        for one, other in siblings(tree):
            self._comparison(one, other, signals)
            self._halves(one, other, halves)

    def _step(self, node: Node, reward: Estimate | None, answers: float, judged: Estimate | None) -> None:
        if reward is None or node.parent is None:
            return
        depth = self._depths[node.action or "", node.depth]
        depth.steps += 1
        depth.reward += reward.value
        depth.answers_below += answers
        if reward.error is not None:
            depth.with_error += 1
            depth.error += reward.error
        if judged is not None:
            self._grid[_cell(reward.value)][_cell(judged.value)] += 1

    def _comparison(self, one: Node, other: Node, signals: dict[str, Rewards]) -> None:
        action = _action(one, other)
        gaps = {name: _gap(signal[one.id], signal[other.id]) for name, signal in signals.items()}
        for first, second in combinations(gaps, 2):
            same = agree(gaps[first], gaps[second])
            if same is not None:
                self._agreement[f"{first}, {second}", action, one.depth].add(self._tree, same)
        gap = gaps.get("rollouts")
        if gap is None:
            return
        depth = self._depths[action, one.depth]
        rollouts = signals["rollouts"]
        depth.clear.add(self._tree, abs(gap) > (margin_error(rollouts[one.id], rollouts[other.id]) or 0.0))
        if gap:
            depth.first.add(self._tree, gap > 0)

    def _halves(self, one: Node, other: Node, halves: tuple[list[float | None], list[float | None]]) -> None:
        means = [half[node.id] for half in halves for node in (one, other)]
        if None in means:
            return
        a, b, c, d = (mean or 0.0 for mean in means)
        same = agree(a - b, c - d)
        if same is not None:
            self._depths[_action(one, other), one.depth].halves.add(self._tree, same)

    def report(self) -> dict[str, Any]:
        """What the sums say. Shares come as {"share", "low", "high", "count"} with 95 % intervals."""
        total = sum(self._trees.values())
        flat = total - self._trees["mixed"]
        return {
            "trees": {**self._trees, "without_contrast": share(flat, total)},
            "agreement": [
                {"signals": signals, "action": action, "depth": depth, **share(*same.interval())}
                for (signals, action, depth), same in sorted(self._agreement.items())
            ],
            "steps": [
                _depth_row(action, depth, sums) for (action, depth), sums in sorted(self._depths.items())
            ],
            "reward_against_judge": self._grid,
        }  # fmt: skip


def _depth_row(action: str, depth: int, sums: Depth) -> dict[str, Any]:
    row: dict[str, Any] = {"action": action, "depth": depth, "steps": sums.steps}
    if sums.steps:
        row |= {"reward": sums.reward / sums.steps, "answers_below": sums.answers_below / sums.steps}
    if sums.with_error:
        row["standard_error"] = sums.error / sums.with_error
    shares = {"gap_above_its_error": sums.clear, "halves_agree": sums.halves, "first_sampled_is_better": sums.first}
    return row | {name: share(*sums.interval()) for name, sums in shares.items() if sums.cluster >= 0}


def _action(one: Node, other: Node) -> str:
    """The action that two siblings share, or "mixed"."""
    return one.action or "" if one.action == other.action else "mixed"


def share(hits: int, count: int, interval: tuple[float, float] | None = None) -> dict[str, Any]:
    """A share with its interval, by default Wilson's; None for a share of nothing."""
    low, high = interval or share_interval(hits, count) if count else (None, None)
    return {"share": hits / count if count else None, "low": low, "high": high, "count": count}


def contrast(worth: list[float], tree: Tree) -> str:
    """What a tree's answers offer to learn from: "mixed" differ in reward; the others do not."""
    if not worth:
        return "no answer"
    if len(set(worth)) > 1:
        return "mixed"
    scores = [node.prediction_f1 for node in tree.nodes if node.prediction_f1 is not None]
    return "all right" if min(scores) >= 1 else "all wrong" if max(scores) <= 0 else "level"


def half_means(tree: Tree, worth: list[float | None]) -> tuple[list[float | None], list[float | None]]:
    """For every node, the mean of either half of the answers below it: two estimates that share no rollout.

    The answers are dealt out in turn, depth first, so that both halves have their share below every node.
    """
    children, stack = children_of(tree), [tree.nodes[0]]
    halves: list[list[float | None]] = [[None] * len(worth), [None] * len(worth)]
    turn = cycle(halves)
    while stack:
        node = stack.pop()
        stack += reversed(children[node.id])
        if worth[node.id] is not None:
            next(turn)[node.id] = worth[node.id]
    first, second = (
        [total / count if count else None for total, count in zip(*_totals(tree, half), strict=True)] for half in halves
    )
    return first, second


def _totals(tree: Tree, worth: list[float | None]) -> tuple[list[float], list[float]]:
    """For every node, the sum of the answers at or below it, and how many there are."""
    return (
        summed_below(tree, [value or 0.0 for value in worth]),
        summed_below(tree, [value is not None for value in worth]),
    )


def siblings(tree: Tree) -> Iterator[tuple[Node, Node]]:
    """Every two children of one node."""
    for children in children_of(tree):
        yield from combinations(children, 2)


def agree(gap: float | None, other_gap: float | None) -> bool | None:
    """Whether two signals order two siblings alike; None where one says nothing or is level."""
    return gap * other_gap > 0 if gap and other_gap else None


def _gap(one: Estimate | None, other: Estimate | None) -> float | None:
    if one is None or other is None or one.basis != other.basis:
        return None
    return one.value - other.value


def _cell(value: float) -> int:
    return min(GRID - 1, max(0, int(value * GRID)))


class PlayedAnswer(NamedTuple):
    """An answer of the search: its tree's number, the belief in the golden answer before it, whether it is right."""

    tree: int
    believed: float
    right: bool


class Calibration:
    """Whether the policy's belief can be trusted: how often answers are right at the states that they were given from.

    Sums of all trees so far, questions that can be guessed apart. Read before labels by `gain` are paid for: a policy
    that is as often right as it believes labels well; one that believes nothing, or all, does not.
    """

    def __init__(self) -> None:
        self._answers: dict[str, list[PlayedAnswer]] = defaultdict(list)
        self._tree = 0

    def add(self, facts: Facts) -> None:
        """Takes every answer that the search scored, and whose state has a belief, into account."""
        self._tree += 1
        nodes, golden = facts.tree.nodes, facts.tree.question.golden_answers
        kind = "guessable" if facts.guessable else "open"
        for node in nodes:
            if node.prediction_f1 is not None and (belief := nodes[node.parent or 0].belief):
                right = exact_match(node.content, golden) == 1.0
                self._answers[kind].append(PlayedAnswer(self._tree, probability(belief), right))

    def report(self) -> dict[str, Any]:
        """By kind of question: answers, Brier score, that of always saying the mean, and the curve; empty without
        beliefs.
        """
        return {kind: _kind(answers) for kind, answers in sorted(self._answers.items())}


def _kind(answers: list[PlayedAnswer]) -> dict[str, Any]:
    count, mean = len(answers), sum(one.right for one in answers) / len(answers)
    return {
        "answers": count,
        "right": mean,
        "believed": sum(one.believed for one in answers) / count,
        "brier": sum((one.believed - one.right) ** 2 for one in answers) / count,
        "brier_of_the_mean": mean * (1 - mean),
        "curve": [row for low, high in zip(EDGES, EDGES[1:], strict=False) if (row := _bin(answers, low, high))],
    }


def _bin(answers: list[PlayedAnswer], low: float, high: float) -> dict[str, Any] | None:
    """The answers at beliefs from `low` up to `high`, which the last bin includes; None where there are none."""
    inside = [one for one in answers if low <= one.believed < high or one.believed == high == EDGES[-1]]
    if not inside:
        return None
    right = ClusteredShare()
    for one in inside:
        right.add(one.tree, one.right)
    mean = sum(one.believed for one in inside) / len(inside)
    return {"from": low, "to": high, "believed": mean, **share(*right.interval())}
