"""A small world of facts, made from a seed: its passages and its questions of 1 to 6 hops.

A fact says to whom a relation leads: from Anna by `boss` to Ben. A question names a person and relations: "Who is
Anna's boss's heir?" A query names a person and another word for the relation: "Anna manager". Every relation has two
such words. A fact is told under one of them; who asks by the other does not find it (a dead end). A search finds three
passages, each of another kind, such as a letter. Facts of a relation stand in passages of one kind only; the other two
tell of somebody else. So a wrong word finds another relation's fact, a wrong kind finds a wrong person, and the episode
continues. Which steps are right, the world knows and no label may (`right_steps`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, product

from steprag.tree import Node, Tree
from steprag.types import Passage, Question

RELATIONS = {
    "boss": ("manager", "employer"), "heir": ("successor", "inheritor"),
    "rival": ("competitor", "opponent"), "twin": ("double", "lookalike"),
    "tutor": ("teacher", "coach"), "guest": ("visitor", "lodger"),
    "guard": ("bodyguard", "protector"), "poet": ("lyricist", "bard"),
    "debtor": ("borrower", "payer"), "tailor": ("dressmaker", "outfitter"),
    "doctor": ("physician", "medic"), "cousin": ("relative", "kin"),
    "pilot": ("aviator", "captain"), "singer": ("vocalist", "soloist"),
    "lawyer": ("attorney", "solicitor"), "painter": ("artist", "portraitist"),
}  # fmt: skip
"""Relations, and the two words that ask for each."""
KINDS = ("letter:", "ledger:", "diary:", "rumour:")
_FIRST_NAMES = """
Anna Ben Carla David Emma Frank Grace Henry Ida Jack Karen Leo Maria Nina Oscar Paula Quentin Rosa Simon Tina Uma Victor
Wendy Xavier Yara Zoe Adam Bella Carl Dora Eric Fiona George Hanna Ivan Julia Kevin Laura Martin Nora Oliver Peter Rita
Sam Tara Ursula Vera Walter Alice Bruno Clara Daniel Elena Felix Gina Hugo Irma Jonah Kira Linda Milo Nadia Otto Robin
"""
PERSONS = tuple(_FIRST_NAMES.split())
NOTHING = "None"
SHOWN = 3
"""Passages a search."""
DEPTH = 19
"""Steps an episode: nine searches with their evidence, and the answer."""
MOST_SEARCHES = 9
HOPS = (1, 2, 3, 4, 5, 6)

_NAMES = tuple(RELATIONS)
_LANGUAGE = random.Random(7)  # what every world shares
KIND_OF = {name: KINDS[place] for name, place in zip(_LANGUAGE.sample(_NAMES, 16), [0, 1, 2, 3] * 4, strict=True)}
"""The kind of passage that states facts of a relation."""
MISTAKEN = {name: _NAMES[(place + 5) % 16] for place, name in enumerate(_NAMES)}
"""The relation whose word is said by mistake."""
MISREAD = {name: _LANGUAGE.choice([kind for kind in KINDS if kind != KIND_OF[name]]) for name in _NAMES}
"""The kind that is kept by mistake."""
RELATION_OF = {word: name for name, words in RELATIONS.items() for word in words}
_FORMER_WORDS = """
serves obeys endows names fights mocks mirrors recalls studies quotes hosts feeds trusts arms reads prints lends duns
wears orders visits pays greets writes follows boards hears claps hires sues poses frames
"""
_FORMER_NAMES = product(("Ba", "De", "Fi", "Go", "Ku", "La", "Mi", "No"),
                        ("do", "mi", "ra", "sen", "tu", "vel", "xa", "zor"))  # fmt: skip
_DRAWN_BY = dict(zip((*RELATION_OF, *PERSONS), (*_FORMER_WORDS.split(), *map("".join, _FORMER_NAMES)), strict=True))
"""What words and persons were called in version 0.1. Passages are drawn by it, so that they and all published figures
stay the same.
"""


def parts_of(question: str) -> tuple[str, list[str], str]:
    """Of a question the person, the relations, and who is named for a yes or no ("Anna's boss is Ben?"), or ""."""
    asked, _, named = plain(question).rstrip("?").partition(" is ")
    person, *relations = asked.split()
    return person, relations, named


DROPPED = ("Who is ", "'s")
"""What only makes a text English: the policy's tokens do not hold it."""


def plain(text: str) -> str:
    """A text without `DROPPED`."""
    return text.removeprefix(DROPPED[0]).replace(DROPPED[1], "")


