"""The judge: a model that scores how far the steps of an episode have come, and answers small questions about texts.

The questions are those of RAGAS (`steprag/agent/rewards.py` has its formulas): which claims a text makes, whether
passages bear them out, what a text answers. Each reply is one constrained line, so that a small judge can give it and
nothing has to be guessed out of prose.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from steprag.agent.inert import neutralise
from steprag.agent.profiles import fill
from steprag.config.sections import JudgeConfig
from steprag.errors import ConfigError, PolicyError, quoted
from steprag.policy.protocols import Policy, Repeating
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import file_hash
from steprag.records.yaml_files import read_yaml
from steprag.types import Message, Passage, Question, State, Usage

Read = TypeVar("Read")
_FILES = Path(__file__).parents[2] / "configs" / "judge"
PROMPT, VERDICTS_PROMPT = _FILES / "default.yaml", _FILES / "ragas.yaml"
TRIES = 2
"""Requests for one score: an unreadable reply is asked for once more, unless the judge would repeat it."""
MORE = {"between": "\n", "between_answers": " / ", "reply": "score"}
"""Further keys of a prompt that grades steps: what stands between steps and between answers, and what a reply is: a
`score` alone, or a `critique` that ends in one (`parse_critique`)."""
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
    "score": 'root ::= "100" | [1-9] [0-9]? | "0"\n',
    "critique": "root ::= [^\\x00]+\n",
    "claims": f'root ::= "{{\\"claims\\": [" (text (", " text){{0,{MOST_CLAIMS - 1}}})? "]}}"\ntext ::= {_TEXT}\n',
    "right": 'root ::= "yes" | "no"\n',
    "yes": f'root ::= "{{\\"yes\\": " {_TRUTH} "}}"\n',
    "asked": (f'root ::= "{{\\"question\\": " text ", \\"noncommittal\\": " {_TRUTH} "}}"\ntext ::= {_TEXT}\n'),
}
_WORDS = f'"[^"\\\\\\n]{{1,{CHARS}}}"'
_REGEX: dict[str, str] = {
    "score": "100|[1-9][0-9]?|0",
    "critique": r"[\s\S]+",
    "claims": rf'\{{"claims": \[(?:{_WORDS}(?:, {_WORDS}){{0,{MOST_CLAIMS - 1}}})?\]\}}',
    "right": "yes|no",
    "yes": r'\{"yes": (?:true|false)\}',
    "asked": rf'\{{"question": {_WORDS}, "noncommittal": (?:true|false)\}}',
}
_PROPERTIES: dict[str, dict[str, Any]] = {
    "score": {"score": {"type": "integer", "minimum": 0, "maximum": 100}},
    "claims": {"claims": {"type": "array", "items": {"type": "string"}}},
    "right": {"right": {"type": "boolean"}},
    "yes": {"yes": {"type": "boolean"}},
    "asked": {"question": {"type": "string"}, "noncommittal": {"type": "boolean"}},
}


@dataclass(frozen=True)
class VerdictFormat:
    """What a reply of the judge looks like, by what it is asked: a score is a whole number from 0 to 100 and nothing
    else, right or wrong is yes or no, except for endpoints that constrain by a JSON schema alone; a critique is text.
    """

    stop: tuple[str, ...] = ()
    thinks: bool = False

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar."""
        return _GBNF[_form(allowed)]

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The same as a regular expression."""
        return _REGEX[_form(allowed)]

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """The same as a JSON schema."""
        if (properties := _PROPERTIES.get(_form(allowed))) is None:
            return None
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _form(allowed: tuple[str, ...]) -> str:
    return {"supported": "yes", "useful": "yes"}.get(allowed[0], allowed[0])


@dataclass(frozen=True)
class Judgement(Generic[Read]):
    """`score`: what was read, None where no reply could be; `text` is the last reply; `usage` of all replies."""

    score: Read | None
    text: str
    usage: Usage


@dataclass(frozen=True)
class Judge:
    """Scores states. `gold`: it is shown the golden answers. `prompt`: its words (`prompt_of`)."""

    policy: Policy
    gold: bool
    prompt: Path = PROMPT

    async def score(self, question: Question, state: State, *, seed: int) -> Judgement[float]:
        """From 0 to 1. Raises PolicyError."""
        messages = render(question, state, gold=self.gold, prompt=self.prompt)
        reply = {**MORE, **words_of(self.prompt)}["reply"]
        return await asked(self.policy, messages, (reply,), REPLIES[reply], seed=seed)


async def asked(
    policy: Policy,
    messages: tuple[Message, ...],
    allowed: tuple[str, ...],
    parse: Callable[[str], Read | None],
    *,
    seed: int,
) -> Judgement[Read]:
    """The value that `parse` reads in the reply; an unreadable reply is asked for again. Raises PolicyError, also where
    all tokens went into reasoning.
    """
    usage, text, thought = Usage(), "", 0
    for attempt in range(TRIES):
        sample = await policy.sample(messages, allowed, n=1, seed=seed + attempt)
        usage += sample.usage
        text, thought = sample.completions[0].text, len(sample.completions[0].reasoning)
        value = parse(text)
        if value is not None:
            return Judgement(value, text, usage)
        if isinstance(policy, Repeating) and policy.repeats(messages, allowed):
            break
    if thought and not text.strip():
        raise PolicyError(
            f"the judge wrote {thought:,} characters of reasoning and no reply: raise judge.max_tokens, or turn "
            "thinking off: judge.chat_template_kwargs '{enable_thinking: false}'"
        )
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


_CONCLUDED = re.compile(r"score is[^\w+.-]{0,9}([+-]?\d{1,9}(?:\.\d{1,9})?)", re.IGNORECASE)


def parse_critique(reply: str) -> float | None:
    """The last score that a critique states ("So the score is [85]"), where it is from 0 to 100; else None."""
    stated = _CONCLUDED.findall(reply)
    return float(stated[-1]) / 100 if stated and 0 <= float(stated[-1]) <= 100 else None


REPLIES = {"score": parse_score, "critique": parse_critique}
"""How a reply is read, by the key `reply` of a judge's prompt."""


