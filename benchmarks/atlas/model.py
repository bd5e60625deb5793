"""The data that the Atlas builder passes along: entities with typed facts, and passages that state them."""

import re
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

ARTICLES = (
    "Netherlands",
    "Bahamas",
    "Maldives",
    "Philippines",
    "United States",
    "United Kingdom",
    "United Arab Emirates",
    "Gambia",
    "Solomon Islands",
    "Marshall Islands",
    "Comoros",
    "Seychelles",
    "Democratic Republic of the Congo",
    "Republic of the Congo",
    "Central African Republic",
    "Dominican Republic",
)


@dataclass(frozen=True)
class Value:
    """A fact's value: `text` as it stands in passages, `number` where it can be compared, `link` to an entity."""

    text: str
    aliases: tuple[str, ...] = ()
    number: float | None = None
    link: str | None = None


@dataclass(frozen=True)
class Entity:
    """A thing with facts. `name` is used in its own passages, `label` in questions (disambiguated), `title` on top.

    `group` decides the split: all facts of one group are asked about in one split alone.
    """

    key: str
    kind: str
    name: str
    label: str
    title: str
    group: str
    facts: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A sentence (or two) of a passage, with the relations it states; `leans` when it needs the line before it."""

    text: str
    relations: tuple[str, ...]
    leans: bool = False


@dataclass(frozen=True)
class AtlasPassage:
    """A titled run of lines about one entity."""

    entity: str
    title: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """All lines, with a space between."""
        return " ".join(line.text for line in self.lines)

    def evidence(self, relation: str) -> str:
        """The sentence that states `relation`, with those before it where it cannot stand alone; copied verbatim."""
        end = next(i for i, line in enumerate(self.lines) if relation in line.relations)
        start = end
        while self.lines[start].leans:
            start -= 1
        return " ".join(line.text for line in self.lines[start : end + 1])


@dataclass(frozen=True)
class AtlasWorld:
    """All entities by key, all passages in corpus order, and where each fact stands: (entity, relation) → row."""

    entities: Mapping[str, Entity]
    passages: tuple[AtlasPassage, ...]
    rows: Mapping[tuple[str, str], int]

    def value(self, entity: str, relation: str) -> Value:
        """The fact. Raises KeyError where the entity has no such relation."""
        return self.entities[entity].facts[relation]

    def stated(self, entity: str, relation: str) -> bool:
        """Whether a passage states the fact."""
        return (entity, relation) in self.rows

    def evidence(self, entity: str, relation: str) -> str:
        """The sentences that state the fact, verbatim. Raises KeyError where none does."""
        return self.passages[self.rows[entity, relation]].evidence(relation)


def plain(text: str) -> str:
    """ASCII letters and digits in lower case, for comparing names across packages."""
    folded = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", " ", folded).strip()


def pick(options: Sequence[T], *key: str) -> T:
    """One of `options`, chosen by a hash of `key`: stable over runs and over changes elsewhere."""
    return options[zlib.crc32("|".join(key).encode()) % len(options)]


def with_article(name: str) -> str:
    """The name as it stands inside a sentence."""
    return f"the {name}" if name in ARTICLES else name


def sentence_case(text: str) -> str:
    """The text with its first letter as a capital; the rest stays."""
    return text[:1].upper() + text[1:]


def possessive(name: str) -> str:
    """The name with 's, or with an apostrophe alone after an s."""
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def listing(names: Sequence[str]) -> str:
    """ "A", "A and B", "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: float) -> Value:
    """A whole number with thousands separators; the bare digits are an alias."""
    text = f"{int(number):,}"
    return Value(text, (text.replace(",", ""),) if "," in text else (), float(int(number)))
