"""Conversations as they are listed, searched and exported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from apps.chat.http.reasoning import inert
from apps.chat.turns.events import Event, judged
from apps.chat.turns.store import TurnRequest
from steprag.agent.citations import headed
from steprag.records.jsonl import to_dict
from steprag.records.turns import Turn

TITLE = 60
"""Characters of a title that is a question."""
EXPORTS = {"markdown": ("md", "text/markdown; charset=utf-8"), "json": ("json", "application/json")}
"""Forms of an exported conversation: the ending of its file, and the content type."""
Turns = tuple[Turn | TurnRequest, ...]


def title_of(turns: Turns, name: str | None) -> str:
    """What a conversation is called: its name, else the beginning of its first question."""
    asked = " ".join(turns[0].asked.split())
    return name or (asked if len(asked) <= TITLE else f"{asked[: TITLE - 1].rstrip()}…")


def summaries(newest: Iterable[tuple[str, Turns]], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The rows of a list, the newest conversation first. Of several with one title the later ones have a number."""
    rows = [(id, title_of(turns, names.get(id)), turns) for id, turns in newest]
    left = Counter(title for _, title, _ in rows)
    for id, title, turns in rows:
        number, left[title] = left[title], left[title] - 1
        told = title if number == 1 else f"{title} ({number})"
        yield {"id": id, "title": told, "turns": len(turns), "updated": turns[-1].time}


def holds(asked: Sequence[str], turns: Turns, name: str) -> bool:
    """Whether all words, in lower case, stand in a conversation's name, questions, steps and answers."""
    texts = [name, *(text for turn in turns for text in (turn.asked, turn.question or ""))]
    ended = [turn for turn in turns if isinstance(turn, Turn)]
    texts += [text for turn in ended for text in (turn.prediction or "", *(step.content for step in turn.steps))]
    text = "\n".join(texts).lower()
    return all(word in text for word in asked)


def exported(form: str, title: str, turns: Sequence[Turn], told: Sequence[list[Event]]) -> str:
    """The conversation in one of EXPORTS; `told`: the events of each turn. JSON has the turns as the service keeps
    them, each with the passages that its answer rests on. People read Markdown: what strangers wrote is made inert.
    """
    each = [(turn, cited_in(events), _judged(events)) for turn, events in zip(turns, told, strict=True)]
    if form == "json":
        rows = [{**to_dict(turn), "sources": cited, **lacks} for turn, cited, lacks in each]
        return json.dumps({"title": title, "turns": rows}, ensure_ascii=False, indent=2)
    parts = [f"# {_line(title)}"]
    for turn, cited, lacks in each:
        parts += [f"## {_line(turn.asked)}", *([f"As: {_line(turn.question)}"] if turn.question != turn.asked else [])]
        parts.append("\n".join(f"{n}. **{step.action}** {_line(step.content)}" for n, step in enumerate(turn.steps, 1)))
        said = headed(turn.prediction, lacks.get("lacks")) if turn.prediction else f"none ({turn.finish})"
        parts.append(f"**Answer:** {_line(said)}")
        sources = [f"- **{_line(one['title'] or one['id'])}** {_line(one['text'])}" for one in cited]
        parts += ["Sources:", "\n".join(sources)] if sources else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _judged(events: list[Event]) -> dict[str, Any]:
    return next((judged(event) for event in events if event["type"] == "answer"), {})


def _line(text: str) -> str:
    return inert(" ".join(text.split()))


def cited_in(events: list[Event]) -> list[dict[str, Any]]:
    """The passages that the answer of a turn rests on, in order of their finding."""
    cited = {one["n"] for event in events if event["type"] == "answer" for one in event["sources"] if one["cited"]}
    found = [item for event in events if event["type"] == "passages" for item in event["items"]]
    return list({item["n"]: item for item in found if item["n"] in cited}.values())
