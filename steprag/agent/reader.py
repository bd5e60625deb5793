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
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

from steprag.agent.grammar import Grammar
from steprag.agent.inert import neutralise
from steprag.agent.retriever import Retriever, Similar
from steprag.errors import ConfigError
from steprag.records.yaml_files import read_yaml
from steprag.types import Completion, Message, Passage, Sample, State, Usage

ENGLISH = Path(__file__).parents[2] / "configs" / "reader.yaml"
NONE = "None"
"""The content of evidence that keeps nothing, and the answer where nothing was found."""
KEPT = 3
"""Sentences of the evidence at most."""
READ, LONGEST, PART = 400, 400, 4_000
"""Sentences that are compared at most, in the order of their passages; characters of each, and of a passage's words."""
OWN, NEAR, KIND, RANK = 0.3, 0.6, 0.3, 0.02
"""Beside its likeness to the question, what a sentence gains by the question's words in it, by those around it and by
the kind of answer, and loses by each rank of its passage.
"""
SURE = 0.58
"""What the best sentences must reach to count as found, from 0 to 1 (`_is_sure`), as the benchmark's files have it."""
FAR, CLOSE = 0.3, 0.75
"""Two words' likeness that counts nothing, and that counts as the same word."""
HEADING = 4
"""Words of a heading at most."""
CELL = " | "
"""Between the cells of a table's row."""
_FIGURE, _WORD, _NAMED = re.compile(r"\d"), re.compile(r"[^\W_]{1,40}"), re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class Language:
    """`small`: words that say nothing of a subject; `endings` of words; `end`: where a sentence ends; `kinds`: what a
    question asks for, and what answers it.
    """

    small: frozenset[str]
    endings: tuple[str, ...]
    end: re.Pattern[str]
    open: re.Pattern[str]
    refers: re.Pattern[str]
    kinds: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]


@cache
def english() -> Language:
    """`ENGLISH`, read once."""
    told = read_yaml(ENGLISH)
    short = "".join(rf"(?<!\b{re.escape(one)})" for one in told["short"].split())
    end = rf"(?<!\b[A-Z]){short}[.!?…][\"'”’)\]]?(?=\s+[^a-z\s])|[。！？]|\n"
    parts: dict[str, str] = {}
    for name, part in told["parts"].items():
        parts[name] = _NAMED.sub(lambda found: parts[found[1]], part)
    kinds = (
        [re.compile(_NAMED.sub(lambda found: parts[found[1]], one[key]), re.I) for key in ("asked", "holds")]
        for one in told["kinds"]
    )
    return Language(
        frozenset(told["small"].split()),
        tuple(told["endings"].split()),
        re.compile(end),
        re.compile(told["open"], re.I),
        re.compile(told["refers"], re.I),
        tuple((asked, holds) for asked, holds in kinds),
    )


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage, what explains it (`_units`), its likeness to the question, and how well it fits."""

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
        words = list(dict.fromkeys(_telling(asked)))
        read = " ".join(f"{_read(one.passage)} {one.around} {one.text}" for one in best)
        there = list(dict.fromkeys(_telling(read)))
        near = dict(zip(words, await self._alike(words, there), strict=True))
        sure = _is_sure(asked, best, {word: dict(zip(there, row, strict=True)) for word, row in near.items()})
        return " ".join(one.text for one in best) if sure else NONE

    async def _answer(self, state: State) -> str:
        """The first sentence that was kept; of none, the best one, as a guess."""
        kept = next((step.content for step in reversed(state.steps) if step.action in self.grammar.evidence), NONE)
        if kept != NONE:
            return next(_sentences(kept))
        return next((one.text for one in await self._best(state)), NONE)

    async def _best(self, state: State) -> list[Sentence]:
        """The `KEPT` sentences of what was found that fit the last query best, the best first."""
        found = {passage.id: passage for row in (*state.earlier, state.passages) for passage in row}
        units = [*islice((unit for passage in found.values() for unit in _units(passage)), READ)]
        texts = [f"{one.passage.title}\n{one.said}" for one in units]
        asked = self._asked(state)
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
    passages = {one.passage.id: _stems(_read(one.passage)) for one in units}
    weights, ranks = _weights(asked, [*passages.values()]), {id: rank for rank, id in enumerate(passages)}
    scored, answers = dict[str, Sentence](), _answers(asked)
    for unit, like in zip(units, likes, strict=True):
        own = _met(weights, _stems(unit.text))
        near = _met(weights, _stems(f"{unit.passage.title} {unit.around} {unit.text}"))
        fit = OWN * own + NEAR * near + like + KIND * answers(unit) - RANK * ranks[unit.passage.id]
        if unit.text not in scored or scored[unit.text].fit < fit:
            scored[unit.text] = replace(unit, like=like, fit=fit)
    return sorted(scored.values(), key=lambda one: -one.fit)[:KEPT]


def _is_sure(asked: str, best: Sequence[Sentence], near: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether a sentence among the best answers: of the kind that is asked for, in a passage that has the question's
    words or close ones, has them itself, and is like the question. `near`: the likeness of these words to those.
    """
    answers = _answers(asked)
    fitting = [one for one in best if answers(one)]
    passage = max((_closeness(near, _read(one.passage)) for one in fitting), default=0)
    sentence = max((_closeness(near, f"{one.around} {one.text}") for one in fitting), default=0)
    return passage / 2 + sentence / 4 + max((one.like for one in fitting), default=0) / 4 >= SURE


