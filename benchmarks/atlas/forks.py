"""Forks: "the land neighbour of X whose dialling code is +257": the first neighbours that one looks at are not it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.atlas.model import AtlasWorld, Entity, pick, sentence_case, with_article
from benchmarks.atlas.questions import answers_of, fill, given_away, said
from benchmarks.atlas.questions_geography import ASKS

CONDITIONS = {
    "dialling": "the dialling code {v}",
    "domain": "the internet domain {v}",
    "letters": "the three-letter code {v}",
    "area": "an area of {v} square kilometres",
    "population": "{v} inhabitants",
    "holiday_date": "a national holiday on {v}",
}
"""What tells a neighbour from the others, in the question's words."""
ASKED = ("capital", "currency", "language", "parts", "holiday_date", "population", "area")
MOST_DECOYS = 4
LISTS = ("neighbours", "some_neighbours")


@dataclass(frozen=True)
class Look:
    """A look at one neighbour: what is needed, the query for it, the value, and the passage that states it."""

    name: str
    need: str
    query: str
    value: str
    row: int


@dataclass(frozen=True)
class Fork:
    """A question about the one neighbour of a country that meets a condition.

    `decoys` stand before it in the list of neighbours, `check` is the look at itself; `list_row` is the passage of the
    list. `group` decides the split: that of the country asked about.
    """

    text: str
    answers: tuple[str, ...]
    condition: str
    asked: str
    group: str
    need: str
    query: str
    evidence: str
    brief: str
    list_row: int
    decoys: tuple[Look, ...]
    check: Look
    told: str
    found: str


def forks(world: AtlasWorld) -> Iterator[Fork]:
    """Every fork of the world, also those whose first candidate is the right one."""
    countries = {with_article(entity.name): entity for entity in _countries(world)}
    for start in _countries(world):
        for relation in LISTS:
            if relation in start.facts and world.stated(start.key, relation):
                names = start.facts[relation].text.replace(" and ", ", ").split(", ")
                yield from _forks_of(world, start, relation, [countries[name] for name in names if name in countries])


def _countries(world: AtlasWorld) -> list[Entity]:
    return [entity for entity in world.entities.values() if entity.kind == "country"]


def _forks_of(world: AtlasWorld, start: Entity, relation: str, neighbours: Sequence[Entity]) -> Iterator[Fork]:
    for condition in CONDITIONS:
        tellable = [one for one in neighbours if world.stated(one.key, condition)]
        values = [one.facts[condition].text for one in tellable]
        for place, target in enumerate(tellable[: MOST_DECOYS + 1]):
            if values.count(values[place]) > 1:
                continue
            for asked in ASKED:
                if asked != condition and _together(world, target, condition, asked):
                    fork = _fork(world, start, relation, tellable[:place], target, condition, asked)
                    if not given_away(target.facts[asked].text, fork.text):
                        yield fork


def _together(world: AtlasWorld, entity: Entity, condition: str, asked: str) -> bool:
    """Whether one passage states both, so that who checks the condition reads the answer."""
    if not world.stated(entity.key, asked):
        return False
    return world.rows[entity.key, condition] == world.rows[entity.key, asked]


def _fork(
    world: AtlasWorld, start: Entity, relation: str, decoys: Sequence[Entity], target: Entity, condition: str,
    asked: str,
) -> Fork:  # fmt: skip
    value, answer = target.facts[condition].text, target.facts[asked]
    described = f"the land neighbour of {start.label} with {CONDITIONS[condition].format(v=value)}"
    question = fill(pick(ASKS["country", asked].questions, start.key, target.key, condition), target, described)
    query = fill(pick(ASKS["country", "neighbours"].queries, start.key, target.key), start, start.label)
    sentences = dict.fromkeys((world.evidence(target.key, condition), world.evidence(target.key, asked)))
    return Fork(
        text=question,
        answers=answers_of(answer),
        condition=condition,
        asked=asked,
        group=target.group,
        need=f"the land neighbours of {start.label}",
        query=query,
        evidence=world.evidence(start.key, relation),
        brief=f"{sentence_case(start.name)} borders {start.facts[relation].text}",
        list_row=world.rows[start.key, relation],
        decoys=tuple(_check(world, decoy, condition) for decoy in decoys),
        check=_check(world, target, condition),
        told=" ".join(sentences),
        found=f"{sentence_case(target.name)} has {value} and {said(answer)}",
    )


def _check(world: AtlasWorld, entity: Entity, condition: str) -> Look:
    ask = ASKS["country", condition]
    return Look(
        entity.name,
        fill(ask.need, entity, entity.label),
        fill(ask.queries[0], entity, entity.label),
        entity.facts[condition].text,
        world.rows[entity.key, condition],
    )
