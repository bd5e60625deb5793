"""`judge`: the judge's score of a step."""

from __future__ import annotations

from preference.config import LabelConfig
from preference.labels.estimates import Estimate, Rewards
from preference.labels.spre import mean_below
from steprag.agent.facts import Facts


def judge(facts: Facts, _: LabelConfig | None = None) -> Rewards:
    """The judge's score, 0 to 1; where only steps below were judged, their mean, as in `spre`."""
    scores = [None if node.judge is None else node.judge.get("score") for node in facts.tree.nodes]
    return [
        below if score is None else Estimate(score, None, "judge")
        for score, below in zip(scores, mean_below(facts.tree, scores, "judge"), strict=True)
    ]