@dataclass(frozen=True)
class FactWorld:
    """Facts of one seed. `dead`: the share of facts that the first word does not find."""

    seed: int
    dead: float = 0.2

    @property
    def fingerprint(self) -> str:
        """Equal worlds find the same passages."""
        return f"tunnel/in English/{self.seed}/{self.dead}"

    async def ready(self) -> None:
        """Nothing to wait for."""

    async def aclose(self) -> None:
        """Nothing to release."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The passages of a query such as "Anna manager"; none where it is no person and word."""
        person, _, word = query.partition(" ")
        return self.passages(person, word)[:top_k] if person in self._facts and word in RELATION_OF else ()

    @cached_property
    def _facts(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Of every person and relation: to whom it leads, and the word that finds it."""
        rng = random.Random(f"facts/{self.seed}")
        return {
            person: {name: (rng.choice(PERSONS), words[rng.random() < self.dead]) for name, words in RELATIONS.items()}
            for person in PERSONS
        }

    def fact(self, person: str, relation: str) -> tuple[str, str]:
        """To whom a relation leads, and the word that finds it."""
        return self._facts[person][relation]

    def way(self, person: str, relations: Iterable[str]) -> list[str]:
        """Everybody on a way, `person` first."""
        return [*accumulate(relations, lambda who, relation: self.fact(who, relation)[0], initial=person)]

    @cache  # noqa: B019 (worlds are few and small)
    def passages(self, person: str, word: str) -> tuple[Passage, ...]:
        """The three passages that a person and a word find, the fact among them where it is told under this word."""
        rng = random.Random(f"passages/{self.seed}/{_DRAWN_BY[person]}/{_DRAWN_BY[word]}")
        relation = RELATION_OF[word]
        told, found_by = self.fact(person, relation)
        right = KIND_OF[relation]
        others = [kind for kind in KINDS if kind != right]
        kinds = rng.sample(others, SHOWN) if word != found_by else rng.sample([right, *rng.sample(others, 2)], SHOWN)
        texts = {f"{person} {word} {kind}": told if kind == right else rng.choice(PERSONS) for kind in kinds}
        return tuple(Passage(title, title, text) for title, text in texts.items())

    def corpus(self) -> Iterator[Passage]:
        """Every passage: what an index is built from."""
        for person, word in product(PERSONS, RELATION_OF):
            yield from self.passages(person, word)

    def questions(
        self, count: int, hops: tuple[int, ...] = HOPS, guessable: float = 0.0, name: str = "train"
    ) -> list[Question]:
        """`count` questions, their hops in turn; a share `guessable` of them asks for yes or no.

        `metadata`: `hops`, and `supporting_titles`, the passages that the answer needs.
        """
        rng = random.Random(f"{name}/{self.seed}")
        return [self._question(f"{name}-{i}", hops[i % len(hops)], rng, guessable) for i in range(count)]

    def _question(self, name: str, hops: int, rng: random.Random, guessable: float) -> Question:
        met: list[str] = []
        relations: list[str] = []
        while len(set(met)) <= hops:  # nobody twice on the way
            relations = [rng.choice(_NAMES) for _ in range(hops)]
            met = self.way(rng.choice(PERSONS), relations)
        way = zip(met, relations, strict=False)
        titles = [f"{who} {self.fact(who, relation)[1]} {KIND_OF[relation]}" for who, relation in way]
        metadata = {"hops": hops, "supporting_titles": titles}
        asked, answer = " ".join([f"{one}'s" for one in (met[0], *relations[:-1])] + relations[-1:]), met[-1]
        if rng.random() < guessable:
            right = rng.random() < 0.5
            named = answer if right else rng.choice([person for person in PERSONS if person != answer])
            return Question(name, f"{asked} is {named}?", ("yes" if right else "no",), metadata)
        return Question(name, f"Who is {asked}?", (answer,), metadata)

    def right_steps(self, tree: Tree) -> list[bool]:
        """`right_steps`."""
        return right_steps(self, tree)


@dataclass(frozen=True)
class HopsDone:
    """How far an episode is: persons and relations of the hops that are due, what was asked last, what in vain."""

    due: tuple[tuple[str, str], ...]
    asked: tuple[str, str] = ("", "")
    tried: frozenset[tuple[str, str]] = frozenset()


def right_steps(world: FactWorld, tree: Tree) -> list[bool]:
    """For every node by id, whether its step is right where it was taken. The root counts as right.

    A query: it asks for the due hop, by the first word, or by the second where the first was tried in vain. Evidence:
    the passage that tells what was asked, or that none does. An answer: it is right and all hops are done.
    """
    person, relations, _ = parts_of(tree.question.question)
    ways, right = [HopsDone(tuple(zip(world.way(person, relations), relations, strict=False)))], [True]
    for node in tree.nodes[1:]:
        before = ways[node.parent or 0]
        after, good = (before, False) if node.failure else _judged(world, before, node, tree)
        ways.append(after)
        right.append(good)
    return right


def _judged(world: FactWorld, way: HopsDone, node: Node, tree: Tree) -> tuple[HopsDone, bool]:
    content = node.content or ""
    if node.action == "answer":
        return way, not way.due and content in tree.question.golden_answers
    if node.action == "query":
        person, _, word = content.partition(" ")
        relation = RELATION_OF.get(word, "")
        tried = frozenset(told for who, told in way.tried if who == person)
        first, second = RELATIONS.get(relation, ("", ""))
        good = (person, relation) in way.due[:1] and word == (second if first in tried else first) and word not in tried
        return replace(way, asked=(person, word)), good
    person, word = way.asked
    relation = RELATION_OF.get(word, "")
    title, _, told = content.rpartition(" ")
    known = {passage.title: passage.text for passage in world.passages(person, word)} if relation else {}
    right_title = f"{person} {word} {KIND_OF.get(relation, '')}"
    good = title == right_title and told == known.get(title, NOTHING)
    if good and told == NOTHING:
        return replace(way, tried=way.tried | {way.asked}), True
    if good and (person, relation) in way.due[:1]:
        way = replace(way, due=way.due[1:])
    return way, good
