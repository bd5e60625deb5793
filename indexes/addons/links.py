"""Title links: which passages mention the titles of others, so that a search can go one hop on (folder `links/`).

A question often names where to start and not where to end ("where did the director of film X study?"). The passage
about X names the director; the director's passage shares nothing with the question. So what the best passages mention
by title gains a part of their score. No model is asked and nothing is trained.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from indexes.folder.manifest import IndexManifest, open_add_on, write_add_on
from indexes.ranking.rankings import POOL, Ranking, RowSearcher, SearchKey, named, ordered, unit
from indexes.rows.passage_store import PassageStore, mapped_list
from steprag.console.progress import Progress
from steprag.errors import DataError
from steprag.scores.gold import without_qualifier

FOLDER = "links"
RULE = 1
"""Version of what counts as a mention; it is in the settings."""
SOURCES = 5
"""How many of the best passages pass on a part of their score."""
LONGEST = 8
"""Words of a title that are compared; longer titles are not looked for."""
_WORD = re.compile(r"\w+")

Title = tuple[str, ...]


def add_links(folder: Path, index: IndexManifest) -> bool:
    """Adds links to a finished index folder, as `write_add_on` says; False where they are there already."""
    return write_add_on(folder, index, FOLDER, {"rule": RULE}, _write)


def _write(folder: Path, store: PassageStore) -> None:
    """Rows that each row mentions, as one int32 array and int64 bounds into it. Holds all titles in memory."""
    titles: dict[Title, int] = {}
    for row in range(len(store)):
        titles.setdefault(title_words(store.read(row, 0.0).title), row)  # an article's first passage stands for it
    bounds, mentioned = np.zeros(len(store) + 1, dtype=np.int64), array("i")
    with Progress("links", len(store), "passages") as progress:
        for row in range(len(store)):
            passage = store.read(row, 0.0)
            own = title_words(passage.title)
            found = dict.fromkeys(titles[title] for title in mentions(passage.text, titles) if title != own)
            mentioned.extend(found)
            bounds[row + 1] = len(mentioned)
            progress.advance(1)
    mentioned.append(-1)  # beyond the last bound: an empty array cannot be mapped
    np.save(folder / "rows.npy", np.array(mentioned, dtype=np.int32), allow_pickle=False)
    np.save(folder / "bounds.npy", bounds, allow_pickle=False)


def title_words(title: str) -> Title:
    """A title's words as text would have them: without the qualifier in brackets at its end."""
    return tuple(_WORD.findall(without_qualifier(title)))


def mentions(text: str, titles: dict[Title, int]) -> Iterator[Title]:
    """Titles that occur in a text, longest first at each place, in their own capitals. Words in lower case alone are
    no mention: every language's common words are titles of something.
    """
    words = _WORD.findall(text)
    start = 0
    while start < len(words):
        step = 1
        if not words[start].islower():
            for length in range(min(LONGEST, len(words) - start), 0, -1):
                title = tuple(words[start : start + length])
                if title in titles and not (length == 1 and title[0].lower() in _common()):
                    yield title
                    step = length
                    break
        start += step


@cache
def _common() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


class LinkedSearcher:
    """Another ranking in which what the best passages mention moves up.

    A mentioned row gains `gain` × the mentioning passage's score (brought to 0…1) / √(how many it mentions), from the
    passage that gives most.
    """

    def __init__(self, base: RowSearcher, folder: Path, index: IndexManifest, gain: float) -> None:
        """Maps the files after checking them. Raises ConfigError or DataError."""
        add_on = open_add_on(folder, index, FOLDER)
        self._base, self._gain = base, gain
        self.fingerprint = named(FOLDER, base.fingerprint, add_on.fingerprint, SOURCES, POOL, gain)
        remedy = f"delete {folder / FOLDER} and add it again"
        self._rows = mapped_list(folder / FOLDER / "rows.npy", "i", remedy)
        self._bounds = mapped_list(folder / FOLDER / "bounds.npy", "i", remedy)
        if len(self._bounds) != add_on.rows + 1:
            raise DataError(folder / FOLDER / "bounds.npy", "has not the index's number of rows", remedy=remedy)

    def load(self) -> None:
        """Loads the ranking below; the links are mapped already."""
        self._base.load()

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        """The ranking below, at least POOL deep, with what links gain added; scores are brought to 0…1 before."""
        found = self._base.search([(query, max(top_k, POOL)) for query, top_k in asked])
        return [self._linked(unit(ranked))[:top_k] for ranked, (_, top_k) in zip(found, asked, strict=True)]

    def _linked(self, ranked: Ranking) -> Ranking:
        gained: dict[int, float] = {}
        for row, score in ranked[:SOURCES]:
            rows = self._rows[self._bounds[row] : self._bounds[row + 1]]
            for target in rows.tolist():
                gained[target] = max(gained.get(target, 0.0), self._gain * score / len(rows) ** 0.5)
        scores = dict(ranked)
        return ordered({row: scores.get(row, 0.0) + gained.get(row, 0.0) for row in {**scores, **gained}})
