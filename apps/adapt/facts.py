"""Facts that rules read from sentences of English: a question, its answer, and words that stand for the answer.

Some sentences have a fixed form ("The capital of Serbia is Belgrade"). Of others a clause is cut into subject, verb and
rest; its questions ask for the subject, a date, a place, a number or a doer. No verb is put into another form than
"carries" to "does … carry": what would need that is not asked. The rules miss most facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from apps.adapt import english
from apps.adapt.passages import heading_of
from steprag.scores.gold import holds_golden
from steprag.types import Passage

_NOUN = r"[a-z][a-z-]+(?: [a-z-]+){0,3}?"
_VALUE = r"(?:the [a-z]*+|[^\Wa-zß-öø-ÿ]|[.+-]\w)[^,;:\s]*+(?:,\d{3})*+(?: [^,;:\s]++){0,5}?"
_SUBJECT, _OBJECT, _RELATION = rf"(?P<subject>{english.NAME})", rf"(?P<object>{_VALUE})", rf"(?P<relation>{_NOUN})"
PATTERNS = [re.compile(rf"(?:^|[;:] |^[^,]+, and ){pattern}(?=\.?$|[,;:] | and | but | with )") for pattern in (
    rf"(?:The|the) {_RELATION} (?:of|in) {_SUBJECT} (?:is|was) {_OBJECT}",
    rf"(?P<object>{english.NAME}) (?:is|was) (?:also )?the {_RELATION} of (?:the (?:[\w.]+ )+of )?{_SUBJECT}",
    rf"{_SUBJECT},? (?:has|counts) an? {_RELATION} of {_OBJECT}",
    rf"{_SUBJECT}['’]s (?P<relation>[\w -]{{3,40}}?) is {_OBJECT}",
    rf"(?P<subject>Its) {_RELATION} is {_OBJECT}",
    rf"{_SUBJECT} (?:has|counts|is divided into) (?P<object>\d[\d.,]*) (?P<number>[a-z]+)",
    rf"In {_SUBJECT} the {_RELATION} is {_OBJECT}",
    rf"{_SUBJECT} has (?P<object>{english.NAME}) as its {_RELATION}",
)]  # fmt: skip
"""Sentences that tell a fact; the `number` of counted things is a relation, and "Its" means what the heading names."""
WORDS, MOST = 6, 25
"""Words of a clause's rest that a question repeats, and of a question."""
_INSIDE = re.compile(r"(?<=[\w,] )[\w'’-]+")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_a-z])")


@dataclass(frozen=True)
class ToldFact:
    """`phrase` stands for the answer in a longer question; none where nothing can. `kind`: the relation asked for."""

    question: str
    answer: str
    phrase: str = ""
    kind: str = ""


def facts_in(passage: Passage) -> Iterator[ToldFact]:
    """The facts that a passage's sentences tell, those of fixed forms first."""
    sentences = [one for one in SENTENCE.split(passage.text) if len(one) <= english.LONGEST]
    for sentence in sentences:
        for found in (found for pattern in PATTERNS for found in pattern.finditer(sentence)):
            parts = found.groupdict()
            subject = passage.title.rpartition(", ")[2] if parts["subject"] == "Its" else parts["subject"]
            if not {subject.lower(), parts["object"].lower()} & english.PRONOUNS:
                yield from _related(subject, parts.get("relation"), parts.get("number"), parts["object"].rstrip("."))
    for fact in _told(passage, sentences):
        if len(fact.question.split()) <= MOST and not holds_golden(fact.question, (fact.answer,)):
            yield fact


def _related(subject: str, relation: str | None, number: str | None, to: str) -> Iterator[ToldFact]:
    if relation is None:
        words = f"the number of {number} of {subject}"
        yield ToldFact(f"How many {number} does {subject} have?", to, words, f"of {number}")
        return
    asks = "Who" if relation.split()[-1] in english.ROLES else "What"
    yield ToldFact(f"{asks} is the {relation} of {subject}?", to, f"the {relation} of {subject}", f"of {relation}")
    if not to[0].isdigit():
        words = f"the one whose {relation} is {to}"
        yield ToldFact(f"What has {to} as its {relation}?", subject, words, f"with {relation}")


@dataclass(frozen=True)
class About:
    """A passage's heading, the words that do not begin its sentences, and whether it says "he" or "she"."""

    heading: str
    inside: frozenset[str]
    human: bool


