"""Which passages an answer rests on, and where in them: computed from what the agent read and wrote, never asked of it.

A passage is cited where a sentence of the evidence stands in it, word for word or in long runs. Models miscopy numbers
and identifiers of sources; a comparison of texts does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steprag.agent.environment import Environment
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
_OPENER = re.compile(
    "what|which|who|whom|whose|when|where|why|how|is|are|was|were|does|do|did|can|could|in|on|at|by|for|to|from|of|and|"
    "the|a|an|it|its|he|she|they|his|her|their|this|that|these|those|there|some|if|as|with|have|has|had|will|would|"
    "should|tell|name|give|show|list|explain|describe|compare|please|many|much|me|my|your"
)
"""Words that ask, and that questions begin with."""
NAMED = 32
"""Words of a question that are looked for."""
ASKED = 3
"""One in so many of the names that a question says must stand in the passages that were read."""
NOT_FOUND = "Not found in these documents"
"""How every answer begins that nothing supports; what it says is a guess."""
GUESS = "A guess:"
LACKING = {
    "nothing": "the searches found nothing",
    "score": "the first search found no passage that is like the question",
    "words": "no passage that was read holds a word of it",
    "question": "the passages that hold it do not speak of what was asked",
    "evidence": "nothing in the passages that were read answers the question",
}
"""Why an answer counts as not found (`Support.lacks`), and what that means."""
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

    def lacks(self, state: State, searched: bool = False) -> str | None:
        """Why an episode's answer does not count, a reason of LACKING; else None. `searched`: a search was made, though
        it may have found nothing. An episode that did not search, or ended before its first step, is not judged.
        """
        if not self.on or not state.steps:
            return None
        found = [*state.earlier, state.passages]
        first = next((row for row in found if row), ())
        if not first:
            return "nothing" if searched else None
        if _kept_nothing(state):
            return "evidence"
        scores = [passage.score for passage in first if passage.score is not None]
        given = any(is_given(passage.id) for passage in first)  # their scores are ranks
        if self.least is not None and scores and max(scores) < self.least and not given:
            return "score"
        texts = [*{one.id: f"{one.title}\n{one.text[:COMPARED]}" for row in found for one in row}.values()]
        read, said = [{*_Text(text).words} for text in texts], _telling(state.steps[-1].content)
        holding = [place for place, words in enumerate(read) if not (said and words.isdisjoint(said))]
        if not holding:
            return "words"
        once = sum(map(bool, found)) == 1  # of several searches any may have led to the answer
        return None if _meets(state.question, texts, read, holding if once else []) else "question"


@dataclass(frozen=True)
class Grounds:
    """What an episode's answer rests on: every passage that a search found, and what `Support.lacks` says. `cites`:
    whether it rests on cited passages alone, as the agent keeps evidence; `judged`: whether support was looked for.
    """

    found: tuple[Citation, ...]
    cites: bool
    lacks: str | None
    judged: bool

    @property
    def sources(self) -> list[Passage]:
        """The passages that the evidence stands in; all that were found, where the agent keeps no evidence."""
        return [one.passage for one in self.found if one.cited or not self.cites]

    @property
    def told(self) -> dict[str, str | None]:
        """The field `lacks` of JSON: null where passages support the answer, absent where nobody judged."""
        return {"lacks": self.lacks} if self.judged else {}


def grounds_of(state: State, environment: Environment, support: Support) -> Grounds:
    """What the answer that `state` ends with rests on; a guess rests on nothing."""
    grammar = environment.profile.grammar
    searched = environment.profile.words.search_first or any(grammar.action(s.action).retrieves for s in state.steps)
    lacks = support.lacks(state, searched)
    found = citations(state, frozenset() if lacks else grammar.evidence)
    return Grounds(found, bool(grammar.evidence or lacks), lacks, support.on and searched)


def headed(answer: str, lacks: str | None) -> str:
    """An answer as people read it: one that nothing supports is a guess, and stands behind these words."""
    return f"{NOT_FOUND}. {GUESS} {answer}" if lacks else answer


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


def _meets(question: str, texts: Sequence[str], read: Sequence[set[str]], holding: Sequence[int]) -> bool:
    """Whether passages speak of what was asked: one in ASKED of its words stands in any, and a name in one of
    `holding`, which hold the answer, or in one that shares a name with these. `read`: the words of the texts.
    """
    asked = _asked(question)
    met = [[stands(word, words) for word in asked] for words in read]
    if not asked or sum(map(any, zip(*met, strict=True))) * ASKED < len(asked):
        return not asked
    if not holding or asked[0].islower():
        return True
    about = [_names(text) for text, here in zip(texts, met, strict=True) if any(here)]
    names = {name.lower() for each in about for name in each}
    return any(any(met[place]) or not names.isdisjoint(read[place]) for place in holding)


def _asked(question: str) -> list[str]:
    """What a question asks about, as it is written: its names and numbers; else its long words in small letters, where
    it has several: a passage may have another word for a single one.
    """
    words = [word.lower() for word in _content(question[:COMPARED]) if len(word) > 3]
    return (_names(question[:COMPARED]) or (words if len(words) > 1 else []))[:NAMED]


def _names(text: str) -> list[str]:
    """The names and numbers of a text."""
    return [word for word in _content(text) if not word.islower() and (len(word) > 2 or word.isdigit())]


def _content(text: str) -> list[str]:
    return [word for match in _WORD.finditer(text) if not _OPENER.fullmatch((word := match.group()).lower())]


def stands(word: str, words: set[str]) -> bool:
    """Whether a word stands among others in small letters, another ending or a slip of spelling apart."""
    word = word.lower()
    if word in words or len(word) < 4 or word.isdigit():
        return word in words
    return any(one.startswith(word) or (len(one) > 3 and word.startswith(one)) or _slip(word, one) for one in words)


def _slip(word: str, other: str) -> bool:
    """Whether two words of five letters or more differ by one letter, or by two that changed places."""
    if min(len(word), len(other)) < 5 or abs(len(word) - len(other)) > 1 or other.isdigit():
        return False
    start = next((n for n, (one, two) in enumerate(zip(word, other, strict=False)) if one != two), len(word))
    rest, others = word[start:], other[start:]
    swapped = rest[:2] == others[1::-1] and rest[2:] == others[2:]
    return swapped or rest[1:] in (others, others[1:]) or rest == others[1:]


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
