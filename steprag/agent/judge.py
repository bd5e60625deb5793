"""The judge: a model that scores how far the steps of an episode have come."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from steprag.agent.inert import neutralise
from steprag.agent.profiles import fill
from steprag.policy.protocols import Policy, Repeating
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import file_hash
from steprag.records.yaml_files import read_yaml
from steprag.types import Message, Question, State, Usage

Read = TypeVar("Read")
PROMPT = Path(__file__).parents[2] / "configs" / "judge" / "default.yaml"
TRIES = 2
"""Requests for one score: an unreadable reply is asked for once more, unless the judge would repeat it."""


@dataclass(frozen=True)
class ScoreFormat:
    """A whole number from 0 to 100 and nothing else, in each engine's dialect of constrained output."""

    stop: tuple[str, ...] = ()

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar of the number; `allowed` changes nothing."""
        return 'root ::= "100" | [1-9] [0-9]? | "0"\n'

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The regular expression of the number; `allowed` changes nothing."""
        return "100|[1-9][0-9]?|0"

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """The JSON schema `{"score": 0…100}`, for endpoints that constrain by schema alone."""
        return {
            "type": "object",
            "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 100}},
            "required": ["score"],
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class Judgement(Generic[Read]):
    """`score`: what was read, None where no reply could be; `text` is the last reply; `usage` of all replies."""

    score: Read | None
    text: str
    usage: Usage


@dataclass(frozen=True)
class Judge:
    """Scores states. `gold`: it is shown the golden answers."""

    policy: Policy
    gold: bool

    async def score(self, question: Question, state: State, *, seed: int) -> Judgement[float]:
        """From 0 to 1. Raises PolicyError."""
        messages = render(question, state, gold=self.gold)
        return await asked(self.policy, messages, ("score",), parse_score, seed=seed)


async def asked(
    policy: Policy,
    messages: tuple[Message, ...],
    allowed: tuple[str, ...],
    parse: Callable[[str], Read | None],
    *,
    seed: int,
) -> Judgement[Read]:
    """The value that `parse` reads in the reply; an unreadable reply is asked for anew. Raises PolicyError."""
    usage, text = Usage(), ""
    for attempt in range(TRIES):
        sample = await policy.sample(messages, allowed, n=1, seed=seed + attempt)
        usage += sample.usage
        text = sample.completions[0].text
        value = parse(text)
        if value is not None or (isinstance(policy, Repeating) and policy.repeats(messages, allowed)):
            return Judgement(value, text, usage)
    return Judgement(None, text, usage)


def parse_score(reply: str) -> float | None:
    """The score of a reply that is a whole number from 0 to 100, or {"score": such a number}; else None."""
    text = reply.strip()
    if text.startswith("{"):
        try:
            value = decoded(text)
        except NotJson:
            return None
        number = value.get("score") if set(value) == {"score"} else None
        return number / 100 if type(number) is int and 0 <= number <= 100 else None
    return int(text) / 100 if re.fullmatch(r"100|[1-9]?[0-9]", text) else None


def render(question: Question, state: State, *, gold: bool) -> tuple[Message, ...]:
    """The judge's prompt: question, golden answers if it may see them, and the steps as they were written."""
    words = _words()
    told = fill(words["gold"], answers=neutralise(" / ".join(question.golden_answers))) if gold else ""
    steps = "\n".join(step.text for step in state.steps)
    user = fill(words["user"], question=neutralise(question.question), gold=told, steps=steps).strip()
    return (Message(role="system", content=words["system"]), Message(role="user", content=user))


@cache
def _words() -> dict[str, str]:
    return read_yaml(PROMPT)


def prompt_hash() -> str:
    """16 hex digits of the judge's prompt file: part of a run's identity."""
    return file_hash(PROMPT)[:16]
