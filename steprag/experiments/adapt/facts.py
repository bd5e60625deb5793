"""Questions without a model: templates over facts that rules extract from sentences.

A fact is a relation of a subject and an object: "capital", "Serbia", "Belgrade". The rules know common sentences of
English and miss most facts. Where a policy is too weak to write, they show how everything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steprag.experiments.adapt.gates import Draft, Hop, agree
from steprag.experiments.adapt.passages import PassagePath
from steprag.scores.metrics import normalise
from steprag.types import Passage, Usage

_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w'’-]*"
_NAME = rf"(?:[Tt]he )?{_CAPITAL}(?:,? (?:of |and |de |the )*{_CAPITAL})*"
_NOUN = r"[a-z][a-z-]+(?: [a-z-]+){0,3}?"
_VALUE = r"(?:the [a-z]*|[^\Wa-zß-öø-ÿ]|[.+-]\w)[^,;:\s]*(?:,\d{3})*(?: [^,;:\s]+){0,5}?"
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


class TemplateWriter:
    """Writes by templates, and reads by looking the facts up again. It knows nothing beside the passages."""

    usage = Usage()

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """The first draft that facts of the passages, one of each, make together."""
        facts = [[*dict.fromkeys(facts_in(passage))] for passage in passages]
        return next((draft for fact in facts[0] for way in WAYS
                     if (draft := _chained([], fact.ends(way)[0], fact, way, facts[1:], path.bridges))), None)  # fmt: skip

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """What the hops' relations lead to, one after the other; none where nothing does, several where several do."""
        facts, at = [fact for passage in passages for fact in facts_in(passage)], draft.hops[0].relation[2]
        for way, relation, _ in (hop.relation for hop in draft.hops):
            steps = [fact.ends(way) for fact in facts if fact.relation == relation]
            ends = {normalise(to): to for start, to in steps if normalise(start) == normalise(at)}
            if len(ends) != 1:
                return "; ".join(sorted(ends.values())) or None
            (at,) = ends.values()
        return at


def _chained(
    hops: list[Hop], words: str, fact: Triple, way: str, rest: list[list[Triple]], bridges: tuple[str, ...]
) -> Draft | None:
    """The draft that goes on through `fact`, whose beginning `words` stand for, and one fact of each further passage."""
    known, to = fact.ends(way)
    hops = [*hops, Hop(WAYS[way][0].format(relation=fact.relation, known=known), to, (way, fact.relation, known))]
    if not rest:
        return Draft(WAYS[way][0].format(relation=fact.relation, known=words), to, tuple(hops))
    if not agree(to, bridges[0]):
        return None
    words = WAYS[way][1].format(relation=fact.relation, known=words)
    return next((draft for one in rest[0] for onward in WAYS
                 if normalise(one.ends(onward)[0]) == normalise(to) and one.relation != fact.relation
                 and (draft := _chained(hops, words, one, onward, rest[1:], bridges[1:]))), None)  # fmt: skip
