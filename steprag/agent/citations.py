"""Which passages an answer rests on, and where in them: computed from what the agent read and wrote, never asked of it.

A passage is cited where a sentence of the evidence stands in it, word for word or in long runs. Models miscopy numbers
and identifiers of sources; a comparison of texts does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steprag.agent.retriever import is_given
from steprag.types import Passage, State

RUN = 4
"""Words in a row that evidence and passage must share; all of the shorter text, where it has fewer."""
ENOUGH = 0.5
"""The part of a sentence's words that a passage must have to be cited for it."""
SENTENCES = 64
"""Sentences of a step's evidence that are looked for; of more, the others cite nothing."""
COMPARED = 20_000
"""Characters of a passage, and of a step's evidence, that are compared: one passage may be a whole book."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts that put no space between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_SMALL_WORDS = frozenset(("a", "an", "the", "of", "in", "and", "or", "to", "is", "it"))
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


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
    texts = {id: _Text(passage.text[:COMPARED]) for id, passage in passages.items()}
    cited: dict[str, tuple[int, set[int]]] = {}
    for place, step in enumerate(state.steps):
        if step.action in keeps:
            seen = {passage.id: texts[passage.id] for row in found[: place + 1] for passage in row}
            for sentence in _SENTENCE_END.split(step.content[:COMPARED], SENTENCES)[:SENTENCES]:
                for id, words in _best(_Text(sentence), seen).items():
                    cited.setdefault(id, (place, set()))[1].update(words)
    return tuple(
        Citation(n, passages[id], *((cited[id][0], texts[id].spans(cited[id][1])) if id in cited else (None, ())))
        for id, n in numbers.items()
    )


@dataclass(frozen=True)
class Support:
    """When an answer counts as found. `on` False: always. `least`: the score that the best passage of the first search
    must have; None: scores are not looked at, as they mean something else in every index.
    """

    on: bool = True
    least: float | None = None

    def lacks(self, state: State) -> str | None:
        """Why an episode's answer does not count: "words" where none of them stands in a passage that was read, "score"
        where the first search found nothing like what was asked, "evidence" where the agent itself kept nothing of what
        it read; else None. One that did not search is not judged.
        """
        if self.on and _kept_nothing(state):
            return "evidence"
        found = [*state.earlier, state.passages]
        first = next((row for row in found if row), ())
        if not self.on or not first:
            return None
        scores = [passage.score for passage in first if passage.score is not None]
        given = any(is_given(passage.id) for passage in first)  # their scores are ranks
        if self.least is not None and scores and max(scores) < self.least and not given:
            return "score"
        said = _telling(state.steps[-1].content)
        read = {word for row in found for one in row for word in _Text(f"{one.title}\n{one.text}").words}
        return "words" if said and read.isdisjoint(said) else None


def _kept_nothing(state: State) -> bool:
    """Whether each step behind a search, or the last one before the answer, says that there is no evidence."""
    before = state.steps[:-1]
    made = [step for step, found in zip(before, state.earlier, strict=False) if found] or before[-1:]
    return bool(made) and all(step.content.rstrip(".").lower() == "none" for step in made)


def _telling(answer: str) -> set[str]:
    """The words of an answer that tell something: names, numbers and long words; of others all. None where it is yes or
    no, which no passage says.
    """
    words = {word for match in _WORD.finditer(answer) if (word := match.group()).lower() not in _SMALL_WORDS}
    if {word.lower() for word in words} <= {"yes", "no"}:
        return set()
    telling = {word.lower() for word in words if len(word) > 3 or not word.islower()}
    return telling or {word.lower() for word in words}


class _Text:
    """A text cut into words once, however often it is compared. Case is not looked at; where no spaces stand between
    words, each character is one.
    """

    def __init__(self, text: str) -> None:
        matches = [*_WORD.finditer(text)]
        self.words = [match.group().lower() for match in matches]
        self._places = [match.span() for match in matches]
        self._runs: dict[int, dict[tuple[str, ...], list[int]]] = {}

    def runs(self, length: int) -> dict[tuple[str, ...], list[int]]:
        """Every run of so many words, and where it begins, counted in words."""
        if length not in self._runs:
            runs = self._runs[length] = {}
            for start in range(len(self.words) - length + 1):
                runs.setdefault(tuple(self.words[start : start + length]), []).append(start)
        return self._runs[length]

    def spans(self, words: set[int]) -> tuple[tuple[int, int], ...]:
        """The words of these numbers as [start, end) in characters; neighbours are one span."""
        spans: list[tuple[int, int]] = []
        for word in sorted(words):
            start, end = self._places[word]
            spans.append((spans.pop()[0], end) if word - 1 in words else (start, end))
        return tuple(spans)


def _best(sentence: _Text, texts: dict[str, _Text]) -> dict[str, set[int]]:
    """The words in those of the texts that hold most of a sentence's words, and at least half of them. Others share
    phrases with it ("is the capital of") and no facts.
    """
    shares = {id: _shared(text, sentence) for id, text in texts.items()}
    most = max(map(len, shares.values()), default=0)
    if most < ENOUGH * len(sentence.words):
        return {}
    return {id: _shared(sentence, texts[id]) for id, words in shares.items() if len(words) == most > 0}


def _shared(evidence: _Text, text: _Text) -> set[int]:
    """The words of `text`, by number, that stand in a run of RUN or more words which `evidence` has too."""
    length = min(RUN, len(evidence.words), len(text.words))
    if not length or ["none"] in (evidence.words, text.words):  # "None" says that there is no evidence
        return set()
    runs = text.runs(length)
    common = evidence.runs(length).keys() & runs.keys()
    return {start + word for run in common for start in runs[run] for word in range(length)}
