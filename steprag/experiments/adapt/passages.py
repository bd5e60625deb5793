"""The passage graph of an index: which passages a question can lead through, and the paths that are drawn from it.

Passages are joined by names, found by rules: a name in one passage's heading, or two capitalised words that few
passages write. A model is asked for nothing here.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from indexes.retrieval.folder_retriever import RowPassages
from preference.chained import names_of
from steprag.errors import ConfigError
from steprag.scores.metrics import normalise
from steprag.types import Passage

MOST = 20
"""Passages that a name may stand in, or in whose headings it may stand; a name of more leads nowhere in particular."""
LONGEST = 6
"""Words of a name that is looked for in texts."""
SPLITS = ("train", "dev", "test")
_PAGE = re.compile(r"p\. \d+(?:, |$)")
_RUN = re.compile(r"[^\W\d_a-zß-öø-ÿ][\w'’.-]*(?: [^\W\d_a-zß-öø-ÿ][\w'’-]*)+")
_ABOUT = re.compile(r"\b(?:of|in|for) (?:the )?([^,()]+)$")
_FIRST = re.compile(r"([^\W\d_a-zß-öø-ÿ]\w*(?: [^\W\d_a-zß-öø-ÿ]\w*)*) [a-z]")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class PassagePath:
    """Passages by row, in the order in which a question leads through them.

    `kind`: "one" passage; "bridge": `bridges[i]`, a normalised name, leads from passage i to the next; "compare": two
    passages of alike subjects. `split`: that of all its documents.
    """

    id: str
    kind: str
    split: str
    rows: tuple[int, ...]
    bridges: tuple[str, ...] = ()

    @property
    def shape(self) -> str:
        """Kind and hops, by which questions are balanced."""
        return f"{self.kind} {len(self.rows)}"


def document_of(passage: Passage) -> str:
    """What is kept whole in one split: the file of a document's passage; else all passages of a title, or the passage
    itself.
    """
    path, mark, number = passage.id.rpartition("#")
    return path if mark and number.isdigit() else passage.title or passage.id


def heading_of(passage: Passage) -> str:
    """The title without file and page, which are no part of what a document's passage is about; where nothing is left,
    the file's name.
    """
    path, mark, number = passage.id.rpartition("#")
    file = PurePosixPath(path).name
    if not (mark and number.isdigit() and passage.title.startswith(file)):
        return passage.title
    rest = _PAGE.sub("", passage.title.removeprefix(file).removeprefix(", "), count=1)
    return rest or re.sub(r"[_-]+", " ", PurePosixPath(file).stem)


def subjects_of(heading: str) -> set[str]:
    """The names that a passage with this heading is about, normalised: those of a title (`names_of`), what stands behind
    its last "of" or "in", and its first capitalised words.
    """
    about, first = _ABOUT.search(heading), _FIRST.match(heading)
    found = names_of(heading) | {normalise(each[1]) for each in (about or first,) if each}
    return {name for name in found if len(name) > 2 and not name.isdigit() and name.count(" ") < LONGEST}


class PassageGraph:
    """Names of an index's passages, each passage in the split of its document.

    Memory: names of each row, about 1 KB a passage.
    """

    def __init__(self, store: RowPassages, shares: Mapping[str, int], seed: int) -> None:
        """`shares`: passages of a split in proportion. Raises ConfigError where documents are too few for the splits."""
        self.documents: list[str] = []
        self.subjects: list[set[str]] = []
        self._frames: list[str] = []
        plain = Counter[str]()
        for passage in map(store.read, range(len(store))):
            self.documents.append(document_of(passage))
            heading = heading_of(passage)
            self.subjects.append(subjects_of(heading))
            self._frames.append(_ABOUT.sub("", heading) if _ABOUT.search(heading) else "")
            plain.update({word for word in _WORD.findall(passage.text) if word.islower()})
        self.subjects = [{name for name in names if plain[name] <= MOST} for names in self.subjects]
        known = {name for names in self.subjects for name in names}
        told = [set(_names_in(store.read(row).text, known, plain)) for row in range(len(store))]
        self.about, self.saying = _rows_by_name(self.subjects), _rows_by_name(told)
        self._framed = _rows_by_name([frame] if frame else [] for frame in self._frames)
        self._told = [sorted(says | names) for says, names in zip(told, self.subjects, strict=True)]
        self.split = self._splits(shares, seed)

    def _splits(self, shares: Mapping[str, int], seed: int) -> list[str]:
        """The split of each row: whole documents, in an order drawn by the seed, each to the split that lacks most."""
        sizes, wanted = Counter(self.documents), {name: share for name, share in shares.items() if share}
        if len(sizes) < len(wanted):
            raise ConfigError(
                f"{len(sizes)} documents cannot be split into {', '.join(wanted)}, whole documents apart; give more "
                "files, or --dev 0"
            )
        order = sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
        have, chosen = Counter[str](), dict[str, str]()
        for name in order:
            split = min(wanted, key=lambda one: (have[one] / wanted[one], SPLITS.index(one)))
            have[split] += sizes[name]
            chosen[name] = split
        self._split_by_document = chosen
        return [chosen[name] for name in self.documents]

    def split_of(self, passage: Passage) -> str:
        """The split of a passage of the index."""
        return self._split_by_document[document_of(passage)]

    def joins(self, one: int, other: int) -> set[str]:
        """The names that lead from a passage to another one."""
        return {name for name, row in self._edges(one) if row == other}

    def _edges(self, row: int) -> Iterator[tuple[str, int]]:
        """Names of a passage, each with another passage that is about it, or that says it where few do."""
        for name in self._told[row]:
            about, saying = self.about.get(name, ()), self.saying.get(name, ())
            rows = {*(about if len(about) <= MOST else ()), *(saying if len(saying) + len(about) <= MOST else ())}
            yield from ((name, other) for other in sorted(rows - {row}))

    def paths(self, kind: str, hops: int, split: str, seed: int) -> Iterator[PassagePath]:
        """Paths of one shape within a split, without end of their kind only where passages end: each passage begins at
        most three, and no two paths have the same passages.
        """
        draw, seen = random.Random(f"{seed}/{kind}/{hops}/{split}"), set[frozenset[int]]()
        starts = [row for row, name in enumerate(self.split) if name == split]
        for _ in range(1 if hops == 1 else 3):
            draw.shuffle(starts)
            for start in starts:
                rows, bridges = self._compared(start, draw) if kind == "compare" else self._walk(start, hops, draw)
                if len(rows) == hops and (key := frozenset(rows)) not in seen:
                    seen.add(key)
                    yield PassagePath(f"{split}-{kind}{hops}-{len(seen):05}", kind, split, rows, bridges)

    def _walk(self, start: int, hops: int, draw: random.Random) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """A walk over names, none of them twice, through passages about different things."""
        rows, bridges = [start], list[str]()
        while len(rows) < hops:
            left = [(name, row) for name, row in self._edges(rows[-1])
                    if row not in rows and name not in bridges and self.split[row] == self.split[start]]  # fmt: skip
            led = [one for one in left if one[0] in self.subjects[one[1]]] or left
            if not led:
                break
            name, row = draw.choice(led)
            rows.append(row)
            bridges.append(name)
        return tuple(rows), tuple(bridges)

    def _compared(self, start: int, draw: random.Random) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The passage and one that says the same of another thing: under a heading alike ("Money in Peru"), or, where
        headings are names alone, with many of the same names in its text.
        """
        others = self._framed.get(self._frames[start], ())
        if not self._frames[start]:
            found = Counter(row for name in self._told[start] for row in self.saying.get(name, [])[: 10 * MOST])
            others = [row for row, _ in found.most_common(3 * MOST) if not self._frames[row]][:5]
        alike = [row for row in others if self.split[row] == self.split[start] and row != start
                 and not self.subjects[row] & self.subjects[start]]  # fmt: skip
        return ((start, draw.choice(alike)) if alike else (start,)), ()


def _rows_by_name(names: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, found in enumerate(names):
        for name in found:
            rows[name].append(row)
    return rows


def _names_in(text: str, known: set[str], plain: Mapping[str, int]) -> Iterator[str]:
    """Names of headings that stand in a text, also within each other, and runs of two capitalised words or more.

    `plain`: how many passages write a word in lower case; what begins a run and is such a word begins a sentence.
    """
    words = normalise(text).split()
    for start in range(len(words)):
        spans = (" ".join(words[start : start + length]) for length in range(1, LONGEST + 1))
        yield from (name for name in spans if name in known)
    for found in _RUN.finditer(text):
        run = found.group().rstrip(".").split()
        run = run[1:] if plain[run[0].lower()] else run
        if len(run) > 1:
            yield normalise(" ".join(run))
