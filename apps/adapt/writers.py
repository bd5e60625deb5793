"""Who writes questions and reads passages for answers: a policy, in replies of one line of JSON, or templates.

Templates go over facts that rules extract from common sentences of English: "capital" of "Serbia", "Belgrade". They
miss most facts. Where a policy is too weak to write, they show how everything runs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from typing import Any

from apps.adapt.gates import Draft, Hop, agree
from apps.adapt.passages import PassagePath
from steprag.agent.inert import neutralise, without_instructions
from steprag.agent.judge import asked
from steprag.agent.open import PASSAGE_TOKENS
from steprag.agent.profiles import fill
from steprag.config.recipes import RECIPES
from steprag.errors import StepFormatError
from steprag.policy.protocols import Policy
from steprag.records.json_text import NotJson, decoded
from steprag.records.yaml_files import read_yaml
from steprag.scores.metrics import normalise
from steprag.types import Message, Passage, Usage

PROMPTS = RECIPES / "questions" / "adapt.yaml"
MOST_HOPS, INSTRUCTIONS, CHARS = 4, 300, 400
"""Passages of a path at most; tokens of the instructions, about; characters of a text in a reply."""
UNKNOWN = frozenset({"", "unknown", "none", "n/a"})


def keys_of(form: str) -> tuple[str, ...]:
    """The keys of a reply: of a reading its answer; of a draft over 2 passages ("2") question_1 to answer_2, then those
    of the whole.
    """
    if form == "read":
        return ("answer",)
    each = [f"{key}_{number}" for number in range(1, int(form) + 1) for key in ("question", "answer")]
    return (*each, "question", "answer")


@dataclass(frozen=True)
class DraftFormat:
    """An object of texts, by form: "read", or how many passages a draft is of."""

    stop: tuple[str, ...] = ()
    thinks: bool = False

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """llama.cpp's grammar."""
        parts = ' ", " '.join(f'"\\"{key}\\": " text' for key in keys_of(allowed[0]))
        return f'root ::= "{{" {parts} "}}"\ntext ::= "\\"" [^"\\\\\\n]{{1,{CHARS}}} "\\""\n'

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The same as a regular expression."""
        words = rf'"[^"\\\n]{{1,{CHARS}}}"'
        return r"\{" + ", ".join(f'"{key}": {words}' for key in keys_of(allowed[0])) + r"\}"

    def schema(self, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        """The same as a JSON schema."""
        properties = {key: {"type": "string"} for key in keys_of(allowed[0])}
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@dataclass
class PolicyWriter:
    """Asks a policy. Whatever a prompt is filled with is made inert. Raises PolicyError where a request fails."""

    policy: Policy
    usage: Usage = Usage()

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """A draft in one request."""
        words, form = _words(), str(len(passages))
        leads = "".join(f"\nPassage {number} leads to the next one by the name: {neutralise(bridge)}"
                        for number, bridge in enumerate(path.bridges, 1)
                        if without_instructions(bridge) == bridge)  # fmt: skip
        way = words["bridge" if path.bridges else "one"].strip()
        system = fill(words["write"]["system"], way=way, keys=", ".join(keys_of(form)))
        values = await self._asked(form, system, fill(words["write"]["user"], passages=_shown(passages), leads=leads))
        if values is None:
            return None
        hops = tuple(Hop(values[f"question_{n}"], values[f"answer_{n}"]) for n in range(1, len(passages) + 1))
        return Draft(values["question"], values["answer"], hops)

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """The answer, in one request. Raises StepFormatError where the reply cannot be read."""
        words = _words()["read"]
        system = fill(words["system"], how=words["knowing" if knowing else "alone"])
        asking = fill(words["user"], passages=_shown(passages), question=neutralise(draft.question))
        values = await self._asked("read", system, asking)
        if values is None:
            raise StepFormatError("malformed", "no answer in JSON")
        said = values["answer"].strip()
        return None if said.strip(".").lower() in UNKNOWN else said

    async def _asked(self, form: str, system: str, user: str) -> dict[str, str] | None:
        messages = (Message(role="system", content=system.strip()), Message(role="user", content=user.strip()))

        def texts(reply: str) -> dict[str, str] | None:
            try:
                values = decoded(reply[reply.find("{") : reply.rfind("}") + 1])  # a fence or words may stand around it
            except NotJson:
                return None
            whole = isinstance(values, dict) and set(values) == {*keys_of(form)}
            return values if whole and all(isinstance(text, str) for text in values.values()) else None

        judged = await asked(self.policy, messages, (form,), texts, seed=0)
        self.usage += judged.usage
        return judged.score


def calls_of(hops: int) -> int:
    """Requests that a path takes at most if every reply can be read: the draft, and its readings."""
    return 4 if hops == 1 else 5 + hops


def use_of(hops: int, passages: int, reply: int) -> Usage:
    """What a path uses whose drafts pass all gates, where a prompt has so many passages, and a reply so many tokens."""
    calls = calls_of(hops)
    return Usage(calls, calls * (INSTRUCTIONS + passages * PASSAGE_TOKENS), calls * reply)


def _shown(passages: Sequence[Passage]) -> str:
    """Passages with their numbers; nothing where there are none."""
    return "".join(f"Passage {number} ({neutralise(one.title)}): {neutralise(one.text)}\n\n"
                   for number, one in enumerate(passages, 1))  # fmt: skip


@cache
def _words() -> dict[str, Any]:
    return read_yaml(PROMPTS)


_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w'’-]*"
_NAME = rf"(?:[Tt]he )?{_CAPITAL}(?:,? (?:of |and |de |the )*{_CAPITAL})*"
_NOUN = r"[a-z][a-z-]+(?: [a-z-]+){0,3}?"
_VALUE = r"(?:the [a-z]*+|[^\Wa-zß-öø-ÿ]|[.+-]\w)[^,;:\s]*+(?:,\d{3})*+(?: [^,;:\s]++){0,5}?"
_SUBJECT, _OBJECT, _RELATION = rf"(?P<subject>{_NAME})", rf"(?P<object>{_VALUE})", rf"(?P<relation>{_NOUN})"
PATTERNS = [re.compile(rf"(?:^|[;:] |^[^,]+, and ){pattern}(?=\.?$|[,;:] | and | but | with )") for pattern in (
    rf"(?:The|the) {_RELATION} (?:of|in) {_SUBJECT} (?:is|was) {_OBJECT}",
    rf"(?P<object>{_NAME}) (?:is|was) (?:also )?the {_RELATION} of (?:the (?:[\w.]+ )+of )?{_SUBJECT}",
    rf"{_SUBJECT},? (?:has|counts) an? {_RELATION} of {_OBJECT}",
    rf"{_SUBJECT}['’]s (?P<relation>[\w -]{{3,40}}?) is {_OBJECT}",
    rf"(?P<subject>Its) {_RELATION} is {_OBJECT}",
    rf"{_SUBJECT} (?:has|counts|is divided into) (?P<object>\d[\d.,]*) (?P<number>[a-z]+)",
    rf"In {_SUBJECT} the {_RELATION} is {_OBJECT}",
    rf"{_SUBJECT} has (?P<object>{_NAME}) as its {_RELATION}",
)]  # fmt: skip
"""Sentences that tell a fact; the `number` of counted things is a relation, and "Its" means what the heading names."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_a-z])")


