"""The predictions of a run folder, whoever made them: `steprag infer`, or people who talked to `steprag serve`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from steprag.records.jsonl import existing, read_records
from steprag.records.turns import Turn
from steprag.scores.gold import people_id
from steprag.types import Prediction

PREDICTIONS = "predictions.jsonl"
TURNS = "turns.jsonl"
BROKEN_OFF = ("cancelled", "failed")
"""Ends of a turn that are not the agent's own."""


def predictions_file(run: Path) -> Path:
    """The file that holds them. Raises ConfigError where the folder has none."""
    turns = run / TURNS
    return turns if turns.is_file() else existing(run / PREDICTIONS, "predictions of the run")


def read_predictions(run: Path) -> Iterator[Prediction]:
    """A run's predictions. Of a chat folder: each question once whose answer a person judged, as `judged` says.

    Raises ConfigError where the folder has neither file.
    """
    file = predictions_file(run)
    return judged(read_records(file, Turn)) if file.name == TURNS else read_records(file, Prediction)


def judged(turns: Iterable[Turn]) -> Iterator[Turn]:
    """For each question with an answer that a person called right: the last turn that the agent finished alone, with
    the last such answer. Turns that continue from a person's step, were cancelled, or failed by a fault of the service
    do not measure the agent.
    """
    golden: dict[str, tuple[str, ...]] = {}
    alone: dict[str, Turn] = {}
    for turn in turns:
        question = people_id(turn.question)
        if turn.golden_answers:
            golden[question] = turn.golden_answers
        if not turn.given and turn.finish not in BROKEN_OFF:
            alone[question] = turn
    yield from (replace(alone[one], golden_answers=answers) for one, answers in golden.items() if one in alone)
