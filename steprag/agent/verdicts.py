"""Small questions to the judge: which claims a text makes, whether passages bear them out, what a text answers.

They are the questions of RAGAS (its formulas: `training/play/rewards.py`), each with a reply of one constrained line of
JSON, so that a small judge can give it and nothing has to be guessed out of prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from steprag.agent.inert import neutralise
from steprag.agent.judge import ScoreFormat, asked
from steprag.agent.profiles import fill
from steprag.policy.protocols import Policy
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import file_hash
from steprag.records.yaml_files import read_yaml
from steprag.types import Message, Passage

PROMPT = Path(__file__).parents[2] / "configs" / "judge" / "ragas.yaml"
Asking = Literal["claims", "supported", "useful", "asked"]
MOST_CLAIMS = 8
"""Claims that are read of one text."""
CHARS = 300
"""Characters of a claim or a question in constrained output."""
TOKENS = 512
"""Tokens that the longest reply may need."""
STRICTNESS = 3
"""Questions that are written back from an answer, as many as RAGAS writes."""

_TEXT = f'"\\"" [^"\\\\\\n]{{1,{CHARS}}} "\\""'
_TRUTH = '("true" | "false")'
_GBNF: dict[str, str] = {
    "claims": f'root ::= "{{\\"claims\\": [" (text (", " text){{0,{MOST_CLAIMS - 1}}})? "]}}"\ntext ::= {_TEXT}\n',
    "yes": f'root ::= "{{\\"yes\\": " {_TRUTH} "}}"\n',
    "asked": (f'root ::= "{{\\"question\\": " text ", \\"noncommittal\\": " {_TRUTH} "}}"\ntext ::= {_TEXT}\n'),
}
_WORDS = f'"[^"\\\\\\n]{{1,{CHARS}}}"'
_REGEX: dict[str, str] = {
    "claims": rf'\{{"claims": \[(?:{_WORDS}(?:, {_WORDS}){{0,{MOST_CLAIMS - 1}}})?\]\}}',
    "yes": r'\{"yes": (?:true|false)\}',
    "asked": rf'\{{"question": {_WORDS}, "noncommittal": (?:true|false)\}}',
}
_PROPERTIES: dict[str, dict[str, Any]] = {
    "claims": {"claims": {"type": "array", "items": {"type": "string"}}},
    "yes": {"yes": {"type": "boolean"}},
    "asked": {"question": {"type": "string"}, "noncommittal": {"type": "boolean"}},
}


@dataclass(frozen=True)
class VerdictFormat:
    """What a reply of the judge looks like, by what it is asked; its score of an episode is one of these questions."""

    stop: tuple[str, ...] = ()
    score: ScoreFormat = field(default_factory=ScoreFormat)

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar."""
        return self.score.gbnf(allowed) if allowed == ("score",) else _GBNF[_form(allowed)]

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The same as a regular expression."""
        return self.score.regex(allowed) if allowed == ("score",) else _REGEX[_form(allowed)]

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """The same as a JSON schema."""
        if allowed == ("score",):
            return self.score.schema(allowed)
        properties = _PROPERTIES[_form(allowed)]
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _form(allowed: tuple[str, ...]) -> str:
    return {"supported": "yes", "useful": "yes"}.get(allowed[0], allowed[0])


@dataclass(frozen=True)
class WrittenBack:
    """A question that an answer would answer, and whether the answer is evasive."""

    question: str
    noncommittal: bool


async def claims_of(policy: Policy, question: str, text: str, *, seed: int) -> tuple[str, ...] | None:
    """The statements that `text` makes, MOST_CLAIMS at most; None where no reply could be read. Raises PolicyError."""

    def read(reply: str) -> tuple[str, ...] | None:
        claims = (_object(reply, "claims") or {}).get("claims")
        if not isinstance(claims, list) or not all(isinstance(claim, str) for claim in claims):
            return None
        return tuple(claim for claim in claims if claim.strip())[:MOST_CLAIMS]

    messages = _messages("claims", question=question, text=text)
    return (await asked(policy, messages, ("claims",), read, seed=seed)).score


async def is_supported(policy: Policy, claim: str, passages: Sequence[Passage], *, seed: int) -> bool | None:
    """Whether the passages say `claim`; None where no reply could be read. Raises PolicyError."""
    return await _yes(policy, "supported", seed, text=claim, passages=_shown(passages))


async def is_useful(policy: Policy, question: str, answer: str, passage: Passage, *, seed: int) -> bool | None:
    """Whether a passage helped to `answer`; None where no reply could be read. Raises PolicyError."""
    return await _yes(policy, "useful", seed, question=question, text=answer, passages=_shown([passage]))


async def written_back(policy: Policy, answer: str, *, seed: int, n: int = STRICTNESS) -> tuple[WrittenBack, ...]:
    """`n` questions that `answer` would answer, without those that could not be read. Raises PolicyError."""
    sample = await policy.sample(_messages("asked", text=answer), ("asked",), n=n, seed=seed)
    read = [_object(one.text, "question", "noncommittal") for one in sample.completions]
    return tuple(
        WrittenBack(one["question"], one["noncommittal"])
        for one in read
        if one and isinstance(one["question"], str) and isinstance(one["noncommittal"], bool)
    )


async def _yes(policy: Policy, asking: Asking, seed: int, **words: str) -> bool | None:
    def read(reply: str) -> bool | None:
        yes = (_object(reply, "yes") or {}).get("yes")
        return yes if isinstance(yes, bool) else None

    return (await asked(policy, _messages(asking, **words), (asking,), read, seed=seed)).score


def _object(reply: str, *keys: str) -> dict[str, Any] | None:
    try:
        value = decoded(reply.strip())
    except NotJson:
        return None
    return value if isinstance(value, dict) and set(value) == {*keys} else None


def _shown(passages: Sequence[Passage]) -> str:
    return "\n".join(f"{passage.title}: {passage.text}" for passage in passages)


def _messages(asking: Asking, **words: str) -> tuple[Message, ...]:
    """The prompt; whatever it is filled with is data, and inert."""
    told = _words()[asking]
    user = fill(told["user"], **{name: neutralise(text) for name, text in words.items()}).strip()
    return (Message(role="system", content=told["system"].strip()), Message(role="user", content=user))


@cache
def _words() -> dict[str, Any]:
    return read_yaml(PROMPT)


def prompt_hash() -> str:
    """16 hex digits of the prompt file: part of a run's identity."""
    return file_hash(PROMPT)[:16]
