"""A question that leans on earlier ones, made to stand alone: the agent only sees questions as it was trained on them.

A model of the user's choice rewrites; without one the question stays as it was typed. A capable model writes the
question. A small one chooses: it is offered the question with each name of the last exchange in the pronoun's place,
and constrained output admits only these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from steprag.agent.citations import NOT_FOUND
from steprag.agent.inert import neutralise
from steprag.agent.profiles import fill
from steprag.agent.talk import kinds_of
from steprag.policy.open import Model
from steprag.policy.protocols import Policy
from steprag.records.yaml_files import read_yaml
from steprag.types import Message

PROMPT = Path(__file__).parents[2] / "configs" / "chat" / "rewrite.yaml"
ROLE = "rewriter"
"""The role of its calls in the journal."""
LONGEST = 400
"""Characters of a rewritten question."""
MOST = 16
"""Rewritings that are offered."""
_PRONOUN = re.compile(r"\b(it|its|he|him|his|she|her|hers|they|them|their|theirs)\b", re.IGNORECASE)
_POSSESSIVE = frozenset({"its", "his", "her", "hers", "their", "theirs"})
_WORD = r"[^\W\d_a-zß-öø-ÿ][\w'’-]*\.?"
_LINK = "of|the|in|and|for|on|am|de|del|la|le|von|van|da|di"
_NAME = re.compile(rf"{_WORD}(?:(?:,? (?:(?:{_LINK}) )*)(?:{_WORD}|\d+))*")
"""Words in upper case, with small words between them: "Bank of England", "Fort Smith, Arkansas"."""
_LEAD = re.compile(r"\b(?:is|are|was|were|of|about|by|in|to|on|for|called)\b")
"""Words before what a question asks about."""
_DONE_TO = re.compile(r"\b(?:is|are|was|were) ([^?]{1,80}) (?:[a-z]{2,20}ed|born|built|found|known|made|written)$")
"""What a question in the passive asks about: "In which year was radium discovered"."""
_AUXILIARY = "do|does|did|can|could|is|are|was|were"
_ASKS_WHO_DOES = re.compile(rf"(?:which|what) (?!(?:{_AUXILIARY})\b)|who\b", re.IGNORECASE)
_ASKS_OTHERS = re.compile(r"\b(?:do|does|did|can|could|(?:is|are|was|were) (?:\S{1,40} ){0,4}?[a-z]{2,20}(?:ed|en))\b")
"""A question that begins as the first and holds no second is about its answer: "Which country borders Chile?"."""
_DESCRIBED = re.compile(
    r"\b(?:the|a|an) (?:[\w-]{1,30} ){1,3}?(?:whose|that|which|who|where|with|[a-z]{2,20}ed (?:by|in))\b|"
    r"\b(?:do|does|did) (?:the|a|an) (?:[\w-]{1,30} ){1,3}?of\b", re.IGNORECASE
)  # fmt: skip
"""What a question means and does not name: "the country whose capital is Lima". A pronoun may stand for it."""
_BARE = re.compile(r"(?:(?:and|but|what about|how about)\b[ ,]*)?(?:its|his|her|their)\b", re.IGNORECASE)
"""A question without a verb, "And its currency?": it asks the same thing for something else."""
_NO_NAME = re.compile(r"[\W\d_]*|i|me|you|yes|no|none|unknown", re.IGNORECASE)
READ = 4_000
"""Characters of an earlier question or answer in which names are looked for, from its end."""
_FIRST = re.compile("Since|Until|Before|After|During|Through|Into|Under|Over|Among|Between")
_OPENER = re.compile(
    "What|Which|Who|Whom|Whose|When|Where|Why|How|Is|Are|Was|Were|Does|Do|Did|Can|Could|In|On|At|By|For|To|From|"
    "Of|And|The|A|An|It|Its|He|She|They|Their|His|Her|This|That|These|Those|Some|There|If|As|With|Tell|Name"
)
_LINE = re.compile(rf"[^<>\n\r]{{1,{LONGEST}}}")
Exchange = tuple[str, str]
"""An earlier question, as the agent saw it, and its answer."""


@dataclass(frozen=True)
class LineFormat:
    """A line of text, in each engine's dialect of constrained output; to `choose`, one of those given as `allowed`."""

    choose: bool = False
    stop: tuple[str, ...] = ("\n",)
    thinks: bool = False

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar of the line."""
        if not self.choose:
            return f"root ::= [^<>\\n ] [^<>\\n]{{0,{LONGEST}}}\n"
        return f"root ::= {' | '.join(json.dumps(line, ensure_ascii=False) for line in allowed)}\n"

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The regular expression of the line."""
        return "|".join(map(re.escape, allowed)) if self.choose else f"[^<>\\n ][^<>\\n]{{0,{LONGEST}}}"

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """None: a line of text needs no JSON."""


