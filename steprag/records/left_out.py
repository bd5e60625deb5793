"""What a reader left out of what came in at its door: said once on standard error, and kept in the run's manifest."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


def say_left_out(items: Sequence[LeftOut]) -> None:
    """One short paragraph: every kind with its count and its first place. Says nothing where nothing was left out."""
    kinds = defaultdict[str, list[LeftOut]](list)
    for item in items:
        kinds[item.kind].append(item)
    named = [f"{kind}: {sum(one.count for one in of_kind):,} ({_shown(of_kind[0].place)}: {_shown(of_kind[0].words)})"
             for kind, of_kind in [*kinds.items()][:_KINDS]]  # fmt: skip
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
