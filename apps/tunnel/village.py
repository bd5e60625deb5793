"""Village: a small world that must be read, made from a seed. Its facts are those of the tunnel's kind, told in prose.

A person has somebody for every relation. A page tells one such fact of the person in its title, in 3 to 5 numbered
lines of a sentence each: the fact, what else is known of the person, and the same relation of strangers. In a third of
the pages a pronoun stands in the fact for the person. `told="list"`: a page is its fact alone, as plain items.

Queries are free text for a BM25 index of the pages (`build`). Evidence is a line of a page, copied behind the page's
title, so that the marks of `steprag pairs` see whose fact was kept: they read no pronoun.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

from apps.tunnel.grow import with_ends
from apps.tunnel.village_words import FILLERS, HELD, LINES, MEN, PHRASINGS, SURNAMES, UNSEEN, WOMEN
from apps.tunnel.world import RELATIONS
from data_generation.worked import WorkedEpisode, WorkedStep
from indexes.commands.build import build_index
from indexes.config import IndexConfig
from steprag.agent.environment import Environment
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.profiles import load_profile
from steprag.agent.retriever import Retriever
from steprag.records.jsonl import write_records
from steprag.scores.metrics import normalise
from steprag.tree import Node, Tree
from steprag.types import Passage, Question

NAMES = tuple(RELATIONS)
PERSONS, STRANGERS = 64, 24
"""Whom pages are about, and whom they only mention."""
HOPS = (1, 2, 3)
SHOWN = 2  # passages a search
DEPTH = 9
"""Steps an episode: four searches with their evidence, and the answer."""
PRONOUNS = 1 / 3
"""The share of text pages whose fact names its person by a pronoun."""


@dataclass(frozen=True)
class Person:
    """Whom pages tell of. `she`: which pronouns stand for the name."""

    name: str
    she: bool

    def words(self, *, named: bool) -> dict[str, str]:
        """What stands for the person in `PHRASINGS` and `FILLERS`."""
        who, whom, own = ("she", "her", "her") if self.she else ("he", "him", "his")
        if named:
            name, whose = self.name, f"{self.name}'s"
            return {"Who": name, "who": name, "whom": name, "Whose": whose, "whose": whose, "own": own}
        return {"Who": who.title(), "who": who, "whom": whom, "Whose": own.title(), "whose": own, "own": own}


@dataclass(frozen=True)
class VillageHop:
    """A step of the right way: what to ask, the page that tells it, what to keep of it, and to whom it leads."""

    query: str
    page: str
    evidence: str
    person: str


@dataclass(frozen=True)
class Village:
    """The pages and questions of one seed. `told`: "text", or "list"; `fresh`: names are those that training never
    shows; `unseen`: so are phrasings.
    """

    seed: int
    told: str = "text"
    fresh: bool = False
    unseen: bool = False

    @cached_property
    def _everybody(self) -> tuple[Person, ...]:
        """Nobody shares a surname."""
        rng, count = random.Random(f"persons/{self.seed}"), PERSONS + STRANGERS
        drawn = [(rng.choice((MEN, WOMEN)[place % 2].split()), place % 2 == 1) for place in range(count)]
        surnames = rng.sample([name for name in self._surnames() if (name in HELD) == self.fresh], count)
        return tuple(Person(f"{first} {last}", she) for (first, she), last in zip(drawn, surnames, strict=True))

    def _surnames(self) -> Sequence[str]:
        return SURNAMES

    @property
    def persons(self) -> tuple[Person, ...]:
        """Whom pages are about."""
        return self._everybody[:PERSONS]

    @cached_property
    def _facts(self) -> dict[tuple[str, str], Person]:
        rng = random.Random(f"facts/{self.seed}")
        return {(one.name, relation): rng.choice([other for other in self.persons if other != one])
                for one, relation in product(self.persons, NAMES)}  # fmt: skip

    def page(self, person: Person, relation: str) -> tuple[Passage, str]:
        """The page of a fact, and the line of it that states the fact."""
        rng = random.Random(f"page/{self.seed}/{person.name}/{relation}")
        whom = self._facts[person.name, relation]
        name = f"{person.name} {relation}".lower().replace(" ", "-")
        if self.told == "list":
            text = f"{person.name} | {relation} | {whom.name}"
            return Passage(name, person.name, text), text
        hidden, own = rng.random() < PRONOUNS, rng.sample(FILLERS, rng.choice((1, 2)))
        fact = self._told(person, relation, whom, rng, named=not hidden)
        first = own.pop().format(**person.words(named=True))
        block = [fact, first, *(filler.format(**person.words(named=False)) for filler in own)]
        lead = first if hidden or rng.random() < 0.5 else fact  # it names the person
        block.sort(key=lambda sentence: (sentence != lead, rng.random()))
        others = [self._aside(relation, rng) for _ in range(rng.choice((1, 2)))]
        cut, start = rng.randint(0, len(others)), rng.randrange(len(LINES) - len(block) - len(others) + 1)
        told = [*others[:cut], *block, *others[cut:]]
        lines = [f"{number} {line}" for number, line in zip(LINES[start:], told, strict=False)]
        return Passage(name, person.name, " ".join(lines)), lines[told.index(fact)]

    def _told(self, who: Person, relation: str, whom: Person, rng: random.Random, *, named: bool) -> str:
        phrasing = rng.choice(PHRASINGS[UNSEEN:] if self.unseen else PHRASINGS[:UNSEEN])
        return phrasing.format(r=relation, o=whom.name, **who.words(named=named))

    def _aside(self, relation: str, rng: random.Random) -> str:
        """A sentence about a stranger, who is named."""
        other, whom = rng.sample(self._everybody[PERSONS:], 2)
        return self._told(other, relation, whom, rng, named=True)

    def corpus(self) -> Iterator[Passage]:
        """Every page."""
        return (self.page(person, relation)[0] for person, relation in product(self.persons, NAMES))

    def build(self, folder: Path) -> Path:
        """The BM25 index of all pages, built in `folder` unless it is there."""
        corpus = folder / "pages.jsonl"
        if not (folder / "index").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_records(corpus, self.corpus())
        return build_index(str(corpus), folder / "index", IndexConfig.model_validate({"encoder": "none"})).path

    def questions(self, count: int, hops: Sequence[int] = HOPS, name: str = "train") -> list[Question]:
        """`count` questions, their hops in turn. `metadata` marks pages (`supporting_ids`) and what they state."""
        rng = random.Random(f"{name}/{self.seed}")
        return [self._question(f"{name}-{self.seed}-{i}", hops[i % len(hops)], rng) for i in range(count)]

    def _question(self, name: str, hops: int, rng: random.Random) -> Question:
        way: list[Person] = []
        relations: list[str] = []
        while len(set(way)) <= hops:  # nobody twice on the way
            relations, way = [rng.choice(NAMES) for _ in range(hops)], [rng.choice(self.persons)]
            for relation in relations:
                way.append(self._facts[way[-1].name, relation])
        if rng.random() < 0.5:
            asked = " of ".join([*(f"the {relation}" for relation in reversed(relations)), way[0].name])
        else:
            asked = "'s ".join([way[0].name, *relations])
        chain = self._chain(way[0].name, relations)
        facts = [{"passage": hop.page, "anyof": [[hop.person]]} for hop in chain]
        metadata = {"hops": hops, "supporting_ids": [hop.page for hop in chain], "facts": facts}
        return Question(name, f"Who is {asked}?", (way[-1].name,), metadata)

    def chain(self, question: Question) -> list[VillageHop]:
        """The right way to a question's answer."""
        return self._chain(*parts_of(question.question))

    def _chain(self, person: str, relations: Iterable[str]) -> list[VillageHop]:
        hops: list[VillageHop] = []
        for relation in relations:
            hops.append(self.hop(person, relation))
            person = hops[-1].person
        return hops

    def hop(self, person: str, relation: str) -> VillageHop:
        """How a fact is asked and kept."""
        page, fact = self.page(next(one for one in self.persons if one.name == person), relation)
        evidence = fact if self.told == "list" else f"{person}: {fact}"
        return VillageHop(f"{relation} of {person}", page.id, evidence, self._facts[person, relation].name)

    def right_steps(self, tree: Tree) -> list[bool]:
        """For every node by id, whether its step is right where it was taken. The root counts as right.

        A query: it finds the page that is due. Evidence: it is the fact of that page. An answer: it is right and no
        page is due any more.
        """
        chain, done, sees, right = self.chain(tree.question), [0], [False], [True]
        for node in tree.nodes[1:]:
            before, seen = done[node.parent or 0], sees[node.parent or 0]
            due = chain[before] if before < len(chain) else None
            good = node.failure is None and _is_right(node, tree, due, seen)
            done.append(before + (good and node.action == "evidence"))
            sees.append(good and node.action == "query")
            right.append(good)
        return right


