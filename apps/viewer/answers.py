"""The answers of the viewer as JSON-ready values, for the routes (`apps.viewer.api`) and the one-file export."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cachetools import LRUCache
from filelock import FileLock

from apps.viewer.folders import FILES, RunFolder, open_folders
from apps.viewer.glance import run_told
from apps.viewer.listing import Listing
from apps.viewer.quality import CLOCKS, ScoredRuns, quality_of
from apps.viewer.search import Beside, passages_with, searched
from apps.viewer.trees import node_of, node_told, passage_texts, roles, skeleton, tree_reader
from inference.scoring.figures import MAIN
from inference.scoring.scores import score
from preference.view_rewards import known_options, rule_names, view_rewards
from steprag.batch.results import Place
from steprag.batch.worklist import FAILED, failures_in
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.jsonl import line_hash, read_rows, to_dict, write_records
from steprag.records.training_rows import MARKS, Pair, WrongPair, preference_key, read_marks
from steprag.runs.run import now
from steprag.tree import Tree

SLICE, FIRST = 0.25, 0.03
"""Seconds that a request reads on in a file that is not wholly listed; that the first request for its rows does."""
SEARCH = 10.0
"""Seconds that the search for a pair's tree reads on in each file."""
SEARCHES = 16
"""Searches under way whose passages are kept."""
FAILURES = 200
"""Failed questions of a run that are listed."""
ROWS = 2000
"""Rows that a request brings at most."""


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a record stands: run, kind, number of the file among the run's of that kind, line. `id` is the listing's:
    it finds the record again where the file was put into another order, unless several records have it.
    """

    run: str
    kind: str
    line: int
    id: str = ""
    file: int = 0


class Answers:
    """Answers for some run folders. Listings, scores and the last few trees of a run stay in memory; only what changed
    since the last request is computed again.
    """

    def __init__(self, folders: dict[str, RunFolder], given: Sequence[str] = ()) -> None:
        """`given`: paths in which runs may begin later; each look at all runs takes them in."""
        self.folders, self._given = folders, given
        self._trees = tree_reader()
        self._scored = ScoredRuns()
        self._searches, self._lock = LRUCache[tuple[str, str], Beside](SEARCHES), threading.Lock()
        self._quality: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}

    def run(self, key: str) -> RunFolder:
        """The run of that name. Raises ConfigError: requests reach the named folders alone."""
        if key not in self.folders:
            raise ConfigError(f"no run is called {quoted(key)} here")
        return self.folders[key]

    def runs(self) -> dict[str, Any]:
        """Every run with what it says of itself; `stamp` changes whenever one of its files does."""
        if self._given:
            there = (path for path in self._given if Path(path).expanduser().exists())
            self.folders = open_folders(there, self.folders)
        return {"runs": [run_told(run) for run in self.folders.values()], "rules": rule_names()}

    def rows(self, run: str, kind: str, file: int, start: int) -> dict[str, Any]:
        """The rows of a file from the `start`-th on. `next` is where the following ones begin."""
        listing = self._listing(run, kind, file)
        with listing.lock:
            listing.refresh(SLICE if start else FIRST, start + ROWS)
            places = listing.places[start : start + ROWS]
            return {
                "generation": listing.generation,
                "name": listing.path.name,
                "rows": [{"line": place.line, "id": place.id, **place.counts} for place in places],
                "next": start + len(places),
                "complete": listing.complete and start + len(places) >= len(listing.places),
                "read": listing.end,
                "size": listing.size,
                "torn": listing.torn,
                "faults": [vars(fault) for fault in listing.faults],
                "fault_count": listing.fault_count,
            }

    def search(self, run: str, kind: str, file: int, asked: str, start: int) -> dict[str, Any]:
        """The lines of a file's records that hold all the words asked for (`apps.viewer.search`)."""
        return searched(self._listing(run, kind, file), asked, self._passages(run, asked, start), start, SLICE)

    def _passages(self, run: str, asked: str, start: int) -> Beside:
        """The passages that a search follows, looked up where it begins."""
        with self._lock:
            found = self._searches.get((run, asked)) if start else None
        if found is None:
            found = passages_with(self.run(run), asked)
            with self._lock:
                self._searches[run, asked] = found
        return found

    def tree(self, at: Address) -> dict[str, Any]:
        """A tree's skeleton, where it stands, and what the actions of its grammar do."""
        _, place, tree, line = self._tree(at)
        try:
            told = roles(self.run(at.run).grammar(tree))
        except ConfigError:  # a prompt profile that is not found from here: the tree is shown, its steps all alike
            told = {}
        return {"line": place.line, "roles": told, **skeleton(tree, line)}

    def node(self, at: Address, node: int) -> dict[str, Any]:
        """All of a node."""
        listing, place, tree, _ = self._tree(at)
        return node_told(tree, node_of(tree, node, listing, place), self.run(at.run))

    def rewards(self, at: Address, reward: dict[str, Any], like: str | None) -> dict[str, Any]:
        """The rewards of a tree's nodes, and what became of every two siblings. `reward` are keys of the
        section `label` of pairs; `like` names a pairs run whose own configuration is taken, under those keys. Where
        neither names a rule it is the default of pairs.
        """
        _, _, tree, line = self._tree(at)
        options = known_options(self.run(like).manifest()[0].get("config") or {}) if like else {}
        options["label"] = {**options.get("label", {}), **reward}
        if "name" in reward:  # another rule's own key
            options["label"].pop("chained", None)
        return view_rewards(tree, line, self.run(at.run).grammar(tree), options)

    def every_reward(self, at: Address) -> dict[str, Any]:
        """`rewards` of a tree under every rule, by its name; `fault` says why a rule has nothing to say of the tree."""
        told = {}
        for rule in rule_names():
            try:
                told[rule] = self.rewards(at, {"name": rule}, None)
            except ConfigError as error:
                told[rule] = {"rule": rule, "fault": str(error)}
        return told

    def where(self, tree: str, question: str) -> dict[str, Any]:
        """The run and line of the tree with that hash. Raises ConfigError where no run holds it."""
        for key, run in self.folders.items():
            for listing in run.listings("trees"):
                listing.refresh(SEARCH)
                for place in listing.places:
                    if place.id == question and line_hash(listing.line_at(place)) == tree:
                        return {"run": key, "line": place.line, "id": place.id}
        raise ConfigError("no run that is open here holds this pair's tree: name its folder too")

    def pairs_of(self, tree: str) -> dict[str, Any]:
        """The pairs of any open run that came out of the tree with that hash: where they stand, of which nodes."""
        found = []
        for key, run in self.folders.items():
            for file, listing in enumerate(run.listings("pairs")):
                listing.refresh(SEARCH)
                found += [
                    {"run": key, "file": file, "line": place.line, "nodes": place.counts["nodes"]}
                    for place in listing.places
                    if place.counts["tree"] == tree
                ]
        return {"pairs": found}

    def record(self, at: Address) -> dict[str, Any]:
        """A pair, a prediction or an episode of training, whole."""
        listing, place = self._place(at)
        record = listing.read(place)
        told = {"line": place.line, **to_dict(record)}
        if at.kind == "pairs":
            told["key"] = preference_key(record)
        if at.kind == "predictions":
            run = self.run(at.run)
            ids = dict.fromkeys(found.id for row in record.passages for found in row)
            told["texts"], told["texts_missing"] = passage_texts(run, list(ids))
            told.setdefault("seconds", run.series().seconds_of(record.id) if "series" in run.kinds() else None)
            if record.golden_answers:
                told["score"] = dataclasses.asdict(score(record))
        return told

    def kinds(self, run: str) -> dict[str, str]:
        """The kind (`metadata.type`) of every question of a pairs folder that has one, by question id."""
        path = self.run(run).file("questions.jsonl")
        rows = read_rows(path) if path else ()
        metadata = {str(row.get("id")): row.get("metadata") for _, row in rows if isinstance(row, dict)}
        kinds = {key: one.get("type") for key, one in metadata.items() if isinstance(one, dict)}
        return {key: kind for key, kind in kinds.items() if isinstance(kind, str)}

    def failures(self, run: str) -> dict[str, Any]:
        """The last failures of questions, the first of them: `id`, `reason` and `detail`."""
        rows = list(failures_in(self.run(run).root).values()) if self.run(run).file(FAILED) else []
        return {"failures": rows[:FAILURES], "count": len(rows)}

    def series(self, run: str) -> dict[str, Any]:
        """The curves of a run. Raises ConfigError where it has none."""
        return self.run(run).series().told()

    def quality(self, run: str) -> dict[str, Any]:
        """How the completions of each file of the run follow the grammar, and lengths, as far as it is listed."""
        told = []
        for kind in CLOCKS:
            for listing in self.run(run).listings(kind):
                with listing.lock:
                    listing.refresh(SLICE)
                    places, complete = list(listing.places), listing.complete
                    state = listing.generation, len(places)
                known = self._quality.get(listing.path)
                if known is None or known[0] != state:
                    known = self._quality[listing.path] = state, quality_of(kind, places)
                told.append({"name": listing.path.name, "complete": complete, **known[1]})
        return {"files": told}

    def comparison(self, runs: Iterable[str]) -> dict[str, Any]:
        """The rows of `steprag compare` over the questions that all of these runs came to; `main`: the figures of its
        short table.
        """
        return {"rows": self._scored.compared([self.run(key) for key in runs]), "main": MAIN}

    def marks(self, run: str) -> dict[str, Any]:
        """The names of the preferences that were marked as wrong in a pairs folder."""
        file = self.run(run).file(MARKS)
        return {"file": str(self._marks_file(run)), "wrong": sorted(read_marks(file)) if file else []}

    def mark(self, at: Address, wrong: bool) -> dict[str, Any]:
        """Marks a pair as wrong, or takes the mark back; it is on the disk when this returns."""
        listing, place = self._place(at)
        pair: Pair = listing.read(place)
        file = self._marks_file(at.run)
        key = preference_key(pair)
        with FileLock(file.with_name(f".{MARKS}.lock")):  # two requests at once would lose one of two marks
            marks = read_marks(file) if file.exists() else {}
            marks.pop(key, None)
            if wrong:
                chosen, rejected = (part[-1]["content"] for part in (pair.chosen, pair.rejected))
                marks[key] = WrongPair(key, pair.question_id, chosen, rejected, now())
            write_records(file, marks.values())
        return self.marks(at.run)

    def _marks_file(self, run: str) -> Path:
        return self.run(run).root / MARKS

    def _listing(self, run: str, kind: str, file: int) -> Listing[Any]:
        if kind not in FILES:
            raise ConfigError(f"runs have no {quoted(kind)}; known: {', '.join(FILES)}")
        listings = self.run(run).listings(kind)
        if not 0 <= file < len(listings):
            raise ConfigError(f"{run} has no {kind}")
        return listings[file]

    def _place(self, at: Address) -> tuple[Listing[Any], Place]:
        listing = self._listing(at.run, at.kind, at.file)
        with listing.lock:
            listing.refresh(SLICE)
            found = [place for place in listing.places if not at.id or place.id == at.id]
        place = next((place for place in found if place.line == at.line), None)
        if place is None and at.id and len(found) == 1:  # the file was put into another order
            place = found[0]
        if place is None:
            raise DataError(listing.path, "no record stands there", line=at.line)
        return listing, place

    def _tree(self, at: Address) -> tuple[Listing[Tree], Place, Tree, str]:
        listing, place = self._place(at)
        return listing, place, *self._trees(listing, place)
