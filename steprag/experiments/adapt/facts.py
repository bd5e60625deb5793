"""Questions without a model: templates over facts that rules extract from sentences.

A fact is a relation of a subject and an object, "capital" of "Serbia" and "Belgrade". The rules know common sentences
of English and miss most facts; where the policy is too weak to write, this shows how the pipeline runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from steprag.experiments.adapt.gates import Draft, Hop
from steprag.experiments.adapt.passages import PassagePath
from steprag.scores.gold import mentions
from steprag.scores.metrics import normalise
from steprag.types import Passage, Usage

_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w'’-]*"
NAME = rf"(?:[Tt]he )?{_CAPITAL}(?:,? (?:of |and |de |the )*{_CAPITAL})*"
NOUN = r"[a-z][a-z-]+(?: [a-z-]+){0,3}?"
VALUE = r"(?:the [a-z]*|[^\Wa-zß-öø-ÿ]|[.+-]\w)[^,;:\s]*(?:,\d{3})*(?: [^,;:\s]+){0,5}?"
_END = r"(?=\.?$|[,;:] | and | but | with )"
_START = r"(?:^|[;:] |^[^,]+, and )"
PATTERNS = [re.compile(pattern) for pattern in (
    rf"{_START}(?:The|the) (?P<relation>{NOUN}) (?:of|in) (?P<subject>{NAME}) (?:is|was) (?P<object>{VALUE}){_END}",
    rf"{_START}(?P<object>{NAME}) (?:is|was) (?:also )?the (?P<relation>{NOUN}) of (?:the (?:[\w.]+ )+of )?"
    rf"(?P<subject>{NAME}){_END}",
    rf"{_START}(?P<subject>{NAME}),? (?:has|counts) an? (?P<relation>{NOUN}) of (?P<object>{VALUE}){_END}",
    rf"{_START}(?P<subject>{NAME})['’]s (?P<relation>[\w -]{{3,40}}?) is (?P<object>{VALUE}){_END}",
    rf"{_START}(?P<subject>Its) (?P<relation>{NOUN}) is (?P<object>{VALUE}){_END}",
    rf"{_START}(?P<subject>{NAME}) (?:has|counts|is divided into) (?P<object>\d[\d.,]*) (?P<number>[a-z]+){_END}",
    rf"{_START}In (?P<subject>{NAME}) the (?P<relation>{NOUN}) is (?P<object>{VALUE}){_END}",
    rf"{_START}(?P<subject>{NAME}) has (?P<object>{NAME}) as its (?P<relation>{NOUN}){_END}",
)]  # fmt: skip
"""Sentences that tell a fact; `number` of counted things is a relation, and "Its" means what the heading names."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_a-z])")


@dataclass(frozen=True)
class Triple:
    """A fact of one sentence."""

    subject: str
    relation: str
    object: str


def facts_in(passage: Passage) -> Iterator[Triple]:
    """The facts that a passage's sentences tell."""
    for sentence in _SENTENCE.split(passage.text):
        for pattern in PATTERNS:
            for found in pattern.finditer(sentence):
                parts = found.groupdict()
                relation = parts.get("relation") or f"number of {parts['number']}"
                subject = passage.title.rpartition(", ")[2] if parts["subject"] == "Its" else parts["subject"]
                yield Triple(subject, relation, parts["object"].removesuffix("."))