def _answers(asked: str) -> Callable[[Sentence], bool]:
    """Whether a sentence has what a question asks for (`Language.kinds`), and not in the question's own words."""
    known, wanted = _stems(asked), [holds for question, holds in english().kinds if question.search(asked)]
    is_open = english().open.search(asked)

    def answers(one: Sentence) -> bool:
        if is_open and (one.text.endswith("?") or _stems(" ".join(_telling(one.text))) <= known):
            return False
        return all(any(not _stems(found[0]) <= known for found in kind.finditer(one.text)) for kind in wanted)

    return answers


def _closeness(near: Mapping[str, Mapping[str, float]], text: str) -> float:
    """How close the words of a question come to those of a text, from 0 to 1: the mean of their nearest ones; 0
    where no word of it says what it is about.
    """
    said, words = _stems(text), _telling(text)
    close = [
        max(
            _met({_stem(word.lower()): 1.0}, said),
            (max((likes[one] for one in words), default=0) - FAR) / (CLOSE - FAR),
        )
        for word, likes in near.items()
    ]
    return sum(min(max(one, 0.0), 1.0) for one in close) / len(close) if close else 0.0


def _read(passage: Passage) -> str:
    return f"{passage.title} {passage.text[:PART]}"


def _units(passage: Passage) -> Iterator[Sentence]:
    """The sentences, list items and rows of a passage, each with what explains it: the sentence before, which a pronoun
    may mean; of a row the first one of its table, where that has no figures: it names the cells, and answers nothing.
    """
    before, head, names = "", "", None
    for text in _sentences(passage.text):
        is_row = CELL in text
        if is_row and names is None and not _FIGURE.search(text):
            names = text
            continue
        if is_row:
            yield Sentence(text, passage, f"{head} {names or ''}", f"{head}\n{_labelled(text, names or '')}")
            before, names = "", names or ""
            continue
        said = f"{before} {text}" if english().refers.match(text) else text
        yield Sentence(text, passage, f"{head} {before}", f"{head}\n{said}")
        before, names = text, None
        if len(text.split()) <= HEADING and not _FIGURE.search(text):
            head = text


def _labelled(row: str, head: str) -> str:
    """A table's row with the names of its cells: "Loaf: Dark Anna, Weight: 1 kg"; any other sentence as it is."""
    names, cells = head.rstrip(".").split(CELL), row.split(CELL)
    if len(names) != len(cells) or len(cells) == 1:
        return row
    return ", ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=True))


def _sentences(text: str) -> Iterator[str]:
    """Sentences and lines; one without a mark at its end is given a full stop, so that it stays apart from others."""
    start = 0
    for end in (*(found.end() for found in english().end.finditer(text)), len(text)):
        if sentence := " ".join(text[start:end].split())[:LONGEST]:
            yield sentence if sentence[-1] in ".!?…。！？\"'”’)]:" else f"{sentence}."
        start = end


def _telling(text: str) -> list[str]:
    """The words of a text that say what it is about."""
    return [word for word in _WORD.findall(text) if len(word) > 1 and word.lower() not in english().small]


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    """A word of lower case without its endings, as long as four letters are left; three before an s."""
    while end := next(
        (one for one in english().endings if word.endswith(one) and len(word) - len(one) > 3 - (one == "s")), ""
    ):
        word = word.removesuffix(end)
    return word


def _stems(text: str) -> frozenset[str]:
    return frozenset(_stem(found.lower()) for found in _WORD.findall(text))


def _weights(asked: str, passages: Sequence[frozenset[str]]) -> dict[str, float]:
    """What each telling word of a question counts, which sum to 1: more where few passages have it, or it is a name."""
    counts = Counter(word for words in passages for word in words)
    weights = {
        (stem := _stem(word.lower())): (1 + math.log((1 + len(passages)) / (1 + counts[stem]))) * (2 - word.islower())
        for word in _telling(asked)
    }
    return {word: weight / sum(weights.values()) for word, weight in weights.items()}


def _met(weights: Mapping[str, float], said: frozenset[str]) -> float:
    """The weight of the words that are said, one letter more or less at their end; 1 where there are none to say."""
    if not weights:
        return 1.0
    known = {*said, *(word[:-1] for word in said if len(word) > 4)}
    return sum(weight for word, weight in weights.items() if word in known or (len(word) > 4 and word[:-1] in said))
