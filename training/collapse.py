"""When a run has collapsed: what is watched, the bounds, and the right episodes whose likelihood is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from steprag.records.jsonl import read_records, write_records
from steprag.scores.metrics import exact_match
from training.play.episodes import Group, StepRow

WINDOW, PATIENCE = 3, 5
"""Steps of a running mean; steps in a row that lie beyond a bound before a run has collapsed."""


@dataclass(frozen=True)
class Signal:
    """A logged number whose best running mean a run should hold. `bound`: the loss that is a collapse, as a share of
    that best where `relative`, else in the number's own unit. `rises`: a higher number is the worse one.
    """

    key: str
    name: str
    bound: float
    relative: bool = False
    rises: bool = False

    def loss(self, best: float, value: float) -> float:
        """How far a value lies behind the best, in bounds: 1 is a collapse."""
        scale = self.bound * (abs(best) if self.relative else 1.0)
        return (value - best if self.rises else best - value) / scale if scale else 0.0

    def best(self, values: Sequence[float]) -> float:
        """The best running mean, which looks back over `WINDOW` values, or those there are."""
        means = [fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
        return min(means) if self.rises else max(means)


LOSS = Signal("loss", "the loss", 1.0, rises=True)
SIGNALS: dict[str, tuple[Signal, ...]] = {
    "sft": (LOSS,),
    "dpo": (LOSS,),
    "grpo": (
        Signal("episodes/right_logp", "the log-probability of right episodes, a token,", 0.3),
        Signal("episodes/answered", "the answered share", 0.5, relative=True),
        Signal("reward", "the reward", 0.5, relative=True),
        Signal("episodes/repeated", "the share of repeated steps", 0.5, rises=True),
        Signal("episodes/tokens", "the tokens of an episode", 2.0, relative=True, rises=True),
    ),
}
"""By stage. A run has collapsed where its first known signal and one more (if there are others) are beyond their bounds
for `PATIENCE` steps in a row. Rewards vary with the questions; the likelihood of fixed episodes does not.
"""
FIRST = SIGNALS["grpo"][0]


def series(history: Iterable[Mapping[str, Any]], stage: str) -> dict[Signal, list[float]]:
    """The values of the stage's signals that were logged, in order of the steps."""
    rows = list(history)
    found = {signal: [row[signal.key] for row in rows if signal.key in row] for signal in SIGNALS.get(stage, ())}
    return {signal: values for signal, values in found.items() if values}


def sound(history: Iterable[Mapping[str, Any]], stage: str) -> bool:
    """Whether a run is not even half way, by its last running means, to what is a collapse."""
    known = series(history, stage)
    losses = {one: one.loss(one.best(values), fmean(values[-WINDOW:])) for one, values in known.items()}
    return not _agreed(losses, 0.5)


def fallen(history: Iterable[Mapping[str, Any]], stage: str) -> list[str]:
    """What fell, from what to what, where the run has collapsed; else nothing."""
    known = {one: (values[:-PATIENCE], values[-PATIENCE:]) for one, values in series(history, stage).items()
             if len(values) > PATIENCE}  # fmt: skip
    best = {one: one.best(before) for one, (before, _) in known.items()}
    lost = _agreed({one: min(one.loss(best[one], value) for value in last) for one, (_, last) in known.items()}, 1.0)
    return [f"{one.name} {'rose' if one.rises else 'fell'} from {best[one]:.2f} to {fmean(known[one][1]):.2f}"
            for one in lost]  # fmt: skip


def _agreed(losses: Mapping[Signal, float], bound: float) -> list[Signal]:
    """The signals that lost so much, where the first is one of them, and another one where there are others."""
    lost = [one for one, loss in losses.items() if loss >= bound]
    return lost if lost[:1] == [*losses][:1] and len(lost) >= min(2, len(losses)) else []


def repeated(groups: Iterable[Group]) -> float | None:
    """The share of steps that their episode had taken before; None without a step."""
    again: list[bool] = []
    for episode in (episode for group in groups for episode in group.episodes):
        steps = [(step.action, step.content) for step in episode.state.steps]
        again += [step in steps[:at] for at, step in enumerate(steps)]
    return fmean(again) if again else None


FEWEST, MOST = 8, 16
"""Rows of right episodes that are measured: none is added once there are the fewest."""


@dataclass(frozen=True)
class RememberedRow:
    """A row of a right episode, and the step that played it."""

    step: int
    prompt: list[int]
    completion: list[int]
    extra: dict[str, Any] = field(default_factory=dict)


class RightEpisodes:
    """The first right episodes of a run, at most `MOST` rows, kept in a file for a run that resumes."""

    def __init__(self, file: Path, done: int) -> None:
        self._file = file
        self._kept = [row for row in read_records(file, RememberedRow) if row.step <= done] if file.is_file() else []

    def add(self, step: int, groups: Sequence[Group]) -> list[StepRow]:
        """Takes a step's right episodes, of every question in turn, while few are known; the rows, once enough."""
        if len(self._kept) < FEWEST:
            turns = [turn for some in zip_longest(*map(_right, groups)) for one in some for turn in one or ()]
            self._kept += [RememberedRow(step, turn.prompt, turn.completion) for turn in turns]
            del self._kept[MOST:]
            write_records(self._file, self._kept)
        return [StepRow(row.prompt, row.completion, 0.0) for row in self._kept] if len(self._kept) >= FEWEST else []


def _right(group: Group) -> list[Any]:
    """The sampled turns of the episodes that answered right."""
    both = zip(group.episodes, group.turns, strict=True)
    golden = group.question.golden_answers
    return [turns for episode, turns in both if episode.prediction and exact_match(episode.prediction, golden)]
