"""Conversations as they are listed, searched and exported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from inference.chat.http.reasoning import inert
from inference.chat.turns.events import Event
from inference.chat.turns.store import TurnRequest
from steprag.records.jsonl import to_dict
from steprag.types import Turn

TITLE = 60
"""Characters of a title that is a question."""


class Export(NamedTuple):
    """A form of an exported conversation."""

    ending: str
    media: str


EXPORTS = {"markdown": Export("md", "text/markdown; charset=utf-8"), "json": Export("json", "application/json")}
Turns = tuple[Turn | TurnRequest, ...]


def title_of(conversation: str, turns: Turns, names: Mapping[str, str]) -> str:
    """What a conversation is called: its name, else the beginning of its first question."""
    asked = " ".join(turns[0].asked.split())
    return names.get(conversation) or (asked if len(asked) <= TITLE else f"{asked[: TITLE - 1].rstrip()}…")


def summaries(newest: Iterable[tuple[str, Turns]], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The rows of a list, the newest conversation first. Of several with one title the later ones have a number."""
    rows = [{"id": id, "title": title_of(id, turns, names), "turns": len(turns), "updated": turns[-1].time}
            for id, turns in newest]  # fmt: skip
    times, left = Counter(row["title"] for row in rows), Counter[str]()
    for row in rows:
        title = row["title"]
        number, left[title] = times[title] - left[title], left[title] + 1
        yield row if number == 1 else {**row, "title": f"{title} ({number})"}


def holds(asked: Sequence[str], turns: Turns, name: str) -> bool:
    """Whether all words, in lower case, stand in a conversation's name, questions, steps and answers."""
    texts = [name]
    for turn in turns:
        texts += [turn.asked, turn.question or ""]
        if isinstance(turn, Turn):
            texts += [turn.prediction or "", *(step.content for step in turn.steps)]
    text = "\n".join(texts).lower()
    return all(word in text for word in asked)


def as_records(title: str, turns: Sequence[Turn], told: Sequence[Sequence[Event]]) -> str:
    """The turns as the service keeps them, each with the passages that its answer rests on."""
    rows = [{**to_dict(turn), "sources": _cited(events)} for turn, events in zip(turns, told, strict=True)]
    return json.dumps({"title": title, "turns": rows}, ensure_ascii=False, indent=2)


def as_markdown(title: str, turns: Sequence[Turn], told: Sequence[Sequence[Event]]) -> str:
    """The conversation to read: questions, steps, answers, sources. What strangers wrote is made inert."""
    parts = [f"# {_line(title)}"]
    for turn, events in zip(turns, told, strict=True):
        parts.append(f"## {_line(turn.asked)}")
        if turn.question != turn.asked:
            parts.append(f"Understood as: {_line(turn.question)}")
        steps = [f"{place}. **{step.action}** {_line(step.content)}" for place, step in enumerate(turn.steps, 1)]
        parts.append("\n".join(steps))
        parts.append(f"**Answer:** {_line(turn.prediction or f'none ({turn.finish})')}")
        sources = [f"- **{_line(one['title'] or one['id'])}** {_line(one['text'])}" for one in _cited(events)]
        parts.append("\n".join(["Sources:", "", *sources] if sources else []))
    return "\n\n".join(part for part in parts if part) + "\n"


def _line(text: str) -> str:
    return inert(" ".join(text.split()))


def _cited(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The passages that the answer of a turn rests on, in order of their finding."""
    events = list(events)
    cited = {one["n"] for event in events if event["type"] == "answer" for one in event["sources"] if one["cited"]}
    found = [item for event in events if event["type"] == "passages" for item in event["items"]]
    return list({item["n"]: item for item in found if item["n"] in cited}.values())
