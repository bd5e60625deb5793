"""Is a message talk, or a question to search for? And the fixed words that answer greetings and the like.

A message is talk where each of its sentences matches a pattern of `configs/chat/route.yaml` whole; whatever else it may
be is a question, which the agent answers with its sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from steprag.records.yaml_files import read_yaml

_CHAT = Path(__file__).parents[2] / "configs" / "chat"
LONGEST = 200
"""Characters of a message that may be talk."""
_SENTENCE = re.compile(r"(?:[.!?…,;:~\n()]|\s[-–—])+(?:\s|$)|[\n…]+")


def kinds_of(asked: str) -> list[str] | None:
    """The patterns that the sentences of a message match, in order; None where one matches none: it is no talk."""
    text = asked.strip().lower().replace("’", "'")
    if len(text) > LONGEST:
        return None
    parts = [part.strip(" '\"*_") for part in _SENTENCE.split(text) if re.search(r"\w", part)]
    kinds = [name for part in parts if (name := _kind(part))]
    return kinds if len(kinds) == len(parts) else None


def reply_to(asked: str) -> str | None:
    """The fixed words that answer a message, of whatever model; None where one has to write the answer."""
    kinds, replies = kinds_of(asked), _replies()
    if not kinds or not {*kinds} <= replies.keys():
        return None
    return next(reply for kind, reply in replies.items() if kind in kinds)


def _kind(sentence: str) -> str | None:
    return next((name for name, pattern in _patterns().items() if pattern.fullmatch(sentence)), None)


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    told = read_yaml(_CHAT / "route.yaml").items()
    return {name: re.compile("|".join(f"(?:{one})" for one in each).replace("\n", "")) for name, each in told}


@cache
def _replies() -> Mapping[str, str]:
    return {kind: " ".join(words.split()) for kind, words in read_yaml(_CHAT / "replies.yaml").items()}
