"""Every one-hop and bridge question that the world's passages answer."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.atlas.model import AtlasWorld, Entity, Value, pick, plain, sentence_case
from benchmarks.atlas.questions_elements import ALL
from benchmarks.atlas.questions_geography import Ask


@dataclass(frozen=True)
class Hop:
    """One fact on the way: what is missing, how to search for it, the sentences that hold it, and what they say."""

    need: str
    queries: tuple[str, ...]
    evidence: str
    row: int
    found: str


@dataclass(frozen=True)
class QuestionRow:
    """A question with its answers (the first stands in a gold passage) and the hops that lead there.

    `told` says in a few words why the answer follows; `groups` are the entity groups of the gold passages.
    """

    text: str
    answers: tuple[str, ...]
    kind: str
    relations: tuple[str, ...]
    hops: tuple[Hop, ...]
    groups: frozenset[str]
    told: str
    bridge: str | None = None

    @property
    def rows(self) -> tuple[int, ...]:
        """Corpus rows of the passages that the hops need, each once, in the order of the hops."""
        return tuple(dict.fromkeys(hop.row for hop in self.hops))


def fill(pattern: str, entity: Entity, subject: str, value: str = "") -> str:
    """The pattern in words; `subject` names the entity or describes it."""
    facts = {relation: fact.text for relation, fact in entity.facts.items()}
    return pattern.format(**{**facts, "bare": entity.name, "x": subject, "X": sentence_case(subject), "v": value})


def said(value: Value) -> str:
    """The value inside a sentence: money takes an article."""
    return f"the {value.text}" if str(value.link).startswith("currency:") else value.text


def answers_of(value: Value) -> tuple[str, ...]:
    """The golden answers of a value: without its article, as it is written, its other names."""
    bare = value.text.removeprefix("the ")
    return tuple(dict.fromkeys((bare, value.text, *value.aliases)))


def shares_words(first: str, second: str) -> bool:
    """Whether a word of five letters or more begins the same way in both: a question must not give its link away."""
    stems = {word[:5] for word in plain(first).split() if len(word) >= 5}
    return any(word[:5] in stems for word in plain(second).split() if len(word) >= 5)


def given_away(answer: str, text: str) -> bool:
    """Whether the answer stands in the question already."""
    bare, asked = plain(answer.removeprefix("the ")), plain(text)
    return f" {bare} " in f" {asked} " or (len(bare) > 3 and bare in asked)


def askable(world: AtlasWorld, entity: Entity, relation: str) -> bool:
    """Whether the fact stands in a passage and has a single answer."""
    if not world.stated(entity.key, relation):
        return False
    return not (entity.kind == "person" and relation == "find0" and "alone" not in entity.facts)


def hop_for(world: AtlasWorld, entity: Entity, relation: str, ask: Ask, subject: str) -> Hop:
    """One look-up: what is needed, queries for it, its evidence, the passage's row and the value."""
    return Hop(
        fill(ask.need, entity, subject),
        tuple(fill(query, entity, subject) for query in ask.queries),
        world.evidence(entity.key, relation),
        world.rows[entity.key, relation],
        said(entity.facts[relation]),
    )


def one_hop(world: AtlasWorld) -> Iterator[QuestionRow]:
    """A question for every askable fact whose answer the wording does not give away."""
    for entity in world.entities.values():
        for (kind, relation), ask in ALL.items():
            if kind != entity.kind or not ask.questions or not askable(world, entity, relation):
                continue
            text = fill(pick(ask.questions, entity.key, relation), entity, entity.label)
            value = entity.facts[relation]
            loose = relation in ("currency", "language", "own_name")
            if given_away(value.text, text) or (not loose and shares_words(value.text, text)):
                continue
            hop = hop_for(world, entity, relation, ask, entity.label)
            told = f"{sentence_case(hop.need)} is {said(value)}"
            yield QuestionRow(
                text, answers_of(value), "one-hop", (f"{kind}.{relation}",), (hop,), frozenset({entity.group}), told
            )


@dataclass(frozen=True)
class _Lead:
    """A way to describe the bridge entity without naming it. `before`: what its own words lean on, the first first."""

    words: str
    hop: Hop
    relation: str
    group: str
    before: tuple["_Lead", ...] = ()

    @property
    def way(self) -> tuple["_Lead", ...]:
        """All leads up to this one."""
        return (*self.before, self)


def _leads(world: AtlasWorld) -> Iterator[tuple[Entity, _Lead]]:
    unique = Counter(
        (entity.kind, relation, plain(fact.text))
        for entity in world.entities.values()
        for relation, fact in entity.facts.items()
    )
    for entity in world.entities.values():
        for (kind, relation), ask in ALL.items():
            if kind != entity.kind or not askable(world, entity, relation):
                continue
            value = entity.facts[relation]
            target = world.entities.get(str(value.link))
            hop = hop_for(world, entity, relation, ask, entity.label)
            if target and ask.noun:
                words = fill(pick(ask.noun, entity.key, relation), entity, entity.label)
                if not shares_words(target.name, words):
                    yield target, _Lead(words, hop, f"{kind}.{relation}", entity.group)
            if ask.inverse and unique[kind, relation, plain(value.text)] == 1:
                words = fill(pick(ask.inverse, entity.key, relation), entity, entity.label, value.text)
                if not shares_words(entity.label, words):
                    back = _inverse_hop(world, entity, relation, words)
                    yield entity, _Lead(words, back, f"of {kind}.{relation}", entity.group)


