"""The extractive reader: answers in the documents' own sentences, without a language model.

It stands in a policy's place, but reads the state instead of its prompt. It searches with the question, keeps the
sentences that fit the question best as evidence, and answers with the first of them. Where none is sure to answer, its
evidence is None, and the answer a guess that `Support` calls not found. `benchmarks/own_files.py` measures it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

from steprag.agent.citations import stands
from steprag.agent.grammar import Grammar
from steprag.agent.inert import neutralise
from steprag.agent.language import english, sentences, spelled, stem, stems, telling
from steprag.agent.retriever import Retriever, Similar
from steprag.errors import ConfigError
from steprag.types import Completion, Message, Passage, Sample, State, Usage

NONE = "None"
"""The content of evidence that keeps nothing, and the answer where nothing was found."""
KEPT = 3
"""Sentences of the evidence at most."""
READ, PART = 400, 4_000
"""Sentences that are compared at most, in the order of their passages; characters of a passage's words."""
OWN, NEAR, KIND, RANK = 0.3, 0.6, 0.3, 0.02
"""Beside its likeness to the question, what a sentence gains by the question's words in it, by those around it and by
the kind of answer, and loses by each rank of its passage.
"""
SURE, BARE = 0.46, 0.3
"""What a sentence must come to, to count as found, with an encoder and without one (`_is_sure`)."""
FAR, CLOSE = 0.4, 0.9
"""Two words' likeness that counts nothing, and that counts as the same word."""
HEADING = 4
"""Words of a heading at most."""
CELL = " | "
"""Between the cells of a table's row."""
_FIGURE, _WORD = re.compile(r"\d"), re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage, what explains it (`_units`), what is compared with the question, how like it that
    is, and how well it fits.
    """

    text: str
    passage: Passage
    around: str
    said: str
    like: float = 0.0
    fit: float = 0.0


@dataclass(frozen=True)
class Reader:
    """A policy without a model (`StateReading`). `retriever` may compare texts by their meaning."""

    grammar: Grammar
    retriever: Retriever

    async def read(self, state: State, allowed: tuple[str, ...]) -> Sample:
        """The step after `state`, written in the grammar: a search, what was found, the answer."""
        actions = [self.grammar.action(name) for name in allowed]
        call = next((one for one in actions if one.retrieves), None)
        keep = next((one for one in actions if one.name in self.grammar.evidence), None)
        if call and not state.steps and not state.passages:
            action, said = call, state.question
        elif keep:
            action, said = keep, await self._kept(state)
        else:
            action, said = next((one for one in actions if one.terminal), actions[0]), await self._answer(state)
        text = action.head + action.tail(neutralise(said).replace("<", "‹"))
        return Sample((Completion(text, "written"),), Usage())

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """Raises ConfigError: it answers, and writes nothing else."""
        raise ConfigError("the extractive reader only answers questions; name a model: --model NAME, --base_url URL")

    async def _kept(self, state: State) -> str:
        """The best sentences, where they are sure to answer; else None."""
        best, asked = await self._best(state), self._asked(state)
        words = list(dict.fromkeys(_subject(asked)))
        there = list(dict.fromkeys(telling(" ".join(f"{_read(one.passage)} {one.around}" for one in best))))
        likes = zip(words, await self._alike(words, there), strict=True)
        near = {word: dict(zip(there, row, strict=True)) for word, row in likes}
        return " ".join(one.text for one in best) if _is_sure(asked, best, near) else NONE

    async def _answer(self, state: State) -> str:
        """The first sentence that was kept; of none, the best one, as a guess."""
        kept = next((step.content for step in reversed(state.steps) if step.action in self.grammar.evidence), NONE)
        if kept != NONE:
            first = (one.text for one in self._units(state) if kept.startswith(one.text))
            return max(first, key=len, default=next(sentences(kept)))
        return next((one.text for one in await self._best(state)), NONE)

    def _units(self, state: State) -> list[Sentence]:
        """The sentences of what was found, `READ` at most."""
        found = {passage.id: passage for row in (*state.earlier, state.passages) for passage in row}
        asked = self._asked(state)
        return [*islice((unit for passage in found.values() for unit in _units(asked, passage)), READ)]

    async def _best(self, state: State) -> list[Sentence]:
        """The `KEPT` sentences of what was found that fit the last query best, the best first."""
        asked, units = self._asked(state), self._units(state)
        texts = [f"{one.passage.title}\n{one.said}" for one in units]
        likes = await self._alike([asked], texts)
        return await asyncio.to_thread(_best_of, asked, units, likes[0])

    def _asked(self, state: State) -> str:
        """What was searched for last: the question, or what a person wrote in its place."""
        calls = [step.content for step in state.steps if self.grammar.action(step.action).retrieves]
        return calls[-1] if calls else state.question

    async def _alike(self, queries: Sequence[str], texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """For each query its likeness to each text; 0 where nothing can compare them."""
        if queries and texts and isinstance(self.retriever, Similar):
            return await self.retriever.alike(queries, texts)
        return [[0.0] * len(texts)] * len(queries)


def _best_of(asked: str, units: Sequence[Sentence], likes: Sequence[float]) -> list[Sentence]:
    """The best sentences for a question, each text once. `likes`: their likeness to it."""
    passages = {one.passage.id: stems(_read(one.passage)) for one in units}
    weights, ranks = _weights(asked, [*passages.values()]), {id: rank for rank, id in enumerate(passages)}
    scored, answers = dict[str, Sentence](), _answers(asked)
    is_open = english().opens.search(asked)
    for unit, like in zip(units, likes, strict=True):
        if is_open and asked.lower() in unit.text.lower():  # a text that quotes the question
            continue
        own = _met(weights, stems(unit.text))
        near = _met(weights, stems(f"{unit.passage.title} {unit.around} {unit.text}"))
        fit = (OWN * own + KIND) * answers(unit) + NEAR * near + like - RANK * ranks[unit.passage.id]
        if unit.text not in scored or scored[unit.text].fit < fit:
            scored[unit.text] = replace(unit, like=like, fit=fit)
    return sorted(scored.values(), key=lambda one: -one.fit)[:KEPT]


def _is_sure(asked: str, best: Sequence[Sentence], near: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether one of the best sentences answers: of the kind that is asked for, in a passage that has the question's
    names and numbers; like the question, and with its words in the passage and in the sentence itself, on the mean.
    `near`: the likeness of these words to those of the passages.
    """
    answers, least = _answers(asked), SURE if any(one.like for one in best) else BARE
    exact = [word for word in near if english().exact.fullmatch(word) or not (word.islower() or asked.startswith(word))]

    def support(one: Sentence) -> float:
        there = {word.lower() for word in _WORD.findall(f"{_read(one.passage)} {one.around}")}
        passage = _closeness(near, _read(one.passage))
        own = _closeness(near, f"{one.text} {spelled(asked, one.text)}")
        if not all(stands(word, there) for word in exact):
            return 0.0
        rest = [own[word] for word in near if word not in exact] or [1.0]
        return (one.like + fmean(passage.values()) + fmean(rest)) / 3

    return bool(near) and any(support(one) >= least for one in best if answers(one))