@dataclass(frozen=True)
class Rewriter:
    """The model that rewrites. `choose`: it chooses, else it writes; its LineFormat has the same `choose`."""

    model: Model
    choose: bool

    async def standalone(self, policy: Policy, history: Sequence[Exchange], asked: str, *, seed: int) -> str:
        """`asked` in words that need no earlier turn, by the model behind `policy`; as it was typed if the reply cannot
        be used. Raises PolicyError.
        """
        if not history:
            return asked
        if not self.choose:
            sample = await policy.sample(render(history, asked), (ROLE,), n=1, seed=seed)
            return _line(sample.completions[0].text) or asked
        lines = tuple(line for line in rewritings(history, asked) if _LINE.fullmatch(line))
        if len(lines) < 2:
            return lines[0] if lines else asked
        sample = await policy.sample(render(history, asked, "choose"), lines, n=1, seed=seed)
        chosen = sample.completions[0].text.strip()
        return chosen if chosen in lines else asked


def fitting(history: Sequence[Exchange], room: int | None) -> tuple[Exchange, ...]:
    """The last exchanges that have at most `room` characters together; None: all."""
    kept = len(history)
    while room is not None and kept and (room := room - sum(map(len, history[kept - 1]))) >= 0:
        kept -= 1
    return tuple(history if room is None else history[kept:])


def render(history: Sequence[Exchange], asked: str, task: str = "system") -> tuple[Message, ...]:
    """The rewriter's prompt: the earlier turns in order, and the question. Their texts are data, and made inert.
    `task`: "system" to write, "choose" to choose.
    """
    words = _words()
    turns = "\n".join(
        fill(words["turn"], question=neutralise(question), answer=neutralise(answer)) for question, answer in history
    )
    user = fill(words["user"], turns=turns, question=neutralise(asked)).strip()
    return (Message(role="system", content=words[task]), Message(role="user", content=user))


def _line(reply: str) -> str:
    """The reply's first line without a label in front and quotes around it."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    bare = re.sub(r"^(?:standalone |rewritten )?question\s*:\s*", "", lines[0], flags=re.IGNORECASE) if lines else ""
    return bare.strip().strip('"').strip()[:LONGEST]


@cache
def _words() -> dict[str, str]:
    return read_yaml(PROMPT)


def rewritings(history: Sequence[Exchange], asked: str) -> tuple[str, ...]:
    """`asked` with its first pronoun replaced by each name of the last exchange that it may mean; none if `asked` has
    no pronoun, or has a name before the pronoun, which the pronoun may mean. Talk names nothing.
    """
    pronoun = _PRONOUN.search(asked)
    if pronoun is None or any(_stands_for(name) for name in _capitals(asked[: pronoun.start()])):
        return ()
    for question, answer in reversed(history):
        if not kinds_of(question) and {*names(question), *names(answer)}:
            found = _meant(question.strip(), answer, asked, pronoun[1].lower())
            return tuple(dict.fromkeys(_put(asked, name) for name in found))[:MOST]
    return ()


def _meant(question: str, answer: str, asked: str, pronoun: str) -> Sequence[str]:
    """What a pronoun may stand for after an exchange; nothing where it may stand for what has no name there."""
    answers = [] if answer.startswith(NOT_FOUND) else [*names(answer)]
    who = question[:3].lower() == "who"
    if who and pronoun in ("it", "its"):
        answers = []
    elif answers and _ASKS_WHO_DOES.match(question) and (who or not _ASKS_OTHERS.search(question)):
        return answers
    if _DESCRIBED.search(question):
        return ()
    named = [*names(question)]
    return named[:1] if _BARE.match(asked.strip()) else [*named, *answers]


def _stands_for(name: str) -> bool:
    """Whether a name may be what a pronoun behind it means; "ICAO" and a sentence's first word are none."""
    return " " in name or not (name.isupper() or _FIRST.fullmatch(name))


def names(text: str) -> Iterator[str]:
    """The names that a text says, what it asks about first."""
    text = text[-READ:].strip()
    topic = _topic(text)
    if len(text.split()) <= 4 and not text.endswith(("?", ".", "!")):  # an answer may be a name in small letters
        topic = text
    found = [topic, *([] if topic == text else _capitals(text))]
    yield from (name for name in found if not _NO_NAME.fullmatch(name))


def _topic(text: str) -> str:
    """What a question ends with: "What is the Chinese yuan?", "Which currency is used in Peru?"; else nothing."""
    *_, last = ["", *text.removesuffix("?").split("?")] if text.endswith("?") else [""]
    if done := _DONE_TO.search(last):
        return done[1]
    ends = [lead.end() for lead in _LEAD.finditer(last)]
    topic = last[ends[-1] :] if ends else ""
    return topic.strip() if topic[:1].isspace() else ""


def _capitals(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.?!;])\s+", text):
        for match in _NAME.finditer(sentence):
            words = match.group().rstrip(".,").split()
            while words and _OPENER.fullmatch(words[0]):
                words = words[1:]
            if words:
                yield re.sub("['’]s$", "", " ".join(words))


def _put(asked: str, name: str) -> str:
    def put(pronoun: re.Match[str]) -> str:
        return f"{name}'s" if pronoun[1].lower() in _POSSESSIVE else name

    return _PRONOUN.sub(put, asked, count=1)  # later ones lean on the name then
