"""What the viewer is told of predictions: the scores of one, and how runs compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inference.compare import row
from inference.quality_tables import quality_of
from inference.runs_compared import read_run, shared
from inference.scores import score
from steprag.types import Prediction


def told_score(prediction: Prediction) -> dict[str, Any]:
    """The scores of a prediction by name (`Score`)."""
    return asdict(score(prediction))


def told_comparison(folders: Sequence[Path], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of `steprag compare --force`, over the questions that all runs came to, each with its `quality`.

    Raises ConfigError and DataError.
    """
    runs = shared([read_run(folder, name, forced=True) for folder, name in zip(folders, names, strict=True)])
    return [row(run, runs[0], None) | {"quality": quality_of(run, runs[0])} for run in runs]
