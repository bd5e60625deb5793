"""Which passages an answer rests on, and where in them: computed from what the agent read and wrote, never asked of it.

A passage is cited where a piece of evidence stands in it, word for word or in long runs. Models miscopy numbers and
identifiers of sources; a comparison of texts does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steprag.types import Passage, State

RUN = 4
"""Words in a row that evidence and passage must share; all of the evidence, where it has fewer."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Citation:
    """A passage of the turn. `n` counts them from 1 in order of their finding; `evidence`: the step whose evidence
    stands in it, None where none does; `spans`: where in its text, as [start, end) in characters, in order.
    """

    n: int
    passage: Passage
    evidence: int | None
    spans: tuple[tuple[int, int], ...]

    @property
    def cited(self) -> bool:
        """Whether the answer rests on it."""
        return bool(self.spans)


def numbered(found: Sequence[tuple[Passage, ...]]) -> dict[str, int]:
    """A turn's passages by id with their numbers; one that several searches found has one number."""
    numbers: dict[str, int] = {}
    for passages in found:
        for passage in passages:
            numbers.setdefault(passage.id, len(numbers) + 1)
    return numbers


def citations(state: State, keeps: frozenset[str]) -> tuple[Citation, ...]:
    """Every passage of an episode, each with the first evidence that stands in it.

    `keeps`: names of the actions whose content holds facts. Evidence is looked for in what was found before it.
    """
    found = [*state.earlier, state.passages]
    numbers = numbered(found)
    passages = {passage.id: passage for row in found for passage in row}
    cited: dict[str, Citation] = {}
    for place, step in enumerate(state.steps):
        if step.action in keeps:
            for passage in (passage for row in found[: place + 1] for passage in row):
                spans = shared_spans(step.content, passage.text)
                if spans and passage.id not in cited:
                    cited[passage.id] = Citation(numbers[passage.id], passage, place, spans)
    return tuple(cited.get(id) or Citation(n, passages[id], None, ()) for id, n in numbers.items())


def shared_spans(evidence: str, text: str) -> tuple[tuple[int, int], ...]:
    """Where `text` has RUN or more words of `evidence` in a row, as [start, end) in characters; case is not looked at.

    Evidence that says there is none ("None") stands nowhere.
    """
    words = [match.group().lower() for match in _WORD.finditer(evidence)]
    if not words or words == ["none"]:
        return ()
    places = [(match.group().lower(), match.start(), match.end()) for match in _WORD.finditer(text)]
    length = min(RUN, len(words))
    runs = {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
    spans: list[tuple[int, int]] = []
    for start in range(len(places) - length + 1):
        window = places[start : start + length]
        if tuple(word for word, _, _ in window) in runs:
            begin, end = window[0][1], window[-1][2]
            if spans and begin <= spans[-1][1]:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((begin, end))
    return tuple(spans)
