"""The predictions of a run folder, whoever made them: `steprag infer`, or people who talked to `steprag serve`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steprag.files import existing, read_records
from steprag.types import Prediction

PREDICTIONS = "predictions.jsonl"
TURNS = "turns.jsonl"


def predictions_file(run: Path) -> Path:
    """The file that holds them. Raises ConfigError where the folder has none."""
    turns = run / TURNS
    return turns if turns.is_file() else existing(run / PREDICTIONS, "predictions of the run")


def read_predictions(run: Path) -> Iterator[Prediction]:
    """A run's predictions; of a chat folder the turns that have a golden answer, because somebody judged them.

    Raises ConfigError where the folder has neither file.
    """
    file = predictions_file(run)
    return (one for one in read_records(file, Prediction) if one.golden_answers or file.name != TURNS)
