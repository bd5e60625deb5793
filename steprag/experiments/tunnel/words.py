"""The tunnel's tokenizer: a token a word; the words that announce an action are one token with its tag."""

from __future__ import annotations

import re

from steprag.agent.grammars import TRANSCRIPT
from steprag.experiments.tunnel.world import KINDS, NOTHING, PERSONS, RELATION_OF, RELATIONS

PAD, BEGIN, END, ASKED = range(4)
HEADS = tuple(action.head for action in TRANSCRIPT.actions)
TAGS = tuple(action.closing for action in TRANSCRIPT.actions)
WORDS = (
    "<pad>",
    "<s>",
    "</s>",
    "?",
    "is",
    "yes",
    "no",
    NOTHING,
    *HEADS,
    *TAGS,
    *KINDS,
    *RELATIONS,
    *RELATION_OF,
    *PERSONS,
)
"""The vocabulary, by id."""
IDS = {word: place for place, word in enumerate(WORDS)}
CLOSING = frozenset(IDS[tag] for tag in TAGS)
_SPLIT = re.compile("|".join(map(re.escape, HEADS)) + r"|\?|[^\s?]+")


def encode(text: str) -> list[int]:
    """The ids of a text of known words. Raises KeyError for any other."""
    return [IDS[word] for word in _SPLIT.findall(text)]


def decode(ids: list[int]) -> str:
    """The words of ids, a blank between them."""
    return " ".join(WORDS[each] for each in ids)
