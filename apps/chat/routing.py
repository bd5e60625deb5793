"""Is a message talk, or a question to search for? And the names of modes.

A message is talk where each of its sentences matches a pattern of `configs/chat/route.yaml` whole; whatever else it may
be is a question, which the agent answers with its sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from apps.chat.turns.store import TurnRequest
from steprag.records.turns import Route, Turn
from steprag.records.yaml_files import read_yaml

PATTERNS = Path(__file__).parents[2] / "configs" / "chat" / "route.yaml"
AUTO, DIRECT, REASONING, SEARCH = "auto", "direct", "reasoning", "search"
SEARCHING = ("local", "web", "both")
"""Modes beside `AUTO` that search."""
ALIASES = {"chat": (DIRECT,), "talk": (DIRECT,), SEARCH: SEARCHING}
"""Other names of modes: each means the first of these that there is."""
TALK, QUESTION = "talk", "question"
LONGEST = 200
"""Characters of a message that may be talk."""
_SENTENCE = re.compile(r"(?:[.!?…,;:~\n()]|\s[-–—])+(?:\s|$)|[\n…]+")


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
    text = asked.strip().lower().replace("’", "'")
    if len(text) > LONGEST:
        return Route(QUESTION, "it is more than small talk")
    parts = [part.strip(" '\"*_") for part in _SENTENCE.split(text) if re.search(r"\w", part)]
    kinds = [_kind(part) for part in parts]
    if None in kinds:
        return Route(QUESTION, "it is more than small talk")
    return Route(TALK, f"it is {kinds[0]}" if kinds else "it has no words")


def _kind(sentence: str) -> str | None:
    return next((name for name, pattern in _patterns().items() if pattern.fullmatch(sentence)), None)


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    told = read_yaml(PATTERNS).items()
    return {name: re.compile("|".join(f"(?:{one})" for one in each).replace("\n", "")) for name, each in told}