class TemplateWriter:
    """Writes by templates, and reads by looking the facts up again. It knows nothing beside the passages."""

    usage = Usage()

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """The first draft that facts of the passages, one of each, make together."""
        told = [list(dict.fromkeys(facts_in(passage))) for passage in passages]
        if path.kind == "compare":
            return _compared(*told)
        for first in told[0]:
            for known, asked in ((first.subject, first.object), (first.object, first.subject)):
                forward = known == first.subject
                hop = _hop(known, first, forward=forward)
                if draft := _joined([hop], _described(known, first, forward=forward), asked, told[1:], path.bridges):
                    return draft
        return None

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """What the hops' relations lead to, one after the other; none where nothing or several things do."""
        facts = [fact for passage in passages for fact in facts_in(passage)]
        if len(draft.hops) == 2 and draft.hops[1].relation[0] == "compare":
            return _greater(facts, draft)
        at = draft.hops[0].relation[2]
        for hop in draft.hops:
            way, relation, _ = hop.relation
            ends = {normalise(to): to for fact in facts for start, to in [_ends(fact, forward=way == "of")]
                    if fact.relation == relation and normalise(start) == normalise(at)}  # fmt: skip
            if len(ends) != 1:
                return None if not ends else "; ".join(sorted(ends.values()))
            (at,) = ends.values()
        return at


def _ends(fact: Triple, *, forward: bool) -> tuple[str, str]:
    return (fact.subject, fact.object) if forward else (fact.object, fact.subject)


def _hop(known: str, fact: Triple, *, forward: bool) -> Hop:
    """The question of one fact: its object, or what has that object."""
    question = f"What is the {fact.relation} of {known}?" if forward else f"Of what is {known} the {fact.relation}?"
    return Hop(question, _ends(fact, forward=forward)[1], ("of" if forward else "with", fact.relation, known))


def _described(known: str, fact: Triple, *, forward: bool) -> str:
    """Words that stand for what a hop's answer names."""
    return f"the {fact.relation} of {known}" if forward else f"the one whose {fact.relation} is {known}"


def _joined(hops: list[Hop], words: str, at: str, rest: list[list[Triple]], bridges: tuple[str, ...]) -> Draft | None:
    """Goes on from `at`, which `words` stand for, through a fact of each further passage. None where one has none."""
    if not rest:
        asked = words[0].upper() + words[1:]
        return Draft(f"{asked}: what is it?" if len(hops) > 1 else hops[-1].question, hops[-1].answer, tuple(hops))
    if not any(mentions(at, [bridges[0]])) and not any(mentions(bridges[0], [normalise(at)])):
        return None
    for fact in rest[0]:
        for forward in (True, False):
            start, to = _ends(fact, forward=forward)
            if normalise(start) == normalise(at) and fact.relation != hops[-1].relation[1]:
                hop = _hop(start, fact, forward=forward)
                further = _described(words, fact, forward=forward)
                if draft := _joined([*hops, hop], further, to, rest[1:], bridges[1:]):
                    return draft
    return None


def _compared(ones: Sequence[Triple], others: Sequence[Triple]) -> Draft | None:
    """Which of two things has more of what both passages count."""
    for one in ones:
        for other in others:
            counts = _count(one.object), _count(other.object)
            if one.relation == other.relation and None not in counts and counts[0] != counts[1]:
                more = one if (counts[0] or 0) > (counts[1] or 0) else other
                hops = tuple(
                    Hop(f"What is the {fact.relation} of {fact.subject}?", fact.object,
                        ("compare", fact.relation, fact.subject))
                    for fact in (one, other)
                )  # fmt: skip
                words = f"Which has the greater {one.relation}, {one.subject} or {other.subject}?"
                return Draft(words, more.subject, hops)
    return None


def _greater(facts: Iterable[Triple], draft: Draft) -> str | None:
    """The subject of the greater count; none unless each has one."""
    counts: dict[str, set[float | None]] = {hop.relation[2]: set() for hop in draft.hops}
    for fact in facts:
        if fact.relation == draft.hops[0].relation[1] and fact.subject in counts:
            counts[fact.subject].add(_count(fact.object))
    known = {name: found for name, found in counts.items() if len(found) == 1 and None not in found}
    return max(known, key=lambda name: max(one or 0 for one in known[name])) if len(known) == len(counts) else None


def _count(text: str) -> float | None:
    """The number that a text begins with, thousands parted by commas."""
    found = re.match(r"\d+(?:,\d{3})*(?:\.\d+)?", text)
    return float(found.group().replace(",", "")) if found else None
