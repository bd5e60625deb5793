"""What a reader left out of what came in at its door: said once on standard error, and kept in the run's manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprag.console.progress import say
from steprag.errors import shortened

_KINDS, _WORDS = 8, 160
"""Kinds that one paragraph names, and characters of each place and of each text."""


@dataclass(frozen=True)
class LeftOut:
    """`count` things of one `kind`, in the plural ("rows without an answer"). `place`: the file, with the line, page or
    cell of the first of them. `words`: which they are, or the text of the first.
    """

    kind: str
    place: str
    words: str
    count: int = 1


def merged(items: Iterable[LeftOut]) -> list[LeftOut]:
    """One item a kind, with the count of all, and with place and words of the first."""
    kinds: dict[str, LeftOut] = {}
    for item in items:
        before = kinds.get(item.kind)
        kinds[item.kind] = dataclasses.replace(before, count=before.count + item.count) if before else item
    return [*kinds.values()]


def columns_not_read(unread: Mapping[str, int], path: Path) -> list[LeftOut]:
    """One item for the columns of a file that nobody reads, by the line where each stands first; none without any."""
    place, names = f"{path}:{min(unread.values(), default=0)}", ", ".join(sorted(unread))
    return [LeftOut("columns not read", place, names, len(unread))] if unread else []


def say_left_out(items: Sequence[LeftOut]) -> None:
    """One short paragraph: every kind with its count and its first place. Says nothing where nothing was left out."""
    kinds = merged(items)
    named = [f"{one.kind}: {_shown(one.words)} ({f'{one.count:,}, first at ' * (one.count > 1)}{_shown(one.place)})"
             for one in kinds[:_KINDS]]  # fmt: skip
    if len(kinds) > _KINDS:
        named.append(f"{len(kinds) - _KINDS} more kinds")
    if named:
        say(f"left out: {'; '.join(named)}")


def _shown(text: str) -> str:
    """A stranger's text for a terminal: one line, without control characters."""
    return shortened("".join(filter(str.isprintable, " ".join(text.split()))), _WORDS)


def as_json(items: Iterable[LeftOut]) -> list[dict[str, Any]]:
    """The items for the key `left_out` of a manifest."""
    return [dataclasses.asdict(item) for item in items]
