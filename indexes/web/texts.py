"""Text of strangers as passages: plain words, in pieces of so many words, named by address and content.

What looks like markup is left as it is here: the environment neutralises every passage when it renders a prompt.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator

from steprag.records.jsonl import as_utf8
from steprag.types import Passage

_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]{{1,60}}")
"""A word; a character of a script without spaces counts as one, and so do 60 characters of what has no end."""
_WORDS = re.compile(r"\w+")
JOINERS = "\u200c\u200d"
"""Marks without a width that some scripts are written with."""


def plain(text: str) -> str:
    """The text in one line, without control characters and marks that nobody sees: a person and a model are to read
    the same words.
    """
    words = unicodedata.normalize("NFC", as_utf8(text)).split()
    return " ".join(" ".join(word if word.isprintable() else _shown_of(word) for word in words).split())


def _shown_of(word: str) -> str:
    return "".join(map(_shown, word))


def _shown(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cc":
        return " "
    return character if kind[0] != "C" or character in JOINERS else ""


def pieces(text: str, words: int) -> Iterator[str]:
    """The text in pieces of `words` words; a last piece of less than a quarter goes with the one before it."""
    found = list(_WORD.finditer(text))
    starts = list(range(0, len(found), words))
    if len(starts) > 1 and len(found) - starts[-1] < words / 4:
        starts.pop()
    for place, start in enumerate(starts):
        end = starts[place + 1] if place + 1 < len(starts) else len(found)
        yield text[found[start].start() : found[end - 1].end()]


def likely(query: str, texts: list[str], most: int) -> list[str]:
    """The `most` texts that share most words with the query, in their own order; equal ones from the first."""
    wanted = set(_WORDS.findall(query.lower()))
    shared = [len(wanted & set(_WORDS.findall(text.lower()))) for text in texts]
    kept = sorted(range(len(texts)), key=lambda place: (-shared[place], place))[:most]
    return [texts[place] for place in sorted(kept)]


def web_passage(url: str, title: str, text: str) -> Passage:
    """A passage of a page. Its id is the address and a hash of the text, so that an id always means the same text."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Passage(f"{url}#{digest}", title or url, text)