def render(question: Question, state: State, *, gold: bool, prompt: Path = PROMPT) -> tuple[Message, ...]:
    """The judge's prompt: question, golden answers if it may see them, and the steps as they were written."""
    words = {"gold": "", **MORE, **words_of(prompt)}
    answers = neutralise(words["between_answers"].join(question.golden_answers))
    told = fill(words["gold"], answers=answers) if gold else ""
    steps = words["between"].join(step.text for step in state.steps)
    user = fill(words["user"], question=neutralise(question.question), gold=told, steps=steps).strip()
    return (Message(role="system", content=words["system"]), Message(role="user", content=user))


def prompt_of(judge: JudgeConfig, given: Path = PROMPT, shown: Sequence[str] = ("question", "steps")) -> Path:
    """The prompt file of a judge: the user's or one of ours by its name, or the one that is `given`. Raises ConfigError
    for a file without the texts `system` and `user`, with a key that `given` lacks, or whose user turn leaves out one
    of `shown`.
    """
    if judge.prompt is None:
        return given
    file, ours = Path(judge.prompt), _FILES / f"{judge.prompt}.yaml"
    file = ours if not os.path.exists(file) and os.path.isfile(ours) else file
    words, known = read_yaml(file), {**words_of(given), **(MORE if given == PROMPT else {})}
    needed = {"system": None, "user": None, **words}
    if wrong := [key for key, text in needed.items() if key not in known or not isinstance(text, str)]:
        raise ConfigError(f"judge.prompt: {file}: {quoted(wrong[0])}: give the texts {', '.join(known)}")
    if (reply := words.get("reply", "score")) not in REPLIES:
        raise ConfigError(f"judge.prompt: {file}: reply {quoted(reply)} is none of {', '.join(REPLIES)}")
    if missing := [name for name in shown if f"{{{name}}}" not in words["user"]]:
        raise ConfigError(f"judge.prompt: {file}: user does not show {{{missing[0]}}}; write it where it belongs")
    return file


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
    return "\n".join(": ".join(filter(None, (passage.title, passage.text))) for passage in passages)


def _messages(asking: Asking, **words: str) -> tuple[Message, ...]:
    return messages_of(words_of(VERDICTS_PROMPT)[asking], **words)


def messages_of(told: dict[str, str], **words: str) -> tuple[Message, ...]:
    """The prompt; whatever it is filled with is data, and inert."""
    user = fill(told["user"], **{name: neutralise(text) for name, text in words.items()}).strip()
    return (Message(role="system", content=told["system"].strip()), Message(role="user", content=user))


@cache
def words_of(file: Path) -> dict[str, Any]:
    """A prompt file of the judge."""
    return read_yaml(file)


def prompt_hash(file: Path = PROMPT) -> str:
    """16 hex digits of a prompt file of the judge: part of a run's identity."""
    return file_hash(file)[:16]
