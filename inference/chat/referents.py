"""What a pronoun may stand for: names that the conversation said last. For rewriters too small to write a question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MOST = 16
"""Rewritings that are offered."""
_PRONOUN = re.compile(r"\b(it|its|he|him|his|she|her|hers|they|them|their|theirs)\b", re.IGNORECASE)
_POSSESSIVE = frozenset({"its", "his", "her", "hers", "their", "theirs"})
_WORD = r"[^\W\d_a-zß-öø-ÿ][\w'’-]*\.?"
_LINK = "of|the|in|and|for|on|am|de|del|la|le|von|van|da|di"
_NAME = re.compile(rf"{_WORD}(?:(?:,? (?:(?:{_LINK}) )*)(?:{_WORD}|\d+))*")
"""Words in upper case, with small words between them: "Bank of England", "Fort Smith, Arkansas"."""
_BEFORE = "is|are|was|were|of|about|by|in|to|on|for|called"
_TOPIC = re.compile(rf"\b(?:{_BEFORE})\s+((?:(?!\b(?:{_BEFORE})\b)[^?])+)\?$")
"""What a question ends with: "What is the Chinese yuan?", "Which currency is used in Peru?"."""
_FIRST = frozenset(
    ["Since", "Until", "Before", "After", "During", "Through", "Into", "Under", "Over", "Among", "Between"]
)
_OPENERS = frozenset(
    [
        "What",
        "Which",
        "Who",
        "Whom",
        "Whose",
        "When",
        "Where",
        "Why",
        "How",
        "Is",
        "Are",
        "Was",
        "Were",
        "Does",
        "Do",
        "Did",
        "Can",
        "Could",
        "In",
        "On",
        "At",
        "By",
        "For",
        "To",
        "From",
        "Of",
        "And",
        "The",
        "A",
        "An",
        "It",
        "Its",
        "He",
        "She",
        "They",
        "Their",
        "His",
        "Her",
        "This",
        "That",
        "These",
        "Those",
        "Some",
        "There",
        "If",
        "As",
        "With",
        "Tell",
        "Name",
    ]
)


def rewritings(history: Sequence[tuple[str, str]], asked: str) -> tuple[str, ...]:
    """`asked` with its first pronoun replaced by each name of the last exchange that says any; none where `asked` has
    no pronoun, or says a name before it, which it may stand for.
    """
    pronoun = _PRONOUN.search(asked)
    if pronoun is None or any(_stands_for(name) for name in _capitals(asked[: pronoun.start()])):
        return ()
    for question, answer in reversed(history):
        if found := dict.fromkeys([*names(question), *names(answer)]):
            return tuple(dict.fromkeys(_put(asked, name) for name in found))[:MOST]
    return ()


def _stands_for(name: str) -> bool:
    """Whether a name may be what a pronoun behind it means; "ICAO" and a sentence's first word are none."""
    return " " in name or not (name.isupper() or name in _FIRST)


def names(text: str) -> Iterator[str]:
    """The names that a text says, what it asks about first."""
    if topic := _TOPIC.search(text.strip()):
        yield topic[1].strip()
    yield from _capitals(text)
    if len(text.split()) <= 4 and not text.strip().endswith("?"):  # an answer may be a name in small letters
        yield text.strip().rstrip(".")


def _capitals(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.?!;])\s+", text):
        for match in _NAME.finditer(sentence):
            words = match.group().rstrip(".,").split()
            while words and words[0] in _OPENERS:
                words = words[1:]
            if words:
                yield " ".join(words)


def _put(asked: str, name: str) -> str:
    def put(pronoun: re.Match[str]) -> str:
        return f"{name}'s" if pronoun[1].lower() in _POSSESSIVE else name

    return _PRONOUN.sub(put, asked, count=1)  # later ones lean on the name then
