"""What the episodes of a question are worth to GRPO: `steprag.agent.rewards` weighed, and compared within the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from steprag.agent.rewards import WITHOUT_A_STEP, Played, reward_at, value_of

SAME = 1e-6
"""Rewards that differ by less are alike."""


def check_names(weights: Mapping[str, float]) -> None:
    """Raises ConfigError for a reward that does not exist, with the nearest that does, or cannot be imported."""
    for name in weights:
        reward_at(name, "grpo.rewards")


@dataclass(frozen=True)
class Scores:
    """What the episodes of a group were worth: each term alone, by name, and the weighted sum of those that count."""

    terms: dict[str, list[float | None]]
    totals: list[float]


def score(group: Sequence[Played], weights: Mapping[str, float]) -> Scores:
    """Scores the episodes of one question.

    An episode without a single step (its first completion was empty, or no step) scores 0 in every term that says
    something of it, except those of `WITHOUT_A_STEP`. A term that says nothing of one episode is left out of the whole
    group's sums, so that all are measured alike.
    """
    terms = {name: [_term(name, played) for played in group] for name in weights}
    totals = [0.0] * len(group)
    for name, values in terms.items():
        known = [value for value in values if value is not None]
        if len(known) == len(group):
            totals = [total + weights[name] * value for total, value in zip(totals, known, strict=True)]
    return Scores(terms, totals)


def _term(name: str, played: Played) -> float | None:
    value = value_of(name, played, "grpo.rewards")
    return value if value is None or name in WITHOUT_A_STEP or played.episode.state.steps else 0.0


def advantages(totals: Sequence[float], scale: str) -> list[float] | None:
    """Each total against the group's mean; with scale "group" in its standard deviations (arXiv 2402.03300).

    None for a group whose totals are all alike: nothing is learnt from it, and divided by next to nothing it would be
    noise.
    """
    if max(totals) - min(totals) < SAME:
        return None
    spread = stdev(totals) if scale == "group" else 1.0
    return [(total - mean(totals)) / spread for total in totals]
