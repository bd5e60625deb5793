"""Which passages an answer rests on, and where in them: computed from what the agent read and wrote, never asked of it.

A passage is cited where a sentence of the evidence stands in it, word for word or in long runs. Models miscopy numbers
and identifiers of sources; a comparison of texts does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steprag.types import Passage, State

RUN = 4
"""Words in a row that evidence and passage must share; all of the evidence, where it has fewer."""
ENOUGH = 0.5
"""The part of a sentence's words that a passage must have to be cited for it."""
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


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
    cited: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    for place, step in enumerate(state.steps):
        if step.action in keeps:
            seen = {passage.id: passage.text for row in found[: place + 1] for passage in row}
            for sentence in _SENTENCE_END.split(step.content):
                for id, spans in _best(sentence, seen).items():
                    cited.setdefault(id, (place, []))[1].extend(spans)
    return tuple(
        Citation(n, passages[id], *((cited[id][0], _merged(cited[id][1])) if id in cited else (None, ())))
        for id, n in numbers.items()
    )


def _best(sentence: str, texts: dict[str, str]) -> dict[str, tuple[tuple[int, int], ...]]:
    """The spans in those of the texts that hold most of a sentence's words, and at least half of them. Others share
    phrases with it ("is the capital of") and no facts.
    """
    shares = {id: _share(sentence, text) for id, text in texts.items()}
    most = max(shares.values(), default=0.0)
    return {id: shared_spans(sentence, texts[id]) for id, share in shares.items() if share == most >= ENOUGH}


def _share(sentence: str, text: str) -> float:
    """The part of a sentence's words that stand in runs which `text` has too."""
    words = _words(sentence)
    length, spans = len(words), shared_spans(text, sentence)
    covered = sum(len(_words(sentence[start:end])) for start, end in spans)
    return covered / length if length else 0.0


def _merged(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans in order, those that touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _words(text: str) -> list[str]:
    return [match.group().lower() for match in _WORD.finditer(text)]


def shared_spans(evidence: str, text: str) -> tuple[tuple[int, int], ...]:
    """Where `text` has RUN or more words of `evidence` in a row, as [start, end) in characters; case is not looked at.

    Evidence that says there is none ("None") stands nowhere.
    """
    words = _words(evidence)
    if not words or words == ["none"]:
        return ()
    places = [(match.group().lower(), match.start(), match.end()) for match in _WORD.finditer(text)]
    length = min(RUN, len(words))
    runs = {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
    spans: list[tuple[int, int]] = []
    for start in range(len(places) - length + 1):
        window = places[start : start + length]
        if tuple(word for word, _, _ in window) in runs:
            spans.append((window[0][1], window[-1][2]))
    return _merged(spans)