def _answers(asked: str) -> Callable[[Sentence], bool]:
    """Whether a sentence has what a question asks for (`Language.kinds`), and not in the question's own words."""
    known, wanted = stems(asked), [holds for question, holds in english().kinds if question.search(asked)]
    is_open = english().opens.search(asked)

    def answers(one: Sentence) -> bool:
        if is_open and (one.text.endswith("?") or stems(" ".join(telling(one.text))) <= known):
            return False
        return all(any(not stems(found[0]) <= known for found in kind.finditer(one.text)) for kind in wanted)

    return answers


def _subject(asked: str) -> list[str]:
    """The telling words of a question; without those that ask for a kind of answer, where others are left."""
    rest = asked
    for question, _ in english().kinds:
        rest = question.sub(" ", rest)
    return telling(rest) or telling(asked)


def _closeness(near: Mapping[str, Mapping[str, float]], text: str) -> dict[str, float]:
    """How close each word of a question comes to the nearest one of a text, from 0 to 1."""
    said, words = stems(text), telling(text)

    def close(word: str, likes: Mapping[str, float]) -> float:
        if _met({stem(word.lower()): 1.0}, said):
            return 1.0
        return min(max((max((likes[one] for one in words), default=0) - FAR) / (CLOSE - FAR), 0.0), 1.0)

    return {word: close(word, likes) for word, likes in near.items()}


def _read(passage: Passage) -> str:
    return f"{passage.title} {passage.text[:PART]}"


def _units(asked: str, passage: Passage) -> Iterator[Sentence]:
    """The sentences, list items and rows of a passage, each with what explains it: the last heading and the sentence
    before; of a row the first one of its table, where that has no figures: it names the cells, and answers nothing.
    """
    heading, before, names = "", "", None
    for text in sentences(passage.text):
        is_row = CELL in text
        if is_row and names is None:
            before = names = "" if _FIGURE.search(text) else text
            if names:
                continue
        around = f"{heading} {before} {spelled(asked, text)}"
        yield Sentence(text, passage, around, f"{heading}\n{_labelled(text, before)}")
        if not is_row:
            before, names = text, None
            heading = text if len(text.split()) <= HEADING and not _FIGURE.search(text) else heading


def _labelled(row: str, head: str) -> str:
    """A table's row with the names of its cells: "Loaf: Dark Anna, Weight: 1 kg"; any other sentence as it is."""
    names, cells = head.rstrip(".").split(CELL), row.split(CELL)
    if len(names) != len(cells) or len(cells) == 1:
        return row
    return ", ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=True))


def _weights(asked: str, passages: Sequence[frozenset[str]]) -> dict[str, float]:
    """What each telling word of a question counts, which sum to 1: more where few passages have it, or it is a name."""
    counts = Counter(word for words in passages for word in words)
    weights = {
        (root := stem(word.lower())): (1 + math.log((1 + len(passages)) / (1 + counts[root]))) * (2 - word.islower())
        for word in _subject(asked)
    }
    return {word: weight / sum(weights.values()) for word, weight in weights.items()}


def _met(weights: Mapping[str, float], said: frozenset[str]) -> float:
    """The weight of the words that are said, one letter more or less at their end; 1 where there are none to say."""
    if not weights:
        return 1.0
    known = {*said, *(word[:-1] for word in said if len(word) > 4)}
    return sum(weight for word, weight in weights.items() if word in known or (len(word) > 4 and word[:-1] in said))
