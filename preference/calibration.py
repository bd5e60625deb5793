"""Whether the policy's belief can be trusted: how often answers are right at the states that they were given from.

Read before labels by `gain` are paid for: a policy that is as often right as it believes labels well; one that believes
nothing, or all, does not.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from steprag.gain import probability
from steprag.metrics import exact_match, guessable
from steprag.stats import share_interval
from steprag.tree import Tree

EDGES = (0.0, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Bounds of the curve's bins: narrow where most beliefs are."""


class Calibration:
    """Beliefs and outcomes of all trees so far, questions that can be guessed apart."""

    def __init__(self) -> None:
        self._answers: dict[str, list[tuple[float, bool]]] = defaultdict(list)

    def add(self, tree: Tree) -> None:
        """Takes every answer that the search scored, and whose state has a belief, into account."""
        golden = tree.question.golden_answers
        kind = "guessable" if guessable(tree.question.question, golden) else "open"
        for node in tree.nodes:
            if node.prediction_f1 is not None and (belief := tree.nodes[node.parent or 0].belief):
                self._answers[kind].append((probability(belief), exact_match(node.content, golden) == 1.0))

    def report(self) -> dict[str, Any]:
        """By kind of question: answers, Brier score, that of always saying the mean, and the curve; empty without
        beliefs.
        """
        return {kind: _kind(answers) for kind, answers in sorted(self._answers.items())}


def _kind(answers: list[tuple[float, bool]]) -> dict[str, Any]:
    count, mean = len(answers), sum(right for _, right in answers) / len(answers)
    return {
        "answers": count,
        "right": mean,
        "believed": sum(p for p, _ in answers) / count,
        "brier": sum((p - right) ** 2 for p, right in answers) / count,
        "brier_of_the_mean": mean * (1 - mean),
        "curve": [row for low, high in zip(EDGES, EDGES[1:], strict=False) if (row := _bin(answers, low, high))],
    }


def _bin(answers: list[tuple[float, bool]], low: float, high: float) -> dict[str, Any] | None:
    """The answers at beliefs from `low` up to `high`, which the last bin includes; None where there are none."""
    inside = [(p, right) for p, right in answers if low <= p < high or p == high == EDGES[-1]]
    if not inside:
        return None
    hits = sum(right for _, right in inside)
    lowest, highest = share_interval(hits, len(inside))
    mean = sum(p for p, _ in inside) / len(inside)
    return {"from": low, "to": high, "count": len(inside), "believed": mean, "share": hits / len(inside),
            "low": lowest, "high": highest}  # fmt: skip
