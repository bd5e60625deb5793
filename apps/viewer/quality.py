"""The figures of runs on a page: how completions follow the grammar, how long answers and episodes are, and scores.

All but the scores comes from what a file's listing notes of each record. What did not change is not computed again.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from apps.viewer.folders import RunFolder
from apps.viewer.listing import Listing
from inference.predictions import TURNS
from inference.scoring.figures import KINDS
from inference.scoring.runs_compared import Scored, compared, read_run
from inference.scoring.scores import Score, word_score
from steprag.agent.compliance import compliance, over_time, together
from steprag.batch.results import Place
from steprag.errors import DataError
from steprag.scores.stats import mean_interval
from steprag.types import Prediction

BARS = 20
"""Bars of a histogram at most."""
CLOCKS = {"trees": "tree", "predictions": "prediction", "episodes": "training step"}
"""Files whose records note their completions, and what their time is counted in: the order of the file, or steps."""
LENGTHS = {
    **{name: (KINDS[name].label, KINDS[name].definition) for name in ("words", "steps", "searches", "sampled")},
    "depth": ("depth", "steps from the question to the deepest node of a tree"),
    "nodes": ("nodes", "nodes of a tree"),
}
"""The name and the meaning of each length, by the field of a record that holds it."""


def quality_of(kind: str, places: Sequence[Place]) -> dict[str, Any]:
    """The figures of a file of that kind (a key of `CLOCKS`); `n` records note their completions."""
    noted = [(number, place) for number, place in enumerate(places, 1) if "written" in place.counts]
    time = [(place.counts.get("step", number) if kind == "episodes" else number, place) for number, place in noted]
    parts = [(at, place.counts["written"]) for at, place in time]
    return {
        "kind": kind,
        "n": len(noted),
        "clock": CLOCKS[kind],
        "written": compliance(together(one for _, one in parts)),
        "over_time": over_time(parts),
        "lengths": list(_lengths([place for _, place in noted])),
    }


def _lengths(places: Sequence[Place]) -> Iterator[dict[str, Any]]:
    for name, (label, definition) in LENGTHS.items():
        values = [place.counts[name] for place in places if isinstance(place.counts.get(name), int | float)]
        if values:
            low, high = mean_interval(list(map(float, values)))
            yield {"name": name, "label": label, "definition": definition, "n": len(values), "low": low, "high": high,
                   "value": statistics.fmean(values), "bars": _bars(values)}  # fmt: skip


def _bars(values: Sequence[float]) -> list[dict[str, float]]:
    """Counts of values between `from` and `to`, both included: of whole numbers in runs of equal width."""
    least, most = int(min(values)), int(max(values))
    width = max(1, -(-(most - least + 1) // BARS))
    counts = [0] * ((most - least) // width + 1)
    for value in values:
        counts[(int(value) - least) // width] += 1
    return [
        {"from": least + width * place, "to": least + width * (place + 1) - 1, "count": count}
        for place, count in enumerate(counts)
    ]


KEPT = 64
"""Runs, and comparisons of them, that are kept in memory."""
SLICE = 0.25
"""Seconds for which a reader holds the file before others may read on."""


class ScoredRuns:
    """Scores each prediction once, each state of a run once, and each comparison of such states once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scores: dict[Path, tuple[int, dict[int, Score]]] = {}
        self._runs: LRUCache[tuple[str, str], Scored] = LRUCache(KEPT)
        self._rows: LRUCache[tuple[tuple[str, str], ...], list[dict[str, Any]]] = LRUCache(KEPT)

    def compared(self, runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
        """The rows of `steprag compare --force` of these runs. One request computes at a time: a second one for the
        same waits, and finds it computed. Raises ConfigError and DataError.
        """
        with self._lock:
            states = tuple((run.key, run.stamp()) for run in runs)
            if states not in self._rows:
                self._rows[states] = compared([self._run(run, state) for run, state in zip(runs, states, strict=True)])
            return self._rows[states]

    def _run(self, run: RunFolder, state: tuple[str, str]) -> Scored:
        if state not in self._runs:
            listings = run.listings("predictions")
            by_people = run.file(TURNS) is not None or not listings  # of a chat only some turns count
            scores = None if by_people else self._each(listings[0])
            self._runs[state] = read_run(run.root, run.key, forced=True, scores=scores)
        return self._runs[state]

    def _each(self, listing: Listing[Prediction]) -> list[Score]:
        """The score of every prediction of a file. Raises DataError where a line of it cannot be read."""
        while True:
            with listing.lock:
                listing.refresh(SLICE)
                generation, places = listing.generation, list(listing.places)
                if listing.complete:
                    break
        if listing.faults:
            raise DataError(listing.path, listing.faults[0].message, line=listing.faults[0].line)
        known, scores = self._scores.get(listing.path, (-1, {}))
        if known != generation:
            scores = {}
        self._scores[listing.path] = generation, scores
        for place in places:
            if place.start not in scores:
                scores[place.start] = word_score(listing.read(place))
        return [scores[place.start] for place in places]
