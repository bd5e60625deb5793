"""What a journal puts between a question and the model or index that it asks; and the names that calls have in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import partial

from steprag.agent.retriever import Retriever
from steprag.batch.database import CallKey
from steprag.errors import ConfigError
from steprag.policy.gate import Gate, chars_of
from steprag.policy.open import Model
from steprag.policy.protocols import Policy, Repeating, Scorer
from steprag.types import Message, Passage, Sample, Usage

Request = Callable[[], Awaitable[Sample]]
Ask = Callable[[CallKey, Gate, int, Request], Awaitable[Sample]]
"""Answers a call from the journal, or sends its request through the gate: `QuestionCalls.sample`."""
Search = Callable[[str, int, Retriever], Awaitable[tuple[Passage, ...]]]
"""Answers a search from the journal, or by the retriever: `QuestionCalls.search`."""
SCORE = "score"
"""The role of calls that score a text."""


def state_of(messages: tuple[Message, ...], allowed: tuple[str, ...]) -> str:
    """Short name of what a policy saw: the hash of the prompt and the allowed actions."""
    text = json.dumps([messages, allowed], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def scorer_of(model: Model) -> Scorer:
    """The model as one that scores texts. Raises ConfigError where it cannot."""
    if isinstance(model.policy, Scorer):
        return model.policy
    raise ConfigError("this policy cannot score; label without a model (label.name=cover)")


class JournalledPolicy:
    """A policy whose replies are journalled, each under its question."""

    def __init__(self, ask: Ask, policy: Policy, role: str, gate: Gate) -> None:
        self._ask, self._policy, self._role, self._gate = ask, policy, role, gate

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """One request, and more where the endpoint gives fewer than `n` completions for one."""
        state, chars = state_of(messages, allowed), chars_of(messages)
        whole = Sample((), Usage())
        while (missing := n - len(whole.completions)) > 0:
            place = seed + len(whole.completions)
            request = partial(self._policy.sample, messages, allowed, n=missing, seed=place)
            part = await self._ask((self._role, state, place, missing), self._gate, chars, request)
            both = whole.completions + part.completions
            whole = Sample(both, whole.usage + part.usage) if whole.completions else part
        return whole

    def repeats(self, messages: tuple[Message, ...], allowed: tuple[str, ...]) -> bool:
        """As the policy itself."""
        return isinstance(self._policy, Repeating) and self._policy.repeats(messages, allowed)


class JournalledScorer:
    """A scorer whose numbers are journalled."""

    def __init__(self, ask: Ask, scorer: Scorer, gate: Gate) -> None:
        self._ask, self._scorer, self._gate = ask, scorer, gate

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        chars, request = chars_of(messages), partial(self._scorer.score, messages, text)
        return await self._ask((SCORE, state_of(messages, (text,)), 0, 1), self._gate, chars, request)


class JournalledRetriever:
    """A retriever whose searches are journalled."""

    def __init__(self, search: Search, retriever: Retriever) -> None:
        self._search, self._retriever, self.fingerprint = search, retriever, retriever.fingerprint

    async def ready(self) -> None:
        await self._retriever.ready()

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        return await self._search(query, top_k, self._retriever)

    async def aclose(self) -> None:
        """The retriever belongs to the run, not to this question."""