def _inverse_hop(world: AtlasWorld, entity: Entity, relation: str, words: str) -> Hop:
    bare = words.removeprefix("the ")
    queries = (bare, f"Which is {words}?")
    return Hop(words, queries, world.evidence(entity.key, relation), world.rows[entity.key, relation], entity.label)


def _base_leads(world: AtlasWorld) -> Iterator[tuple[Entity, _Lead]]:
    """ "The country whose currency is the lek": only where one country has money of that name."""
    for entity in world.entities.values():
        base = entity.facts.get("base")
        if entity.kind != "currency" or base is None:
            continue
        country = world.entities[str(entity.facts["country"].link)]
        words = pick(
            (f"the country whose money is the {base.text}", f"the country where people pay with the {base.text}"),
            entity.key,
        )
        if world.stated(country.key, "currency") and not shares_words(country.name, words):
            yield (
                country,
                _Lead(words, _inverse_hop(world, country, "currency", words), "of country.currency", country.group),
            )


def _longer(world: AtlasWorld, leads: Iterable[tuple[Entity, _Lead]]) -> Iterator[tuple[Entity, _Lead]]:
    """A hop more: "the capital of the country where Bemba is spoken"."""
    for entity, lead in leads:
        for (kind, relation), ask in ALL.items():
            if kind != entity.kind or not ask.noun or not askable(world, entity, relation):
                continue
            target = world.entities.get(str(entity.facts[relation].link))
            words = fill(pick(ask.noun, lead.words, relation), entity, lead.words)
            hop = hop_for(world, entity, relation, ask, entity.label)
            met = {each.hop.row for each in lead.way}
            if target is None or hop.row in met or shares_words(target.name, words):
                continue
            if given_away(target.name, world.passages[lead.hop.row].text):
                continue
            yield target, _Lead(words, hop, f"{kind}.{relation}", entity.group, lead.way)


def bridge(world: AtlasWorld, hops: int = 2) -> Iterator[QuestionRow]:
    """Questions of so many hops, two or more, that do not name what stands between."""
    leads: Iterable[tuple[Entity, _Lead]] = (*_leads(world), *_base_leads(world))
    for _ in range(hops - 2):
        leads = _longer(world, leads)
    for entity, lead in leads:
        yield from _ends(world, entity, lead)
    if hops == 2:
        yield from _other_elements(world)


def _ends(world: AtlasWorld, entity: Entity, lead: _Lead) -> Iterator[QuestionRow]:
    """What may be asked of an entity that a lead describes."""
    for (kind, relation), ask in ALL.items():
        if kind != entity.kind or not ask.questions or not askable(world, entity, relation):
            continue
        value, way = entity.facts[relation], lead.way
        if any(given_away(value.text, world.passages[each.hop.row].text) for each in way):
            continue  # an earlier passage says it already
        if world.rows[entity.key, relation] in {each.hop.row for each in way}:
            continue
        if lead.relation.endswith(f"{kind}.{relation}"):
            continue
        text = fill(pick(ask.questions, lead.words, relation), entity, lead.words)
        if given_away(entity.title.split(" (")[0], text):
            continue
        if given_away(value.text, text) or shares_words(entity.label, text) or shares_words(value.text, lead.words):
            continue
        hop = hop_for(world, entity, relation, ask, entity.label)
        told = f"{sentence_case(hop.need)} is {said(value)}"
        groups = frozenset({entity.group, *(each.group for each in way)})
        relations = (*(each.relation for each in way), f"{kind}.{relation}")
        hops = (*(each.hop for each in way), hop)
        yield QuestionRow(text, answers_of(value), "bridge", relations, hops, groups, told, entity.title)


def _other_elements(world: AtlasWorld) -> Iterator[QuestionRow]:
    """Which other element is credited to the discoverer of …?"""
    ask = ALL["element", "discoverer"]
    for entity in world.entities.values():
        person = world.entities.get(str(entity.facts["discoverer"].link)) if "discoverer" in entity.facts else None
        if person is None or person.facts["count"].text != "2" or not world.stated(entity.key, "discoverer"):
            continue
        if not world.stated(person.key, "find1"):
            continue
        other = next(person.facts[name] for name in ("find0", "find1") if person.facts[name].text != entity.name)
        wording = (
            "Which other element is credited to the discoverer of {x}?",
            "The person who discovered {x} also found which element?",
        )
        need = f"the other element of {person.name}"
        queries = (f"elements discovered by {person.name}", f"What else did {person.name} discover?")
        second = Hop(need, queries, world.evidence(person.key, "find1"), world.rows[person.key, "find1"], other.text)
        yield QuestionRow(
            pick(wording, entity.key).format(x=entity.name),
            (other.text,),
            "bridge",
            ("element.discoverer", "person.other"),
            (hop_for(world, entity, "discoverer", ask, entity.name), second),
            frozenset({entity.group, person.group}),
            f"Besides {entity.name}, {person.name} found {other.text}",
            person.title,
        )
