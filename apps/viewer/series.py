"""The curves of a run, from `metrics.jsonl`: numbers by training step, or questions done by time."""

from __future__ import annotations

import math
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

from apps.viewer.listing import Stamp, replaced, stamp_of
from steprag.records.json_text import NotJson, decoded

POINTS = 2000
"""Points that a curve has at most; of longer runs every n-th."""
NOT_CURVES = frozenset({"step", "time", "event", "id", "epoch", "num_tokens", "seconds"})


class Series:
    """The curves of a file, which may grow: a look reads only what was added since the last one."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp: Stamp | None = None
        self._forget()

    def _forget(self) -> None:
        self._end, self._faults = 0, 0
        self._first: float | None = None
        self._steps: dict[float, dict[str, float]] = {}
        self._done: list[dict[str, Any]] = []
        self._seconds: dict[str, float] = {}
        self._told: dict[str, Any] = {}

    def told(self) -> dict[str, Any]:
        """`steps` and `curves` by name, of the same length (None where nothing was logged); `done`: for every question
        that was finished the seconds since the first line, and how long it took; `faults`: how many lines could not be
        read.

        A step that an interrupted run made twice counts once, as logged last.
        """
        with self._lock:
            now = stamp_of(self._path)
            if replaced(self._stamp, now):
                self._forget()
            if now != self._stamp or not self._told:
                self._stamp = now
                torn = self._read_on()
                kept = _thinned(sorted(self._steps))
                names = list(dict.fromkeys(name for step in kept for name in self._steps[step]))
                curves = {name: [self._steps[step].get(name) for step in kept] for name in names}
                faults = self._faults + torn
                self._told = {"steps": kept, "curves": curves, "done": _thinned(self._done), "faults": faults}
            return self._told

    def seconds_of(self, question: str) -> float | None:
        """How long a question took, by its last "done" event; None where there is none."""
        self.told()
        return self._seconds.get(question)

    def _read_on(self) -> bool:
        """Reads what was added; whether the last line is not whole. Such a line is read again by the next look."""
        with self._path.open("rb") as stream:
            stream.seek(self._end)
            for line in stream:
                row = _row(line)
                if row is None and not line.endswith(b"\n"):
                    return bool(line.strip())
                self._end += len(line)
                if row is not None:
                    self._take(row)
                else:
                    self._faults += bool(line.strip())
        return False

    def _take(self, row: dict[str, Any]) -> None:
        at = _seconds(row.get("time"))
        self._first = at if self._first is None else self._first
        if number(row.get("step")) is not None:
            told = {key: value for key, value in row.items() if key not in NOT_CURVES and number(value) is not None}
            self._steps.setdefault(row["step"], {}).update(told)
        elif row.get("event") in ("done", "failure"):
            since = None if at is None or self._first is None else round(at - self._first, 3)
            failed, took = row["event"] == "failure", number(row.get("seconds"))
            self._done.append({"at": since, "seconds": took, "failed": failed})
            if took is not None and isinstance(row.get("id"), str):
                self._seconds[row["id"]] = took


def _thinned(values: list[Any]) -> list[Any]:
    every = math.ceil(len(values) / POINTS)
    return values if every <= 1 else [*values[:-1:every], values[-1]]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = decoded(line, finite=False)
    except NotJson:
        return None
    return row if isinstance(row, dict) else None


def number(value: object) -> float | None:
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