@dataclass(frozen=True)
class Triple:
    """A fact of one sentence."""

    subject: str
    relation: str
    object: str

    def ends(self, way: str) -> tuple[str, str]:
        """From what to what it leads: "of" a subject to its object, or back from "with" an object."""
        return (self.subject, self.object) if way == "of" else (self.object, self.subject)


SHARED = 0.02
"""Share of a relation's starts that lead to several ends from which a start may do so too where no passage tells it."""
WAYS = {"of": ("What is the {relation} of {known}?", "the {relation} of {known}"),
        "with": ("Of what is {known} the {relation}?", "the one whose {relation} is {known}")}  # fmt: skip
"""By the way that a fact leads: its question, and words that stand for its answer."""


def facts_in(passage: Passage) -> Iterator[Triple]:
    """The facts that a passage's sentences tell."""
    for sentence in _SENTENCE.split(passage.text):
        for found in (found for pattern in PATTERNS for found in pattern.finditer(sentence)):
            parts = found.groupdict()
            subject = passage.title.rpartition(", ")[2] if parts["subject"] == "Its" else parts["subject"]
            yield Triple(subject, parts.get("relation") or f"number of {parts['number']}", parts["object"].rstrip("."))


def several(passages: Iterable[Passage]) -> frozenset[tuple[str, ...]]:
    """What leads to several ends: (way, relation, start), normalised; and a (way, relation) in which `SHARED` do."""
    ends: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for fact, way in product(chain.from_iterable(map(facts_in, passages)), WAYS):
        start, to = map(normalise, fact.ends(way))
        ends[way, fact.relation, start].add(to)
    vague = {key for key, to in ends.items() if len(to) > 1}
    every, some = (Counter(key[:2] for key in keys) for keys in (ends, vague))
    return frozenset(vague) | {key for key, count in some.items() if count > SHARED * every[key]}


@dataclass
class TemplateWriter:
    """Writes by templates, and reads by looking the facts up again. It knows nothing beside the passages, and what in
    all passages is `vague` (`several`), of which it asks nothing.
    """

    vague: frozenset[tuple[str, ...]] = frozenset()
    usage: Usage = Usage()

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """The first draft that facts of the passages, one of each, make together."""
        facts = [[*dict.fromkeys(facts_in(passage))] for passage in passages]
        return next((draft for fact in facts[0] for way in WAYS
                     if (draft := self._chained([], "", fact, way, facts[1:], path.bridges))), None)  # fmt: skip

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """What the hops' relations lead to, one after the other; none where nothing does, all where several do."""
        facts, at = [fact for passage in passages for fact in facts_in(passage)], draft.hops[0].relation[2]
        for way, relation, _ in (hop.relation for hop in draft.hops):
            steps = [fact.ends(way) for fact in facts if fact.relation == relation]
            ends = {normalise(to): to for start, to in steps if normalise(start) == normalise(at)}
            if len(ends) != 1:
                return "; ".join(sorted(ends.values())) or None
            (at,) = ends.values()
        return at

    def _chained(
        self, hops: list[Hop], words: str, fact: Triple, way: str, rest: list[list[Triple]], bridges: tuple[str, ...]
    ) -> Draft | None:
        """The draft that continues through `fact`, whose start is called `words`, and a fact of each later passage."""
        known, to = fact.ends(way)
        if {(way, fact.relation), (way, fact.relation, normalise(known))} & self.vague:
            return None
        words = words or known
        hops = [*hops, Hop(WAYS[way][0].format(relation=fact.relation, known=known), to, (way, fact.relation, known))]
        if not rest:
            return Draft(WAYS[way][0].format(relation=fact.relation, known=words), to, tuple(hops))
        if not agree(to, bridges[0]):
            return None
        words = WAYS[way][1].format(relation=fact.relation, known=words)
        return next((draft for one in rest[0] for onward in WAYS
                     if normalise(one.ends(onward)[0]) == normalise(to) and one.relation != fact.relation
                     and (draft := self._chained(hops, words, one, onward, rest[1:], bridges[1:]))), None)  # fmt: skip