def worked(question: Question, hops: Iterable[VillageHop], learns: Callable[[str, int], bool]) -> WorkedEpisode:
    """An episode of `steprag trees worked` that takes these hops. `learns`: of an action and the hops before it,
    whether its step gives a row.
    """
    steps: list[WorkedStep] = []
    person = ""
    for place, hop in enumerate(hops):
        steps += [_written("query", hop.query, learns("query", place)),
                  _written("evidence", hop.evidence, learns("evidence", place), hop.page)]  # fmt: skip
        person = hop.person
    steps.append(_written("answer", person, learns("answer", len(steps) // 2)))
    return WorkedEpisode(question.id, question.question, question.golden_answers, tuple(steps), question.metadata)


def _written(action: str, content: str, learn: bool, *gold: str) -> WorkedStep:
    known = TRANSCRIPT.action(action)
    return WorkedStep(action, known.head + known.tail(content), gold, learn)


def parts_of(question: str) -> tuple[str, list[str]]:
    """Of a question the person and the relations, in the order in which they are asked."""
    asked = question.removeprefix("Who is ").removesuffix("?")
    if "'s " in asked:
        person, *relations = asked.split("'s ")
        return person, relations
    *relations, person = re.split(" of (?:the )?", asked.removeprefix("the "))
    return person, relations[::-1]


def _is_right(node: Node, tree: Tree, due: VillageHop | None, seen: bool) -> bool:
    """`seen`: the step before found the page that is due."""
    said = normalise(node.content or "")
    if node.action == "answer":
        return due is None and said in map(normalise, tree.question.golden_answers)
    if node.action == "query":
        return due is not None and any(passage.id == due.page for passage in node.passages)
    return due is not None and seen and said == normalise(due.evidence)


def environment_over(retriever: Retriever) -> Environment:
    """The agent's environment over a village's index; prompts show the end of each step."""
    return with_ends(Environment(load_profile("tunnel"), retriever, SHOWN, DEPTH))
