"""What was read of documents beside paragraphs, and what stands in no passage: for whoever builds, and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from indexes.corpora.document_list import Document
from steprag.console.progress import say
from steprag.errors import shortened
from steprag.records.left_out import LeftOut

FEW = 0.03
"""The share of a document's letters from which on its loss is said."""
EDGES = "header and footer lines"
"""Left out of most documents with pages; nobody is told of them beside one."""
SHOWN = 5
"""Documents whose loss is said; all pieces stand in `skipped.jsonl`."""


def pieces(one: Document) -> list[LeftOut]:
    """What was left out of a document, piece by piece."""
    return [
        LeftOut(kind, f"{one.path}{f', p. {page}' * bool(page)}", words, count)
        for kind, page, words, _, count in one.left
    ]


def loss(one: Document) -> LeftOut | None:
    """The largest piece that a document lost, where it lost more than a few per cent of its letters."""
    lost = sum(letters for _, _, _, letters, _ in one.left)
    if lost <= FEW * max(one.letters, lost):
        return None
    letters, most = max(zip((piece[3] for piece in one.left), pieces(one), strict=True), key=lambda pair: pair[0])
    share = f"{lost / max(one.letters, lost):.0%} of its text stands in no passage"
    return LeftOut(share if letters == lost else f"{share}, most of it {most.kind}", most.place, most.words)


def parts_said(parts: Mapping[str, int]) -> str:
    """What was read beside paragraphs, in a line; nothing where there was nothing else."""
    named = ", ".join(f"{name} {count:,}" for name, count in parts.items() if count)
    return f"read beside paragraphs: {named}" if named else ""


def notes(one: Document) -> Iterator[str]:
    """What a person is told of a file that was given."""
    if said := parts_said(one.parts):
        yield said
    left, pieces = Counter[str](), [piece for piece in one.left if piece[0] != EDGES]
    for kind, _, _, _, count in pieces:
        left[kind] += count
    if left:
        lost, most = loss(one), max(pieces, key=lambda piece: piece[3])
        share = f" ({lost.kind.partition(' ')[0]} of its text)" if lost else ""
        named = ", ".join(f"{kind} {count:,}" for kind, count in left.items())
        yield f"left out{share}: {named}: {shortened(most[2], 100)}"


class Report:
    """Documents of a build, taken one by one."""

    def __init__(self) -> None:
        self.parts, self.left = Counter[str](), dict[str, tuple[int, LeftOut]]()
        self._losses, self._more = list[LeftOut](), 0

    def add(self, one: Document) -> None:
        """Counts what was read of a document, and what was left out, by kind: the largest piece stands for it."""
        self.parts.update(one.parts)
        for piece, (*_, letters, _) in zip(pieces(one), one.left, strict=True):
            most, same = self.left.get(piece.kind, (-1, piece))
            first = piece if letters > most else same
            count = piece.count + (same.count if most >= 0 else 0)
            self.left[piece.kind] = max(most, letters), LeftOut(piece.kind, first.place, first.words, count)
        if lost := loss(one):
            self._more += len(self._losses) >= SHOWN
            self._losses += [lost] if len(self._losses) < SHOWN else []

    def say(self) -> None:
        """One short paragraph; nothing where all is paragraphs and nothing was lost."""
        if said := parts_said(self.parts):
            say(f"index: {said}")
        for lost in self._losses:
            say(f"index: {lost.place}: {lost.kind}: {shortened(lost.words, 100)}")
        if self._losses:
            others = f"{self._more:,} other documents lost as much; " if self._more else ""
            say(f"index: {others}skipped.jsonl names every piece")

    def items(self) -> Iterable[LeftOut]:
        """For the manifest: each kind once."""
        return [item for _, item in self.left.values()]
