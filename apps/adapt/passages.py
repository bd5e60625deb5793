"""The passage graph of an index: which passages a question can lead through, and the paths that are drawn from it.

Passages are joined by names that rules find: what headings name, and capitalised words in a row that few passages say.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from steprag.agent.chained import names_of
from steprag.agent.inert import without_instructions
from steprag.errors import ConfigError, counted
from steprag.scores.metrics import normalise
from steprag.types import Passage

if TYPE_CHECKING:
    from indexes.retrieval.folder_retriever import RowPassages

MOST = 20
"""Passages that say a name, or have it in their headings; a name of more leads nowhere in particular."""
LONGEST = 6
"""Words of a name that is looked for in texts."""
SPLITS = ("train", "dev", "test")
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ]"
_RUN = re.compile(rf"(?<![\w'’.-]){_CAPITAL}[\w'’.-]*+(?: {_CAPITAL}[\w'’-]*+)+")
_ABOUT = re.compile(r"\b(?:of|in|for) (?:the )?(.+)", re.DOTALL)
_FIRST = re.compile(rf"({_CAPITAL}\w*(?: {_CAPITAL}\w*)*) [a-z]")
_PAGE = re.compile(r"p\. \d+(?:, |$)")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class PassagePath:
    """Passages by row, all of one split; `bridges[i]`, a normalised name, leads from passage i to the next. `turn`: how
    many paths lead through the same passages before it.
    """

    id: str
    split: str
    rows: tuple[int, ...]
    bridges: tuple[str, ...] = ()
    turn: int = 0


def document_of(passage: Passage) -> str:
    """What is kept whole in one split: a document's path; else all passages of a title, or the passage itself."""
    path, mark, number = passage.id.rpartition("#")
    return path if mark and number.isdigit() else passage.title or passage.id


def heading_of(passage: Passage) -> str:
    """The title without a document's file and page; where nothing is left, the file's name."""
    path, mark, number = passage.id.rpartition("#")
    file = PurePosixPath(path).name
    if not (mark and number.isdigit() and passage.title.startswith(file)):
        return passage.title
    rest = _PAGE.sub("", passage.title.removeprefix(file).removeprefix(", "), count=1)
    return rest or re.sub(r"[_-]+", " ", PurePosixPath(file).stem)


def subjects_of(heading: str) -> set[str]:
    """The names that a passage with this heading is about, normalised: those of a title (`names_of`), and what stands
    behind its last "of" or "in", or else its first capitalised words.
    """
    about = _ABOUT.search(re.split(r"[,()]", heading)[-1]) or _FIRST.match(heading)
    found = names_of(heading) | ({normalise(about[1])} if about else set())
    return {name for name in found if len(name) > 2 and not name.isdigit() and name.count(" ") < LONGEST}


