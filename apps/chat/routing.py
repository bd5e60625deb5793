"""The names of modes, and which of them a message is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from apps.chat.turns.store import TurnRequest
from steprag.agent.talk import kinds_of
from steprag.records.turns import Route, Turn

AUTO, DIRECT, REASONING, SEARCH = "auto", "direct", "reasoning", "search"
SEARCHING = ("local", "web", "both")
"""Modes beside `AUTO` that search."""
ALIASES = {"chat": (DIRECT,), "talk": (DIRECT,), SEARCH: SEARCHING}
"""Other names of modes: each means the first of these that there is."""
TALK, QUESTION = "talk", "question"


def mode_named(name: str, modes: Iterable[str]) -> str | None:
    """The one of `modes` that a name means; None where there is none."""
    there = {*modes}
    return next((one for one in (name, *ALIASES.get(name, ())) if one in there), None)


def talks(one: TurnRequest | Turn) -> bool:
    """Whether a turn is one of conversation: asked in mode `direct`, or taken for talk."""
    return one.mode == DIRECT if one.route is None else one.route.kind == TALK


def tells_talk(event: Mapping[str, Any]) -> bool:
    """Whether an event says that its turn is one of conversation."""
    return event.get("mode") == DIRECT or event.get("route") == TALK


def route_of(asked: str) -> Route:
    """What a message is; of talk, `why` names the patterns that its first sentence matches."""
    kinds = kinds_of(asked)
    if kinds is None:
        return Route(QUESTION, "it is more than small talk")
    return Route(TALK, f"it is {kinds[0]}" if kinds else "it has no words")
