"""Searches for question and golden answer: passages that chained match reads beside those of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from indexes import open_retriever
from preference.chained import chain, is_chained
from preference.config import LabelConfig, PairsStageConfig
from steprag.agent.facts import Facts
from steprag.agent.retriever import Retriever
from steprag.errors import ConfigError, RetrieverError
from steprag.types import Passage

FOUND = 5
"""Passages of a search."""
AT_ONCE = 64
"""Trees whose searches run at the same time."""


class AnswerSearches:
    """One search a question, where chained match labels its tree and an index is given.

    `failed` counts those that the retriever could not answer: their trees are labelled by their own passages.
    """

    def __init__(self, label: LabelConfig, retriever: Retriever | None = None, run: Any = None) -> None:
        """`run` awaits a coroutine."""
        self._label, self._retriever, self._run, self.failed = label, retriever, run, 0
        self.identity = {"index": retriever.fingerprint} if retriever else {}

    def chain_all(self, trees: Iterable[tuple[Facts, str]]) -> Iterator[tuple[Facts, str]]:
        """Each tree's facts and its hash, in order, with what chained match says where the label asks it."""
        trees = iter(trees)
        while some := list(islice(trees, AT_ONCE if self._retriever else 1)):
            found: dict[str, tuple[Passage, ...]] = {}
            if self._retriever:
                asked = {key: facts for facts, key in some if is_chained(facts, self._label)}
                found = dict(zip(asked, self._run(self.search_all([*asked.values()])), strict=True))
            yield from ((chain(facts, self._label, found.get(key, ())), key) for facts, key in some)

    async def search_all(self, trees: Sequence[Facts]) -> list[tuple[Passage, ...]]:
        """The passages of each tree's search, all made at once; none where the answer can be guessed."""
        return await asyncio.gather(*map(self._search, trees))

    async def _search(self, facts: Facts) -> tuple[Passage, ...]:
        asked = facts.tree.question
        if facts.guessable or self._retriever is None:
            return ()
        try:
            return await self._retriever.search(f"{asked.question} {asked.golden_answers[0]}", FOUND)
        except RetrieverError:
            self.failed += 1
            return ()


@contextmanager
def answer_searches(index: str | None, config: PairsStageConfig) -> Iterator[AnswerSearches]:
    """Opens the index, if one is named. Raises ConfigError where the label has nothing to search."""
    label = config.label
    if index is not None and not (label.chained or label.name == "evidence"):
        raise ConfigError(
            f"--index is for chained match, and label.name is {label.name}: give --label.name cover --label.chained "
            "true, or leave --index out"
        )
    if index is None:
        yield AnswerSearches(label)
        return
    with asyncio.Runner() as runner:
        retriever = open_retriever(index, config.retriever)
        try:
            runner.run(retriever.ready())
            yield AnswerSearches(label, retriever, runner.run)
        finally:
            runner.run(retriever.aclose())