class PassageGraph:
    """Names of an index's passages, and the split of each. Holds the names in memory, about 2 KB a passage."""

    def __init__(self, store: RowPassages, shares: Mapping[str, int], seed: int) -> None:
        """`shares`: passages of each split in proportion. Raises ConfigError where there are fewer documents."""
        self.documents: list[str] = []
        subjects, plain = list[set[str]](), Counter[str]()
        for passage in map(store.read, range(len(store))):
            self.documents.append(document_of(passage))
            subjects.append(subjects_of(without_instructions(heading_of(passage))))
            plain.update({word for word in _WORD.findall(passage.text) if word.islower()})
        self.subjects = [{name for name in names if plain[name] <= MOST} for names in subjects]
        known = {name for names in self.subjects for name in names}
        says = [set(_names_in(store.read(row).text, known, plain)) for row in range(len(store))]
        self._about, self._saying = _rows_by_name(self.subjects), _rows_by_name(says)
        shared = {name for name, rows in self._saying.items() if len(rows) > 1 or name in self._about}
        shared |= {name for name, rows in self._about.items() if len(rows) > 1 or name in self._saying}
        self._names = [sorted((said | names) & shared) for said, names in zip(says, self.subjects, strict=True)]
        self._splits = _split(Counter(self.documents), shares, seed)

    def split_of(self, passage: Passage) -> str:
        """The split of a passage of the index: that of its document."""
        return self._splits[document_of(passage)]

    def rows_of(self, split: str) -> list[int]:
        """The passages of a split, in their order."""
        return [row for row, document in enumerate(self.documents) if self._splits[document] == split]

    def joins(self, one: int, other: int) -> set[str]:
        """The names that lead from a passage to another one."""
        return {name for name, row in self._edges(one) if row == other}

    def _edges(self, row: int) -> Iterator[tuple[str, int]]:
        """Names of a passage, each with another passage that is about it, or that says it where few do."""
        for name in self._names[row]:
            about, saying = self._about.get(name, ()), self._saying.get(name, ())
            rows = {*(about if len(about) <= MOST else ()), *(saying if len(saying) + len(about) <= MOST else ())}
            yield from ((name, other) for other in sorted(rows - {row}))

    def paths(self, hops: int, split: str, seed: int, turns: int = 1) -> Iterator[PassagePath]:
        """Paths of so many passages within a split: a passage begins three at most, `turns` are of the same."""
        draw, seen, starts = random.Random(f"{seed}/{hops}/{split}"), Counter[frozenset[int]](), self.rows_of(split)
        for _ in range(turns if hops == 1 else 3):
            draw.shuffle(starts)
            for start in starts:
                path = self._walk(start, hops, split, draw)
                rows = (start, *(row for _, row in path))
                if len(rows) == hops and (turn := seen[frozenset(rows)]) < turns:
                    seen[frozenset(rows)] += 1
                    names = tuple(name for name, _ in path)
                    yield PassagePath(f"{split}-{hops}-{seen.total():05}", split, rows, names, turn)

    def _walk(self, start: int, hops: int, split: str, draw: random.Random) -> list[tuple[str, int]]:
        """A walk over names to passages, neither twice: to what is about the name, where there is such a passage."""
        walk: list[tuple[str, int]] = []
        while len(walk) < hops - 1:
            at, been = (walk[-1][1] if walk else start), {start, *(row for _, row in walk)}
            left = [(name, row) for name, row in self._edges(at) if row not in been
                    and name not in dict(walk) and self._splits[self.documents[row]] == split]  # fmt: skip
            led = [one for one in left if one[0] in self.subjects[one[1]]] or left
            if not led:
                return []
            walk.append(draw.choice(led))
        return walk


def _split(sizes: Mapping[str, int], shares: Mapping[str, int], seed: int) -> dict[str, str]:
    """The split of each document, of so many passages: in an order drawn by the seed, each where most is lacking."""
    wanted, have = {name: share for name, share in shares.items() if share}, Counter[str]()
    if len(sizes) < len(wanted):
        raise ConfigError(
            f"{counted(len(sizes), 'document')} cannot be split into {', '.join(wanted)}, whole documents apart; give "
            "more files, or --dev 0"
        )
    chosen: dict[str, str] = {}
    for name in sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest()):
        chosen[name] = min(wanted, key=lambda one: (have[one] / wanted[one], SPLITS.index(one)))
        have[chosen[name]] += sizes[name]
    return chosen


def _rows_by_name(names: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, found in enumerate(names):
        for name in found:
            rows[name].append(row)
    return rows


def _names_in(text: str, known: set[str], plain: Mapping[str, int]) -> Iterator[str]:
    """Names of headings that stand in a text, also within each other, and two capitalised words or more in a row.

    `plain`: how many passages write a word in lower case: one that begins a run begins a sentence.
    """
    words = normalise(text).split()
    for start in range(len(words)):
        spans = (" ".join(words[start : start + length]) for length in range(1, LONGEST + 1))
        yield from (sys.intern(name) for name in spans if name in known)
    for found in _RUN.finditer(text):
        run = found.group().rstrip(".").split()
        if len(run := run[1:] if plain[run[0].lower()] else run) > 1:
            yield sys.intern(normalise(" ".join(run)))
