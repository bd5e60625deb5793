"""What the trees of a run hold: counted without reading them again, and which steps earlier runs hold already."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steprag.batch.merge import Merging
from steprag.batch.results import Place, places_of, read_at
from steprag.batch.tree_results import TREES
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError, counted
from steprag.records.jsonl import existing, file_hash
from steprag.runs.run import Run
from steprag.scores.metrics import normalise
from steprag.tree import Tree
from steprag.types import Question, Usage

COUNTED = ("nodes", "known", "refused_steps", "solved", "mixed")

ENDS = {
    "closed": "with nothing left to explore", "limit": "at their limit of calls or tokens",
    "failed": "by a failed call", "enough": "with enough right and wrong answers",
    "hopeless": "without a right answer in sight", "rollouts": "after all their rollouts",
    "journal": "at the end of the journal",
}  # fmt: skip
"""What a person reads of how trees ended (`data_generation.stopping.verdict`)."""


def summarise(run: Run, trees: Iterable[dict[str, Any]]) -> None:
    """Writes the counts of all trees into the manifest and, where there are some, says what the trees hold."""
    counts, ended, usage = dict.fromkeys(("trees", *COUNTED), 0), Counter[str](), Usage()
    for tree in trees:
        counts["trees"] += 1
        for name in COUNTED:
            counts[name] += tree[name]
        ended[tree["ended"]] += 1
        usage += Usage(**tree["usage"])
    run.set(counts=counts, ended_by=dict(sorted(ended.items())), usage=usage.shown)
    if not counts["trees"]:
        return
    known = f" ({counts['known']} known from earlier runs)" if counts["known"] else ""
    told, nodes = counted(counts["trees"], "tree"), counted(counts["nodes"], "node")
    both = f"{counts['solved']} solved, {counts['mixed']} with answers of both kinds"
    say(f"generate: {told} ({both}), {nodes}{known}")
    listed = ", ".join(f"{count} {ENDS.get(name, name)}" for name, count in ended.most_common())
    idle = counts["refused_steps"] == counts["nodes"] - counts["trees"]  # all but the roots
    say(f"generate: searches ended: {listed}")
    if not idle:
        say_next("pairs", run.path)


MERGING = Merging("trees.jsonl", TREES, lambda run, trees: summarise(run, trees.counts()))


class Earlier:
    """The trees of earlier runs, found by question; they stay on disk. Raises ConfigError where a run has none."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._files = [existing(run, "earlier run") / "trees.jsonl" for run in runs]
        self._places: dict[str, list[tuple[Path, Place]]] = defaultdict(list)
        for file in self._files:
            if not file.is_file():
                raise ConfigError(f"{file.parent} has no trees.jsonl; --after takes run folders of steprag generate")
            for place in places_of(file, TREES):
                self._places[place.id].append((file, place))

    @property
    def identity(self) -> list[str]:
        """Hashes of the files: what decides which steps are known."""
        return [file_hash(file) for file in self._files]

    def mark(self, tree: Tree) -> Tree:
        """The tree with `known`: the ids of the nodes that an earlier tree of its question has too.

        A node is the same where the steps from the root to it are: same actions, same normalised contents.
        """
        known = {path for earlier in self._trees(tree.question) for path in paths_of(earlier) if path}
        ids = [node.id for node, path in zip(tree.nodes, paths_of(tree), strict=True) if path in known]
        return replace(tree, known=tuple(ids))

    def _trees(self, question: Question) -> list[Tree]:
        """The question's trees; runs of earlier versions have its id without the data set."""
        names = dict.fromkeys((question.id, question.id.removeprefix(f"{question.dataset}/")))
        trees = [read_at(place, file, Tree) for name in names for file, place in self._places.get(name, ())]
        return [tree for tree in trees if tree.question.question == question.question]


def paths_of(tree: Tree) -> list[str]:
    """For every node id a name of the steps that lead to it; empty for the root."""
    paths = [""]
    for node in tree.nodes[1:]:
        content = node.text if node.content is None else normalise(node.content)
        longer = f"{paths[node.parent or 0]}\0{node.action}\0{content}"
        paths.append(hashlib.sha256(longer.encode()).hexdigest()[:32])
    return paths