@dataclass(frozen=True)
class Clause:
    """A sentence's subject, verb and rest. `named`: the subject is a name, so that it can be asked for."""

    subject: str
    verb: str
    rest: str
    named: bool
    person: bool

    def asked(self, how: str, before: str) -> str:
        """The question for what stands behind `before` in the rest: "When was the bridge opened?"."""
        verb, before, subject = self.verb, before.strip(), self.subject
        if verb in english.AUX or (verb in ("has", "have") and re.match(r"been |\w+ed\b", before)):
            words = verb, subject, before
        elif verb in ("has", "have"):
            words = "does" if verb == "has" else "do", subject, "have", before
        elif verb.endswith("s"):
            words = "does", subject, lemma(verb), before
        else:
            words = "was it that", subject, verb, before
        return " ".join(filter(None, (how, *words)))


def lemma(verb: str) -> str:
    """The infinitive of a verb's form with s."""
    if verb.endswith("ies"):
        return verb[:-1] if len(verb) < 5 else f"{verb[:-3]}y"
    return verb[:-2] if verb.endswith(("shes", "ches", "sses", "xes", "zzes", "oes")) else verb[:-1]


def _told(passage: Passage, sentences: list[str]) -> Iterator[ToldFact]:
    """The facts of clauses, then the gaps of sentences that told none."""
    heading, last, gaps = heading_of(passage), dict[bool, Clause](), list[ToldFact]()
    inside = frozenset((*_INSIDE.findall(passage.text), *heading.split()))
    about = About(heading, inside, bool(re.search(r"\b[Ss]?[Hh]e\b", passage.text)))
    for sentence in sentences:
        facts = list[ToldFact]()
        for clause in chain.from_iterable(_clauses(part, about, last) for part in english.BREAK.split(sentence)):
            last[clause.person] = clause
            asked = (*_subject_asked(clause), *_rest_asked(clause))
            facts += [one for one in asked if not english.UNCLEAR.search(one.question[1:])]
        gaps += [] if facts else _gap(sentence, heading)
        for fact in facts:  # a name or number makes it clear; else its heading does
            where = "" if re.search(r"[A-Z\d]", fact.question[1:]) else f', according to "{heading}"'
            yield ToldFact(f"{fact.question}{where}?", fact.answer, fact.phrase)
    yield from gaps


def _gap(sentence: str, heading: str) -> Iterator[ToldFact]:
    """A date, number or name that is missing among the words around it."""
    if found := english.GAP.search(sentence):
        before, after = sentence[: found.start()].split(), sentence[found.end() :].rstrip(".!?").split()
        before, after = before[-WORDS:], after[:WORDS]
        if len(before) + len(after) >= WORDS // 2:
            words = " ".join([*before, "___", *after]).replace('"', "'")
            yield ToldFact(f'What is missing, according to "{heading}": "{words}"?', found["value"])


def _clauses(part: str, about: About, last: Mapping[bool, Clause]) -> Iterator[Clause]:
    """A clause, and those that continue with its subject: "was opened in 1950 and has 340 employees"."""
    first, *others = (half.rstrip(",") for half in english.AND.split(part.rstrip(".!?")))
    if clause := _clause(first, about, last):
        yield clause
        for verb, _, rest in (other.partition(" ") for other in others):
            yield replace(clause, verb=verb, rest=english.CUT.split(rest, maxsplit=1)[0])


def _clause(part: str, about: About, last: Mapping[bool, Clause]) -> Clause | None:
    """The first clause of a sentence's part; "She" and "Its" mean the `last` person and thing. None without a verb."""
    part = english.ADVERB.sub("", part, count=1)
    fronted = english.FRONTED.match(part)
    part = english.CUT.split(fronted["rest"] if fronted else part, maxsplit=1)[0]
    words = f"{part} {fronted['when'][0].lower()}{fronted['when'][1:]}".split() if fronted else part.split()
    pronoun = words[0].lower() if words else ""
    meant = last.get(pronoun in ("he", "she", "his", "her")) if pronoun in english.PRONOUNS else None
    if meant:
        words[0] = f"{meant.subject}'s" if pronoun in ("his", "her", "its") else meant.subject
    place = next((at for at in range(1, min(8, len(words))) if _is_verb(words, at)), None)
    subject = " ".join(words[:place])
    begins = words[0].lower() if words else ""
    if place is None or english.ODD.search(subject) or begins in english.PREPOSITIONS | english.PAST:
        return None
    rest, capital = " ".join(words[place + 1 :]), re.fullmatch(english.NAME, subject)
    if meant:
        return Clause(subject, words[place], rest, meant.named, meant.person and subject == meant.subject)
    several = len(subject.removeprefix("The ").split()) > 1
    inside = words[0] in about.inside or subject.lower() == about.heading
    inside = inside or re.match(r"(?:is|was) an? ", " ".join(words[place:]))
    named = any(word[0].isupper() for word in words[1:place]) or bool(capital and inside)
    whole = bool(capital) and not subject.startswith("The ") and (several or words[place] in english.PERSONAL)
    human = about.human or words[place] in english.PERSONAL or (several and subject != about.heading)
    if not named and place == 1 and not subject.endswith("s"):
        return None  # a name or none, who knows
    if not named or words[0] in ("The", "A", "An"):
        subject = subject[0].lower() + subject[1:]
    return Clause(subject, words[place], rest, named, bool(named and whole and human))


