"""How the extractive reader reads English: `configs/reader.yaml`, and the words and sentences of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from steprag.records.yaml_files import read_yaml

ENGLISH = Path(__file__).parents[2] / "configs" / "reader.yaml"
LONGEST = 400
"""Characters of a sentence that are read."""
INITIALS = range(2, 7)
"""Letters of a word that is spelled by initials."""
_WORD, _PART = re.compile(r"[^\W_]{1,40}"), re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class Language:
    """`small`: words that say nothing of a subject; `endings` of words; `end`: where a sentence ends; `opens`: a
    question that yes or no does not answer; `exact`: a word that no other stands for; `kinds`: what a question asks
    for, and what answers it.
    """

    small: frozenset[str]
    endings: tuple[str, ...]
    end: re.Pattern[str]
    opens: re.Pattern[str]
    exact: re.Pattern[str]
    kinds: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]


@cache
def english() -> Language:
    """`ENGLISH`, read once."""
    told = read_yaml(ENGLISH)
    short = "".join(rf"(?<!\b{re.escape(one)})" for one in told["short"].split())
    end = rf"(?<!\b[A-Z]){short}[.!?…][\"'”’)\]]?(?=\s+[^a-z\s-])|[。！？]|\n"
    parts: dict[str, str] = {}

    def filled(text: str) -> str:
        return _PART.sub(lambda found: parts[found[1]], text)

    for name, text in told["parts"].items():
        parts[name] = filled(text)
    opens, exact = (re.compile(told[name], re.I) for name in ("opens", "exact"))
    kinds = ((re.compile(filled(one["asked"]), re.I), re.compile(filled(one["holds"]), re.I)) for one in told["kinds"])
    small, endings = frozenset(told["small"].split()), tuple(told["endings"].split())
    return Language(small, endings, re.compile(end), opens, exact, tuple(kinds))


def sentences(text: str) -> Iterator[str]:
    """Sentences and lines; one without a mark at its end is given a full stop, so that it stays apart from others."""
    start = 0
    for end in (*(found.end() for found in english().end.finditer(text)), len(text)):
        if sentence := " ".join(text[start:end].split())[:LONGEST]:
            yield sentence if sentence[-1] in ".!?…。！？\"'”’)]:" else f"{sentence}."
        start = end


def telling(text: str) -> list[str]:
    """The words of a text that say what it is about."""
    return [word for word in _WORD.findall(text) if len(word) > 1 and word.lower() not in english().small]


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """A word of lower case without its endings, as long as four letters are left; three before an s."""
    while end := next(
        (one for one in english().endings if word.endswith(one) and len(word) - len(one) > 3 - (one == "s")), ""
    ):
        word = word.removesuffix(end)
    return word


def stems(text: str) -> frozenset[str]:
    return frozenset(stem(found.lower()) for found in _WORD.findall(text))


def spelled(asked: str, text: str) -> str:
    """What a text says in a question's terms: the question's "FAQ" where the text has "frequently asked questions", and
    these words where the text has FAQ.
    """
    words, there = tuple(_WORD.findall(asked)), tuple(_WORD.findall(text))
    short = [word for word in words if word in _runs(there)]
    return " ".join([*short, *(run for word, run in _runs(words).items() if word in there)])


@lru_cache(64)
def _runs(words: tuple[str, ...]) -> dict[str, str]:
    """Each run of words by its initials in capitals."""
    runs = (words[start : start + n] for n in INITIALS for start in range(len(words) - n + 1))
    return {"".join(word[0] for word in run).upper(): " ".join(run) for run in runs}
