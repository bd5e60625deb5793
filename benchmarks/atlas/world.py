"""Joins the entities of all packages into one world and writes its passages."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.atlas.cities import Row, load_airports, load_cities
from benchmarks.atlas.countries import load_countries
from benchmarks.atlas.elements import load_matter
from benchmarks.atlas.languages import load_currencies, load_languages
from benchmarks.atlas.model import (
    AtlasPassage,
    AtlasWorld,
    Entity,
    Line,
    Value,
    listing,
    pick,
    plain,
    possessive,
    sentence_case,
)
from benchmarks.atlas.passages_elements import CURRENCY, ELEMENT, LANGUAGE, PERSON
from benchmarks.atlas.passages_geography import AIRPORT, CITY, COUNTRY, STATE, Layout, Pattern, Slot
from benchmarks.atlas.states import load_states

MINES_LEFT_OUT = frozenset({"country:CN", "country:US"})  # first for so many elements that the fact tells little
SHORTEST = 15  # words; a passage below this is not worth a place in the corpus


def load_entities() -> dict[str, Entity]:
    """Every entity of Atlas by key, with links between packages resolved."""
    countries, states = load_countries(), load_states()
    names = {country.key.removeprefix("country:"): country.name for country in countries}
    people = {country.key.removeprefix("country:"): country.facts["population"].number or 0.0 for country in countries}
    cities, raw = load_cities()
    users: dict[str, list[tuple[str, str]]] = defaultdict(list)
    speakers: dict[str, list[str]] = defaultdict(list)
    for country in countries:
        if tender := country.facts.get("currency"):
            users[tender.text].append((country.key.removeprefix("country:"), country.name))
        if language := country.facts.get("language"):
            speakers[language.text].append(country.name)
    currencies, languages = load_currencies(users), load_languages(speakers, names, people)
    airports = load_airports(raw, {city.key: city.group for city in cities})
    matter = load_matter(names)
    found = {
        entity.key: entity for entity in (*countries, *states, *cities, *airports, *currencies, *languages, *matter)
    }
    return _grouped(_joined(found, matter, raw))


def _mines(matter: Sequence[Entity]) -> dict[str, Value]:
    """The elements that each country leads in producing."""
    mined: dict[str, list[str]] = defaultdict(list)
    for element in matter:
        producer = element.facts.get("producer")
        if producer and producer.link not in MINES_LEFT_OUT:
            mined[str(producer.link)].append(element.name)
    return {key: Value(listing(names[:3])) for key, names in mined.items()}


def _outgrows(top: Entity, capital: Entity) -> bool:
    """Whether a city is clearly larger than the capital (Kuwait's capital is counted without its suburbs)."""
    if top.key == capital.key or capital.group == "country:KW":
        return False
    return (top.facts["population"].number or 0) > 1.3 * (capital.facts["population"].number or 0)


def _joined(found: dict[str, Entity], matter: Sequence[Entity], raw: dict[str, Row]) -> dict[str, Entity]:
    """Capitals, currencies and languages by name instead of code; largest cities and mines worked out."""
    mines = _mines(matter)
    biggest: dict[str, str] = {}
    for key in raw:  # falling population
        biggest.setdefault(found[key].group, key)
    for entity in [entity for entity in found.values() if entity.kind in ("country", "state")]:
        facts = dict(entity.facts)
        for relation in {"currency", "language", "capital"} & facts.keys():
            facts[relation] = _named(facts[relation], found)
        if entity.key in mines:
            facts["mined"] = mines[entity.key]
        capital = found.get(str(facts["capital"].link)) if "capital" in facts else None
        if capital and _outgrows(found[biggest[entity.key]], capital):
            facts["largest"] = _named(Value("", link=biggest[entity.key]), found)
        found[entity.key] = replace(entity, facts=facts)
        if capital:
            seat = Value(entity.name if entity.kind == "country" else entity.label, link=entity.key)
            realm = Value("country" if entity.kind == "country" else "US state")
            found[capital.key] = replace(capital, facts={**capital.facts, "seat": seat, "realm": realm})
    return found


def _named(value: Value, found: dict[str, Entity]) -> Value:
    """The value in the words of the entity it links to; without the link where Atlas has no such entity."""
    entity = found.get(str(value.link))
    if entity is None:
        return Value(value.text)
    name = entity.name.removeprefix("the ") if entity.kind == "currency" else entity.name
    other = [value.text] if entity.kind == "city" and value.text not in ("", name) else []
    folded = plain(name).title()
    if entity.kind == "city" and plain(name) != name.lower() and name.isalpha():
        other.append(folded)
    if entity.kind == "currency" and " " in name:
        other.append(name.split()[-1])
    return Value(name, tuple(dict.fromkeys(other)), link=entity.key)


def _grouped(found: dict[str, Entity]) -> dict[str, Entity]:
    """Elements that share a discoverer, and the discoverers, are put in one group."""
    root: dict[str, str] = {key: key for key, entity in found.items() if entity.kind in ("element", "person")}

    def top(key: str) -> str:
        while root[key] != key:
            key = root[key]
        return key

    for key, entity in found.items():
        if entity.kind == "person":
            for relation, value in entity.facts.items():
                if relation.startswith("find"):
                    root[top(str(value.link))] = top(key)
    return {key: replace(entity, group=top(key)) if key in root else entity for key, entity in found.items()}


def _layouts(entity: Entity) -> tuple[Layout, ...]:
    match entity.kind:
        case "country":
            return pick(COUNTRY, entity.key, "layout")
        case "element":
            return pick(ELEMENT, entity.key, "layout")
        case "state":
            return STATE
    slots = {"city": CITY, "airport": AIRPORT, "person": PERSON, "currency": CURRENCY, "language": LANGUAGE}[
        entity.kind
    ]
    return (("{t}", slots),)


def _line(entity: Entity, pattern: Pattern, at: int) -> Line:
    relations, text = pattern
    short = at == 1 and pick((True, False), entity.key, text)
    names = {
        "N": sentence_case(entity.name),
        "n": entity.name,
        "P": possessive(sentence_case(entity.name)),
        "p": possessive(entity.name),
        "It": "It" if short else sentence_case(entity.name),
        "Its": "Its" if short else possessive(sentence_case(entity.name)),
    }
    values = {relation: value.text for relation, value in entity.facts.items()}
    if "producer" in values:
        values["Producer"] = sentence_case(values["producer"])
    finds = [value.text for relation, value in entity.facts.items() if relation.startswith("find")]
    if finds:
        values["finds"] = listing(finds)
    leans = not any(f"{{{name}}}" in text for name in ("N", "n", "P", "p")) and ("{It" not in text or short)
    filled = sentence_case(text.format(**names, **values)).replace("D.C..", "D.C.")
    return Line(filled, tuple(relations.split()), leans)


def _passage(entity: Entity, title: str, slots: Iterable[Slot], stated: set[str]) -> AtlasPassage:
    """The passage of these slots; each relation is told once over all passages of the entity (`stated` grows)."""
    lines: list[Line] = []
    for slot in slots:
        able = [
            pattern
            for pattern in slot
            if all(relation in entity.facts and relation not in stated for relation in pattern[0].split())
            and (lines or any(mark in pattern[1] for mark in ("{N}", "{n}", "{P}", "{p}", "{It")))
            and not ("{seat}" in pattern[1] and entity.name == entity.facts["seat"].text)
        ]
        if not able:
            continue
        most = max(len(pattern[0].split()) for pattern in able)
        best = next(pattern[0] for pattern in able if len(pattern[0].split()) == most)
        chosen = pick([pattern for pattern in able if pattern[0] == best], entity.key, title, slot[0][0])
        lines.append(_line(entity, chosen, len(lines)))
        stated.update(lines[-1].relations)
    return AtlasPassage(entity.key, title, tuple(lines))


def build_world() -> AtlasWorld:
    """The whole world; a hash shuffles the passages, so that what belongs together does not stand together."""
    entities = load_entities()
    passages: list[AtlasPassage] = []
    for entity in entities.values():
        stated: set[str] = set()
        for pattern, slots in _layouts(entity):
            title = sentence_case(
                pattern.format(t=entity.title, n=entity.label if entity.kind == "state" else entity.name)
            )
            passage = _passage(entity, title, slots, stated)
            if len(passage.text.split()) >= SHORTEST:
                passages.append(passage)
            else:
                stated.difference_update(relation for line in passage.lines for relation in line.relations)
    passages.sort(
        key=lambda passage: (pick(range(100_003), passage.title, passage.entity), passage.title, passage.entity)
    )
    rows = {
        (passage.entity, relation): row
        for row, passage in enumerate(passages)
        for line in passage.lines
        for relation in line.relations
    }
    return AtlasWorld(entities, tuple(passages), rows)