def _is_verb(words: list[str], at: int) -> bool:
    word, last, following = words[at], words[at - 1], words[at + 1] if at + 1 < len(words) else ""
    if word in english.AUX or word in english.PAST or word in ("has", "have", "had"):
        return True
    if not word.isalpha() or not word.islower() or not following or word == "does" or last.lower() in english.COUNTING:
        return False
    if word.endswith("ed") and len(word) > 4:
        return following != "by" and last.lower() not in ("the", "a", "an")
    onward = following in english.PREPOSITIONS or following in ("the", "a", "an") or not following.islower()
    third = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) and not last.endswith("s")
    return third and last.lower() not in ("the", "a", "an") and (onward or (last[0].isupper() and at > 1))


def _subject_asked(clause: Clause) -> Iterator[ToldFact]:
    """Who or what does it: the verb and as much of the rest as a question may repeat, up to before a preposition."""
    words = clause.rest.split()
    joined = words.index("and") if "and" in words else len(words)
    most = joined if english.PREPOSITIONS & set(words[:joined]) else len(words)
    ends = range(min(WORDS, most), clause.verb in english.AUX, -1)
    said = next((end for end in ends if end == most or words[end] in english.PREPOSITIONS), 0)
    vague = clause.verb in english.BE and re.match(r"an? |called |(?:the )?[A-Z]", clause.rest)
    if not clause.named or not said or vague or "'s" in clause.subject or words[said - 1] in english.PREPOSITIONS:
        return
    rest, noun = f"{clause.verb} {' '.join(words[:said])}", clause.subject.split()[-1]
    if clause.person and not (clause.verb in english.BE and " by" in rest):
        yield ToldFact(f"Who {rest}", clause.subject, f"the person who {rest}")
    elif noun.islower() and " of " not in clause.subject:
        yield ToldFact(f"Which {noun} {rest}", clause.subject, f"the {noun} that {rest}")
    else:
        yield ToldFact(f"What {rest}", clause.subject, f"what {rest}")


def _rest_asked(clause: Clause) -> Iterator[ToldFact]:
    """When, where, how many, by whom, and what something is called."""
    rest, past = clause.rest, clause.verb not in english.AUX and not clause.verb.endswith(("s", "have"))
    who = clause.subject
    described = clause.verb in english.BE and re.match(r"an? |the |also ", rest)
    if (found := english.WHEN.match(rest)) and not described:
        how = {"since": "Since when", "until": "Until when", "to": "To what date"}.get(found["how"], "When")
        yield ToldFact(clause.asked(how, found["before"]), found["value"])
    if (found := english.WHERE.match(rest)) and (found["before"].split() or [clause.verb])[-1] in english.PLACED:
        before = found["before"].strip()
        yield ToldFact(clause.asked("Where", before), found["value"],
                   f"the place where {' '.join(filter(None, (who, clause.verb, before)))}")  # fmt: skip
    if clause.verb in english.BE and (found := english.BY.match(rest)):
        asks, words = "Who" if " " in found["value"] else "What", f"{found['before']} by"
        yield ToldFact(
            f"{asks} {clause.verb} {who} {words}", found["value"], f"the one that {who} {clause.verb} {words}"
        )
    if clause.verb in english.BE and (found := english.CALLED.match(rest)):
        yield ToldFact(clause.asked("What", "called"), found["value"])
    yield from _counted(clause, rest, past)


def _counted(clause: Clause, rest: str, past: bool) -> Iterator[ToldFact]:
    found = english.COUNT.match(rest)
    if not found or re.fullmatch(english.DATE, found["value"]):
        return
    *before, last = found["before"].split() or [""]
    if last in ("every", "each", "the", "first", "last") or before[-1:] == ["up"] or before[:1] in (["a"], ["an"]):
        return
    money = found["noun"].split()[0] in english.MONEY
    many = f"how many {found['noun']}{found['of'] or ''}"
    answer = f"{found['value']} {found['noun'].split()[0]}" if money else found["value"]
    if past:
        if not last and clause.verb.endswith("ed"):
            how = "How much was" if money else f"{many.capitalize()} were"
            yield ToldFact(f"{how} {clause.verb} by {clause.subject}", answer)
        return
    how = "How much" if money else many.capitalize()
    if last in english.PREPOSITIONS:
        how, last = f"{last.title()} {'what sum' if money else many}", ""
    yield ToldFact(f"{clause.asked(how, ' '.join([*before, last]))}{found['each'] or ''}", answer)
