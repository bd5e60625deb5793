"""Comparison and yes/no questions: two things of one kind, or one thing and a claim about it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.atlas.model import AtlasWorld, Entity, pick, plain, sentence_case
from benchmarks.atlas.questions import QuestionRow, hop_for, said, shares_words
from benchmarks.atlas.questions_elements import ALL

Wordings = tuple[tuple[str, str], ...]  # the question with {a} and {b}; "more" or "less"
COMPARE: dict[tuple[str, str], Wordings] = {
    ("country", "population"): (
        ("Which country has more inhabitants, {a} or {b}?", "more"),
        ("Do more people live in {a} or in {b}?", "more"),
        ("Which is home to fewer people, {a} or {b}?", "less"),
        ("Of {a} and {b}, which has the smaller population?", "less"),
    ),
    ("country", "area"): (
        ("Which country covers more ground, {a} or {b}?", "more"),
        ("Which has the larger territory, {a} or {b}?", "more"),
        ("Of {a} and {b}, which is smaller in area?", "less"),
        ("Which country is larger, {a} or {b}?", "more"),
    ),
    ("city", "population"): (
        ("Which city has more inhabitants, {a} or {b}?", "more"),
        ("Which is the bigger city by population, {a} or {b}?", "more"),
        ("Do fewer people live in {a} or in {b}?", "less"),
        ("Of the cities {a} and {b}, which is the smaller one?", "less"),
    ),
    ("airport", "elevation"): (
        ("Which airport stands higher above the sea, {a} or {b}?", "more"),
        ("Which has the lower elevation, {a} or {b}?", "less"),
    ),
    ("state", "statehood"): (
        ("Which became a state first, {a} or {b}?", "less"),
        ("Which joined the United States later, {a} or {b}?", "more"),
    ),
    ("state", "counties"): (
        ("Which has more counties, {a} or {b}?", "more"),
        ("Which is divided into fewer counties, {a} or {b}?", "less"),
    ),
    ("element", "year"): (
        ("Which element was discovered first, {a} or {b}?", "less"),
        ("Which was found later, {a} or {b}?", "more"),
        ("Was {a} or {b} discovered earlier?", "less"),
    ),
    ("element", "number"): (
        ("Which element has the higher atomic number, {a} or {b}?", "more"),
        ("Whose atoms have fewer protons, those of {a} or those of {b}?", "less"),
    ),
    ("currency", "since"): (
        ("Which money is older in its present form, {a} or {b}?", "less"),
        ("Which came into use later, {a} or {b}?", "more"),
    ),
}
TRAITS = ("region", "continent", "country", "state", "home", "period", "family", "zone")
YEARS = frozenset({"statehood", "year", "since"})
# relation → questions whether two things agree on it
SAME: dict[tuple[str, str], tuple[str, ...]] = {
    ("country", "currency"): (
        "Do {a} and {b} use the same currency?",
        "Can one pay with the same money in {a} and in {b}?",
    ),
    ("country", "language"): (
        "Do {a} and {b} have the same official language?",
        "Is the official language of {a} also that of {b}?",
    ),
    ("country", "region"): (
        "Do {a} and {b} lie in the same part of the world?",
        "Are {a} and {b} counted in the same world region?",
    ),
    ("country", "week"): ("Does the week begin on the same day in {a} and in {b}?",),
    ("city", "country"): (
        "Are {a} and {b} in the same country?",
        "Do the cities of {a} and {b} belong to one country?",
    ),
    ("city", "state"): ("Are {a} and {b} in the same US state?",),
    ("airport", "country"): ("Are {a} and {b} in the same country?",),
    ("element", "place"): ("Were {a} and {b} discovered in the same country?",),
    ("element", "discoverer"): (
        "Were {a} and {b} discovered by the same person?",
        "Did one and the same person discover {a} and {b}?",
    ),
    ("element", "producer"): ("Does the same country lead the production of {a} and of {b}?",),
    ("element", "period"): ("Do {a} and {b} stand in the same period of the periodic table?",),
    ("language", "script"): ("Are {a} and {b} written in the same script?", "Do {a} and {b} share a writing system?"),
    ("state", "zone"): ("Do clocks in {a} and in {b} follow the same time?",),
}
# relation → questions whether the value is {v}
CLAIM: dict[tuple[str, str], tuple[str, ...]] = {
    ("country", "capital"): ("Is {v} the capital of {x}?",),
    ("country", "language"): ("Is {v} the official language of {x}?",),
    ("country", "region"): ("Does {x} lie in {v}?",),
    ("country", "only_neighbour"): ("Is {v} the only land neighbour of {x}?",),
    ("country", "week"): ("Is {v} the first day of the week in {x}?",),
    ("city", "country"): ("Is {x} a city in {v}?",),
    ("airport", "city"): ("Does {x} serve {v}?",),
    ("element", "discoverer"): ("Was {x} discovered by {v}?",),
    ("element", "producer"): ("Is {v} the leading producer of {x}?",),
    ("language", "script"): ("Is {x} written in the {v} script?",),
    ("language", "direction"): ("Is {x} written from {v}?",),
    ("state", "capital"): ("Is {v} the capital of {x}?",),
    ("currency", "before"): ("Did {x} replace the {v}?",),
}


def _by_split(world: AtlasWorld, kind: str, relation: str, split_of: Mapping[str, str]) -> list[list[Entity]]:
    found: dict[str, list[Entity]] = defaultdict(list)
    for entity in world.entities.values():
        if entity.kind == kind and world.stated(entity.key, relation):
            found[split_of[entity.group]].append(entity)
    return [found[split] for split in sorted(found)]


def _near(entity: Entity, others: Sequence[Entity], fits: Callable[[Entity], bool], count: int) -> list[Entity]:
    """Up to `count` partners that fit: those most like the entity first, then in an order fixed by a hash."""
    able = [other for other in others if other.key != entity.key and other.label != entity.label and fits(other)]
    return sorted(able, key=lambda other: (-_likeness(entity, other), pick(range(99_991), entity.key, other.key)))[
        :count
    ]


def _likeness(first: Entity, second: Entity) -> int:
    """How many of the traits that make two things easy to confuse they share."""
    return sum(
        trait in first.facts and trait in second.facts and first.facts[trait].text == second.facts[trait].text
        for trait in TRAITS
    )


def comparison(world: AtlasWorld, split_of: Mapping[str, str]) -> Iterator[QuestionRow]:
    for (kind, relation), wordings in COMPARE.items():
        for entities in _by_split(world, kind, relation, split_of):
            for entity in entities:
                own = entity.facts[relation].number or 0.0
                for other in _near(
                    entity, entities, lambda o, r=relation, own=own: _gap(r, own, o.facts[r].number or 0.0), 2
                ):
                    yield _compared(world, entity, other, relation, wordings)


def _gap(relation: str, first: float, second: float) -> bool:
    low, high = sorted((first, second))
    if relation in YEARS:
        return high - low >= 5
    return 1.25 * low <= high <= 12 * low if relation != "number" else high > low + 3


def _compared(world: AtlasWorld, first: Entity, second: Entity, relation: str, wordings: Wordings) -> QuestionRow:
    kind = first.kind
    wording, wanted = pick(wordings, first.key, second.key, relation)
    ranked = sorted((first, second), key=lambda entity: entity.facts[relation].number or 0.0)
    winner = ranked[1] if wanted == "more" else ranked[0]
    ask = ALL[kind, relation]
    hops = tuple(hop_for(world, entity, relation, ask, entity.label) for entity in (first, second))
    low, high = (entity.facts[relation].text for entity in ranked)
    more, less = ("is later than", "is earlier than") if relation in YEARS else ("is more than", "is less than")
    proof = f"{high} {more} {low}" if wanted == "more" else f"{low} {less} {high}"
    sides = ", ".join(f"{entity.label} has {entity.facts[relation].text}" for entity in (first, second))
    told = f"{sentence_case(sides)}; {proof}, so it is {winner.label}"
    bare = winner.label.removeprefix("the ")
    bare = winner.title.split(" (")[0] if kind in ("country", "state", "city") else bare
    answers = tuple(
        dict.fromkeys((sentence_case(bare) if kind == "currency" else bare, bare, winner.label, winner.name))
    )
    text = wording.format(a=first.label, b=second.label)
    groups = frozenset({first.group, second.group})
    return QuestionRow(text, answers, "comparison", (f"{kind}.{relation}",), hops, groups, told)


def yes_no(world: AtlasWorld, split_of: Mapping[str, str]) -> Iterator[QuestionRow]:
    for (kind, relation), wordings in SAME.items():
        for entities in _by_split(world, kind, relation, split_of):
            for entity in entities:
                own = plain(entity.facts[relation].text)
                agreeing = _near(entity, entities, lambda o, r=relation, own=own: plain(o.facts[r].text) == own, 1)
                differing = _near(entity, entities, lambda o, r=relation, own=own: plain(o.facts[r].text) != own, 1)
                for other in (*agreeing, *differing):
                    yield _agreeing(world, entity, other, relation, wordings)
    for (kind, relation), wordings in CLAIM.items():
        for entities in _by_split(world, kind, relation, split_of):
            for entity in entities:
                own = plain(entity.facts[relation].text)
                others = _near(entity, entities, lambda o, r=relation, own=own: plain(o.facts[r].text) != own, 1)
                if not shares_words(entity.facts[relation].text, entity.label):
                    yield _claimed(world, entity, entity, relation, wordings)
                for other in others:
                    yield _claimed(world, entity, other, relation, wordings)


def borders(world: AtlasWorld) -> Iterator[QuestionRow]:
    """Whether two countries share a land border, asked where the passage lists all neighbours."""
    countries = [entity for entity in world.entities.values() if entity.kind == "country"]
    wordings = (
        "Does {a} share a land border with {b}?",
        "Is {b} a land neighbour of {a}?",
        "Do {a} and {b} touch by land?",
    )
    for entity in countries:
        if not world.stated(entity.key, "neighbours"):
            continue
        hop = hop_for(world, entity, "neighbours", ALL["country", "neighbours"], entity.label)
        names = f" {plain(hop.found)} "
        same = [other for other in countries if other.facts["continent"] == entity.facts["continent"]]
        inside = _near(entity, same, lambda o, names=names: f" {plain(o.name)} " in names, 1)
        outside = _near(entity, same, lambda o, names=names: plain(o.name) not in names, 1)
        for other, true in [(other, True) for other in inside] + [(other, False) for other in outside]:
            text = pick(wordings, entity.key, other.key).format(a=entity.label, b=other.label)
            told = f"{sentence_case(other.name)} is {'' if true else 'not '}among the land neighbours of {entity.label}"
            answer = ("yes" if true else "no",)
            yield QuestionRow(text, answer, "yes-no", ("country.neighbours",), (hop,), frozenset({entity.group}), told)


def _agreeing(world: AtlasWorld, first: Entity, second: Entity, relation: str, wordings: Sequence[str]) -> QuestionRow:
    ask = ALL[first.kind, relation]
    hops = tuple(hop_for(world, entity, relation, ask, entity.label) for entity in (first, second))
    same = plain(first.facts[relation].text) == plain(second.facts[relation].text)
    text = pick(wordings, first.key, second.key).format(a=first.label, b=second.label)
    found = [said(entity.facts[relation]) for entity in (first, second)]
    told = (
        f"It is {found[0]} in both cases, so they agree"
        if same
        else f"One is {found[0]} and the other {found[1]}, so they differ"
    )
    groups = frozenset({first.group, second.group})
    return QuestionRow(text, ("yes" if same else "no",), "yes-no", (f"{first.kind}.{relation}",), hops, groups, told)


def _claimed(world: AtlasWorld, entity: Entity, source: Entity, relation: str, wordings: Sequence[str]) -> QuestionRow:
    ask = ALL[entity.kind, relation]
    claim, real = source.facts[relation].text, entity.facts[relation].text
    text = pick(wordings, entity.key, source.key).format(x=entity.label, v=claim)
    hop = hop_for(world, entity, relation, ask, entity.label)
    true = plain(claim) == plain(real)
    told = (
        f"{sentence_case(hop.need)} is {real}, as the question says"
        if true
        else f"{sentence_case(hop.need)} is {real}, not {claim}"
    )
    relations = (f"{entity.kind}.{relation}",)
    return QuestionRow(text, ("yes" if true else "no",), "yes-no", relations, (hop,), frozenset({entity.group}), told)
