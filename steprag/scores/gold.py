"""Gold evidence: the passages that a question's annotators marked.

FlashRAG's question files carry it in `metadata`: `supporting_titles` or `supporting_ids`, or HotpotQA's own
`supporting_facts`, or MuSiQue's `paragraphs`. Titles are preferred, since ids are row numbers of one corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import line_hash
from steprag.records.question_ids import WithId, dataset_of
from steprag.records.training_rows import PEOPLE
from steprag.scores.metrics import exact_match, normalise, parts_match
from steprag.types import Found, Passage

GOLD = ("supporting_titles", "supporting_ids", "supporting_facts")
"""Fields of the metadata that mark passages."""
_POSSESSIVE = re.compile(r"['’]s\b", re.IGNORECASE)
"""Normalised, "Ada's" would be another word than "Ada"."""


class WithAnswers(WithId, Protocol):
    """A question, or a record that carries a question's own fields."""

    @property
    def golden_answers(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Gold:
    """The marked passages, by normalised title or by id; `any_is_enough` where one of them answers (PopQA)."""

    titles: frozenset[str]
    ids: frozenset[str]
    any_is_enough: bool

    def matches(self, found: Found | Passage) -> str | None:
        """The mark that a passage bears: its normalised title or its id; None where it is not gold."""
        if self.titles:
            title = normalise(found.title)
            return title if title and title in self.titles else None
        bare = found.id.partition("/")[2]  # of several tools, passages are named tool/id
        return found.id if found.id in self.ids else bare if bare in self.ids else None

    def recall(self, passages: Iterable[Found | Passage]) -> float:
        """The share of the needed passages that `passages` hold."""
        return self.share(len({mark for passage in passages if (mark := self.matches(passage)) is not None}))

    def share(self, count: int) -> float:
        """The share that `count` marked passages are of those needed."""
        return min(1.0, count / (1 if self.any_is_enough else len(self.titles or self.ids)))


def gold_of(asked: WithId) -> Gold | None:
    """A question's gold passages; None where nobody marked any. Raises ConfigError where the marks are no lists."""
    metadata = asked.metadata
    with _read(asked, "metadata supporting_titles, supporting_ids or supporting_facts", "give lists of titles or ids"):
        titles = frozenset(normalise(title) for title in _titles(metadata) if title)
        ids = frozenset(map(str, _listed(metadata.get("supporting_ids"))))
    if not titles and not ids:
        return None
    return Gold(titles, ids, is_popqa(asked) or "gold_rule" in metadata)


def holds_golden(text: str, golden_answers: Iterable[str]) -> bool:
    """Whether a golden answer stands in the text: whole words, normalised. One without words stands in none."""
    return any(mentions(text, filter(None, map(normalise, golden_answers))))


@dataclass(frozen=True)
class Fact:
    """A fact that an answer needs: `passage` holds it, and all the words of one of `anyof` tell it, normalised."""

    passage: str
    anyof: tuple[tuple[str, ...], ...]

    def held(self, found: frozenset[str], kept: str) -> bool:
        """Whether the passage is among those found, and `kept` (normalised, blanks around it) states the fact."""
        return self.passage in found and any(all(f" {word} " in kept for word in words) for words in self.anyof)


def facts_of(asked: WithId) -> tuple[Fact, ...]:
    """The facts of `metadata.facts`, such as {"passage": "156", "anyof": [["Malta", "316"]]}; none where it lists none,
    and where the list is of texts alone (StrategyQA's).

    Raises ConfigError where the list cannot be read.
    """
    with _read(asked, "metadata.facts", 'give [{"passage": ID, "anyof": [[WORDS, …], …]}, …], or leave it out'):
        facts = _listed(asked.metadata.get("facts"))
        return tuple(
            Fact(
                str(fact["passage"]),
                tuple(tuple(normalise(word) for word in _listed(words)) for words in _listed(fact["anyof"])),
            )
            for fact in ([] if all(isinstance(fact, str) for fact in facts) else facts)
        )


def parts_of(asked: WithId) -> tuple[tuple[str, ...], ...]:
    """The golden answers of each part of a question that asks several things (`metadata.parts`), else nothing.

    Raises ConfigError where the parts cannot be read.
    """
    with _read(asked, "metadata.parts", 'give [["answer", "alias"], …], or leave it out'):
        return tuple(_words(part) for part in _listed(asked.metadata.get("parts")))


def _words(part: object) -> tuple[str, ...]:
    """The texts of a list that has some. Raises TypeError for anything else."""
    words = tuple(_listed(part))
    if not words or not all(isinstance(word, str) for word in words):
        raise TypeError
    return words


def em_of(prediction: str | None, asked: WithAnswers) -> float:
    """EM of an answer, 0 or 1; the share of right parts where the question has several. Raises ConfigError."""
    if parts := parts_of(asked):
        return parts_match(prediction, parts)
    return exact_match(prediction, asked.golden_answers)


def is_popqa(asked: WithId) -> bool:
    """Whether a question is PopQA's, where each marked passage answers alone and which has no train split."""
    return "popqa" in (dataset_of(asked) or "").lower()


def people_id(question: str) -> str:
    """The id of a question that people asked: the same words have the same one."""
    return f"{PEOPLE}-{line_hash(normalise(question))}"


def subject(title: str) -> str:
    """The name of a page's subject in texts: its title without "(film)" and the like, normalised."""
    return normalise(without_qualifier(title)) or normalise(title)


def without_qualifier(title: str) -> str:
    """A title without the brackets at its end that distinguish titles of one name, as in "Mercury (planet)"."""
    title = title.rstrip()
    if not title.endswith(")"):
        return title
    opening = title.find("(", title.rfind(")", 0, -1) + 1)
    return title if opening < 0 else title[:opening].rstrip()


def mentions(text: str, subjects: Iterable[str]) -> list[bool]:
    """For each subject (normalised, as `subject` gives it), whether the text holds its words, also as a possessive."""
    words, bare = f" {normalise(text)} ", _POSSESSIVE.sub("", text)
    words += f"\n {normalise(bare)} " if bare != text else ""
    return [f" {name} " in words for name in subjects]


def _titles(metadata: dict[str, Any]) -> list[str]:
    facts = metadata.get("supporting_facts")
    if given := metadata.get("supporting_titles"):
        return _listed(given)
    if isinstance(facts, dict):  # FlashRAG's own HotpotQA: {"title": [...], "sent_id": [...]}
        return _listed(facts.get("title"))
    paragraphs = metadata.get("paragraphs")  # MuSiQue's
    if isinstance(paragraphs, list) and not (facts or metadata.get("supporting_ids")):
        marked = [one.get("title") for one in paragraphs if isinstance(one, dict) and one.get("is_supporting") is True]
        return [title for title in marked if isinstance(title, str)]
    return [_listed(fact)[0] for fact in _listed(facts)]


def _listed(value: Any) -> list[Any]:
    """The items of a list, none where nothing is given. Raises TypeError for a text: its items are letters."""
    if value and not isinstance(value, list | tuple):
        raise TypeError
    return list(value or ())


@contextmanager
def _read(asked: WithId, keys: str, remedy: str) -> Iterator[None]:
    """A block that takes the keys of a question's metadata apart. Raises ConfigError where they have another shape."""
    try:
        yield
    except (TypeError, AttributeError, LookupError):
        raise ConfigError(f"question {quoted(asked.id)}: {keys} cannot be read; {remedy}") from None
