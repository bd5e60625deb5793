"""Candidates: pairs that passed every rule of their own, waiting for the filters that must see all of them; and what a
report says of those that were kept: counts by action, depth, margin and length.

Their lines go to a temporary file; what the filters and the report need of each stays in memory, 45 bytes a pair.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from preference.config import BalanceConfig, FilterConfig
from preference.filters import content_reader
from preference.pairs import RuleCounts, same_words
from steprag.agent.grammar import Grammar
from steprag.records.jsonl import PARTIAL, dump_line
from steprag.records.training_rows import Pair
from steprag.types import Message

COLUMNS = {"chosen": "Q", "rejected": "Q", "cell": "I", "split": "B", "margin": "d", "tokens": "I",
           "chosen_length": "I", "rejected_length": "I", "unsolved": "I"}  # fmt: skip
"""What is kept of a pair and its type code in `array`; `chosen` and `rejected` are hashes, `cell` a row of `cells`,
`unsolved` the number of the tree among those without a right answer, from 1, else 0.
"""
MARGIN_EDGES = [round(0.05 * i, 2) for i in range(21)]
LENGTH_BINS = 24


class Candidates:
    """The pairs so far. Use as a context manager: the temporary file goes with it.

    `cells` lists the different (action, rejected action, depth) in order of first use.
    """

    def __init__(self, folder: Path, seed: int, rules: RuleCounts, grammar: Grammar) -> None:
        self._path = folder / f".candidates{PARTIAL}"
        self._seed, self._rules, self._content = seed, rules, content_reader(grammar)
        self._columns = {name: array(code) for name, code in COLUMNS.items()}
        self._prompt: tuple[Message, ...] | None = None
        self._state = b""
        self.cells: dict[tuple[str, str, int], int] = {}

    def __enter__(self) -> Candidates:
        self._stream = self._path.open("w+b")
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._path.unlink()

    def add(self, pair: Pair, split: int, tokens: int, unsolved: int = 0) -> None:
        """`split` as the caller counts them; `tokens` of the longer sequence, 0 where nobody counted; `unsolved`: the
        number of its tree among the unsolved ones (`COLUMNS`).
        """
        if pair.prompt is not self._prompt:
            self._prompt = pair.prompt
            self._state = _digest("\0".join(text for m in pair.prompt for text in (m["role"], m["content"])).encode())
        chosen, rejected = pair.chosen[-1]["content"], pair.rejected[-1]["content"]
        values = {
            "chosen": self._step(pair.action, chosen),
            "rejected": self._step(pair.rejected_action, rejected),
            "cell": self.cells.setdefault((pair.action, pair.rejected_action, pair.depth), len(self.cells)),
            "split": split,
            "margin": float("nan") if pair.margin is None else pair.margin,
            "tokens": tokens,
            "chosen_length": len(chosen),
            "rejected_length": len(rejected),
            "unsolved": unsolved,
        }
        for name, column in self._columns.items():
            column.append(values[name])
        self._stream.write(dump_line(pair).encode() + b"\n")

    def _step(self, action: str, text: str) -> int:
        """A step from this state; equal where actions and normalised contents are, as the search merges siblings."""
        content = same_words(self._content(text, action) or text)
        return int.from_bytes(_digest(b"\0".join((self._state, action.encode(), content.encode()))))

    def column(self, name: str) -> np.ndarray:
        """One value a pair, in order of arrival."""
        return np.array(self._columns[name])

    def select(self, filters: FilterConfig, balance: BalanceConfig) -> np.ndarray:
        """Which pairs stay, as one bool a pair."""
        kept = np.ones(len(self._columns["cell"]), dtype=bool)
        chosen, rejected = self.column("chosen"), self.column("rejected")
        if filters.duplicates:
            _, first = np.unique(np.stack([chosen, rejected], axis=1), axis=0, return_index=True)
            kept = self._narrow("no duplicate", kept, np.isin(np.arange(len(kept)), first))
        if filters.contradictions:
            stays = kept.copy()
            stays[kept] = ~in_circles(chosen[kept], rejected[kept])
            kept = self._narrow("no contradiction or circle", kept, stays)
        if balance.most:
            kept = self._narrow("cap", kept, self._capped(kept, balance))
        return kept

    def _narrow(self, name: str, before: np.ndarray, stays: np.ndarray) -> np.ndarray:
        after = before & stays
        self._rules.note(name, int(before.sum()), int(after.sum()))
        return after

    def _capped(self, kept: np.ndarray, balance: BalanceConfig) -> np.ndarray:
        """`balance.most` of the pairs, drawn by the pairs and the seed alone."""
        rows, factor = np.flatnonzero(kept), np.uint64((2 * self._seed + 1) % 2**64)
        mixed = (self.column("chosen") ^ self.column("rejected")) * factor
        rows = rows[np.argsort(mixed[rows], kind="stable")]
        if balance.unsolved_first:
            rows = rows[np.argsort(self.column("unsolved")[rows] == 0, kind="stable")]
        stays = np.zeros_like(kept)
        stays[rows[: balance.most]] = True
        return stays

    def lines(self, kept: np.ndarray) -> Iterator[tuple[str, int]]:
        """The lines of the pairs that stay, with their splits, in order of arrival: whoever reads the first rows alone
        reads a fair sample of the trees.
        """
        self._stream.seek(0)
        for stays, split, line in zip(kept, self._columns["split"], self._stream, strict=True):
            if stays:
                yield line.decode(), split


def pair_stats(candidates: Candidates, kept: np.ndarray, cutoff: int | None) -> dict[str, Any]:
    """Counts and histograms as JSON-ready values. Lengths are in characters; tokens only where they were counted."""
    numbers = np.bincount(candidates.column("cell")[kept], minlength=len(candidates.cells))
    actions, depths = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for (action, rejected, depth), count in zip(candidates.cells, numbers.tolist(), strict=True):
        if count:
            name = action if action == rejected else f"{action} over {rejected}"
            actions[name] += count
            depths[str(depth)][name] += count
    margins = candidates.column("margin")[kept]
    margins = margins[~np.isnan(margins)]
    chosen, rejected_ = (candidates.column(f"{side}_length")[kept].astype(int) for side in ("chosen", "rejected"))
    tokens = candidates.column("tokens")[kept]
    unsolved = candidates.column("unsolved")[kept]
    return {
        "pairs": int(kept.sum()),
        "unsolved": {"pairs": int((unsolved > 0).sum()), "trees": len(np.unique(unsolved[unsolved > 0]))},
        "actions": dict(sorted(actions.items())),
        "depths": {depth: dict(sorted(row.items())) for depth, row in sorted(depths.items(), key=lambda d: int(d[0]))},
        "margins": {**_summary(margins), "edges": MARGIN_EDGES,
                    "counts": np.histogram(margins, MARGIN_EDGES)[0].tolist()},
        "lengths": {
            "chosen": _summary(chosen),
            "rejected": _summary(rejected_),
            "chosen_is_shorter": int((chosen < rejected_).sum()),
            "chosen_is_longer": int((chosen > rejected_).sum()),
            **_histograms({"chosen": chosen, "rejected": rejected_}),
        },
        "tokens": {**_summary(tokens), "cutoff": cutoff, **_histograms({"pair": tokens})} if cutoff else None,
    }  # fmt: skip


def _summary(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", "median", "p99", "greatest"))
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(values.mean()), "median": float(p50), "p99": float(p99), "greatest": float(values.max())}


def _histograms(columns: dict[str, np.ndarray]) -> dict[str, Any]:
    """Histograms over common edges, whole numbers."""
    greatest = max((int(values.max()) for values in columns.values() if len(values)), default=1)
    width = max(1, -(-greatest // LENGTH_BINS))
    edges = [width * i for i in range(LENGTH_BINS + 1)]
    return {"edges": edges, "counts": {name: np.histogram(v, edges)[0].tolist() for name, v in columns.items()}}


def in_circles(chosen: np.ndarray, rejected: np.ndarray) -> np.ndarray:
    """For every preference, whether following preferences leads from its rejected step back to its chosen one.

    A preference and its reverse are the shortest circle. Steps of different prompts never meet.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(chosen):
        return np.zeros(0, dtype=bool)
    steps, places = np.unique(np.concatenate([chosen, rejected]), return_inverse=True)
    better, worse = places[: len(chosen)], places[len(chosen) :]
    graph = coo_array((np.ones(len(chosen), dtype=np.int8), (better, worse)), shape=(len(steps), len(steps)))
    _, component = connected_components(graph.tocsr(), directed=True, connection="strong")
    return component[better] == component[worse]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
