"""The curves of a run, from `metrics.jsonl`: numbers by training step, or questions done by time."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from steprag.json_text import NotJson, decoded

POINTS = 2000
"""Points that a curve has at most; of longer runs every n-th."""
NOT_CURVES = frozenset({"step", "time", "event", "id", "epoch", "num_tokens", "seconds"})


def series_of(path: Path) -> dict[str, Any]:
    """`steps` and `curves` by name, of the same length (None where nothing was logged); `done`: for every question that
    was finished the seconds since the first line, and how long it took; `faults`: how many lines could not be read.

    A step that an interrupted run made twice counts once, as logged last.
    """
    steps: dict[float, dict[str, float]] = {}
    done: list[dict[str, Any]] = []
    faults, first = 0, None
    with path.open("rb") as stream:
        for line in stream:
            row = _row(line)
            if row is None:
                faults += bool(line.strip())
                continue
            at = _seconds(row.get("time"))
            first = at if first is None else first
            if _number(row.get("step")) is not None:
                steps.setdefault(row["step"], {}).update(_numbers(row))
            elif row.get("event") in ("done", "failure"):
                done.append({"at": None if at is None or first is None else round(at - first, 3),
                             "seconds": _number(row.get("seconds")), "failed": row["event"] == "failure"})  # fmt: skip
    kept = _thinned(sorted(steps))
    names = list(dict.fromkeys(name for step in kept for name in steps[step]))
    curves = {name: [steps[step].get(name) for step in kept] for name in names}
    return {"steps": kept, "curves": curves, "done": _thinned(done), "faults": faults}


def _thinned(values: list[Any]) -> list[Any]:
    every = math.ceil(len(values) / POINTS)
    return values if every <= 1 else [*values[:-1:every], values[-1]]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = decoded(line, finite=False)
    except NotJson:
        return None
    return row if isinstance(row, dict) else None


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key not in NOT_CURVES and _number(value) is not None}


def _number(value: object) -> float | None:
    """The number, None where it is none that a curve can hold: no float is as large as some whole numbers of JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _seconds(time: object) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except ValueError:
        return None
