"""Gold evidence: how much of what a question's annotators marked has an episode found, and kept, by each step.

FlashRAG's question files carry it in `metadata`: `supporting_titles` or `supporting_ids`, or HotpotQA's own
`supporting_facts`. Titles are preferred, since ids are row numbers of one corpus.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from steprag.metrics import normalise
from steprag.types import Found, Question, Tree

_DISAMBIGUATION = re.compile(r"\s*\([^)]*\)$")


@dataclass(frozen=True)
class Gold:
    """The marked passages, by normalised title or by id; `any_is_enough` where one of them answers (PopQA)."""

    titles: frozenset[str]
    ids: frozenset[str]
    any_is_enough: bool

    def matches(self, found: Found) -> str | None:
        """The mark that a passage bears: its normalised title or its id; None where it is not gold."""
        if self.titles:
            title = normalise(found.title)
            return title if title in self.titles else None
        return found.id if found.id in self.ids else None

    def share(self, count: int) -> float:
        """The share that `count` marked passages are of those needed."""
        return min(1.0, count / (1 if self.any_is_enough else len(self.titles or self.ids)))


def gold_of(question: Question) -> Gold | None:
    """The question's gold passages; None where nobody marked any."""
    metadata = question.metadata
    titles = frozenset(normalise(title) for title in _titles(metadata) if title)
    ids = frozenset(map(str, metadata.get("supporting_ids") or ()))
    if not titles and not ids:
        return None
    return Gold(titles, ids, "popqa" in question.id.lower() or "gold_rule" in metadata)


def _titles(metadata: dict[str, Any]) -> list[str]:
    facts = metadata.get("supporting_facts") or ()
    if given := metadata.get("supporting_titles"):
        return list(given)
    if isinstance(facts, dict):  # FlashRAG's own HotpotQA: {"title": [...], "sent_id": [...]}
        return list(facts.get("title") or ())
    return [fact[0] for fact in facts]


def gold_recall(tree: Tree) -> list[float | None]:
    """For every node by id, the share of the gold passages that the episode has by then; None for other steps.

    A query counts what the queries so far have found. An evidence step counts, of these, the passages whose title the
    evidence so far mentions: a proxy, since trees keep no passage texts. None everywhere without gold.
    """
    gold = gold_of(tree.question)
    if gold is None:
        return [None] * len(tree.nodes)
    found: list[dict[str, str]] = []  # by node: mark → title of the gold passages found so far
    kept: list[frozenset[str]] = []  # by node: marks that the evidence so far mentions
    recall: list[float | None] = []
    for node in tree.nodes:  # parents come before their children
        here = found[node.parent] if node.parent is not None else {}
        mentioned = kept[node.parent] if node.parent is not None else frozenset()
        value = None
        if fresh := {mark: _name(p.title) for p in node.passages if (mark := gold.matches(p)) is not None}:
            here = here | fresh
        if node.action == "evidence" and node.content:
            if here:
                text = f" {normalise(node.content)} "
                mentioned = mentioned | {mark for mark, name in here.items() if f" {name} " in text}
            value = gold.share(len(mentioned))
        elif node.action == "query":
            value = gold.share(len(here))
        found.append(here)
        kept.append(mentioned)
        recall.append(value)
    return recall


def _name(title: str) -> str:
    """What a text calls the subject of a page: its title without "(film)" and the like, normalised."""
    return normalise(_DISAMBIGUATION.sub("", title)) or normalise(title)
