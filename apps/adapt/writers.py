"""Who writes questions and reads passages for answers: a policy, in replies of one line of JSON, or templates.

Templates go over the facts that rules read from sentences of English (`apps.adapt.facts`). They write where a policy is
too weak to.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any

from apps.adapt.facts import ToldFact, facts_in
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


SHARED = 0.02
"""Share of a relation's questions that have several answers; from it on, others may have where no passage says so."""


def several(passages: Iterable[Passage]) -> frozenset[str]:
    """What has several answers: questions, normalised; and a kind of fact in which `SHARED` of the questions do."""
    answers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for fact in chain.from_iterable(map(facts_in, passages)):
        answers[fact.kind, normalise(fact.question)].add(normalise(fact.answer))
    vague = {key for key, some in answers.items() if len(some) > 1}
    every, those = (Counter(kind for kind, _ in keys if kind) for keys in (answers, vague))
    kinds = {kind for kind, count in those.items() if count > SHARED * every[kind]}
    return frozenset(kinds | {question for _, question in vague})


@dataclass
class TemplateWriter:
    """Writes by templates, and reads by looking the facts up again. It knows nothing beside the passages, and what in
    all passages is `vague` (`several`), of which it asks nothing.
    """

    vague: frozenset[str] = frozenset()
    usage: Usage = Usage()

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """Of the drafts that facts of the passages, one of each, make together, that of the path's turn."""
        facts = [[*self._clear(passage)] for passage in passages]
        drafts = (draft for fact in facts[0] for draft in self._chained((), fact, fact, facts[1:], path.bridges))
        return next(islice(drafts, path.turn, None), None)

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """What the hops' questions lead to, one after the other; none where nothing does, all where several do."""
        facts, before, at = [fact for passage in passages for fact in facts_in(passage)], "", ""
        for hop in draft.hops:
            asked = normalise(hop.question.replace(before, at) if before else hop.question)
            ends = {normalise(fact.answer): fact.answer for fact in facts if normalise(fact.question) == asked}
            if len(ends) != 1:
                return "; ".join(sorted(ends.values())) or None
            before, (at,) = hop.answer, ends.values()
        return at

    def _clear(self, passage: Passage) -> Iterator[ToldFact]:
        seen = set(self.vague)
        for fact in facts_in(passage):
            question = normalise(fact.question)
            if question not in seen and fact.kind not in seen:
                seen.add(question)
                yield fact

    def _chained(
        self,
        hops: tuple[Hop, ...],
        fact: ToldFact,
        worded: ToldFact,
        rest: list[list[ToldFact]],
        bridges: tuple[str, ...],
    ) -> Iterator[Draft]:
        """The drafts that lead through `fact` and one of each later passage; `worded` names no earlier answer."""
        hops = (*hops, Hop(fact.question, fact.answer))
        if not rest:
            yield Draft(worded.question, fact.answer, hops)
        elif worded.phrase and agree(fact.answer, bridges[0]):
            bare = re.escape(fact.answer.removeprefix("the "))
            name = re.compile(rf"(?:[Tt]he )?\b{bare}\b(?!['’])")
            for onward in rest[0]:
                back = onward.kind and onward.kind.partition(" ")[2] == fact.kind.partition(" ")[2]
                if name.search(onward.question) and not back:
                    said = (name.sub(lambda _: worded.phrase, text) for text in (onward.question, onward.phrase))
                    onward_worded = ToldFact(next(said), onward.answer, next(said))
                    yield from self._chained(hops, onward, onward_worded, rest[1:], bridges[1:])
