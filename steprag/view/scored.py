"""The scores and figures of the runs of inference on a page. What did not change is not computed again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from inference.predictions import TURNS
from inference.scoring.runs_compared import Scored, compared, read_run
from inference.scoring.scores import Score, word_score
from steprag.errors import DataError
from steprag.types import Prediction
from steprag.view.folders import RunFolder
from steprag.view.listing import Listing

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
