"""How many completions follow their grammar: by action, with the reasons of those that were refused, and over time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from steprag.agent.grammars import GRAMMARS
from steprag.scores.stats import share_interval

KEPT = ""
"""The reason of a completion that was not refused."""
NO_ACTION = "none"
"""The action of a refused completion that opens no action's tag."""
PARTS = 20
"""Points of a curve over time at most."""
_OPENING = re.compile(f"<({'|'.join(sorted({action.name for one in GRAMMARS.values() for action in one.actions}))})>")

Written = dict[str, dict[str, int]]
"""Completions by action, then by the reason for which they were refused (`KEPT` where they were not)."""


def opened(text: str) -> str:
    """The action whose tag a completion opens first; `NO_ACTION` where it opens none."""
    found = _OPENING.search(text)
    return found[1] if found else NO_ACTION


def written(completions: Iterable[tuple[str | None, str, str | None]]) -> Written:
    """Counts completions, given as (action, text, failure). If the action is unknown, the text's first tag names it."""
    counts: Written = {}
    for action, text, failure in completions:
        reasons = counts.setdefault(action or opened(text), {})
        reasons[failure or KEPT] = reasons.get(failure or KEPT, 0) + 1
    return counts


def together(parts: Iterable[Written]) -> Written:
    """The sum of several counts."""
    total: Written = {}
    for part in parts:
        for action, reasons in part.items():
            mine = total.setdefault(action, {})
            for reason, count in reasons.items():
                mine[reason] = mine.get(reason, 0) + count
    return total


def compliance(counts: Written) -> dict[str, Any]:
    """`n` completions, the `value` that follows the grammar with its 95 % interval (Wilson), and the same by action.

    `reasons`: the refused ones by reason, most frequent first.
    """
    each = [{"action": action, **_share(reasons)} for action, reasons in counts.items()]
    each.sort(key=lambda one: (one["action"] == NO_ACTION, -one["n"], one["action"]))
    return {**_share(_reasons(counts)), "actions": each}


def over_time(parts: Sequence[tuple[float, Written]]) -> list[dict[str, Any]]:
    """The share that follows the grammar over time. `parts` come in order, each with its time. Parts of one time are
    joined, then neighbours until at most `PARTS` are left; `at` is the time of the last one joined.
    """
    moments = [(at, together(one for _, one in group)) for at, group in groupby(parts, key=lambda part: part[0])]
    size, places = len(moments), min(PARTS, len(moments))
    cuts = [round(size * place / places) for place in range(places + 1)] if places else []
    runs = [moments[start:end] for start, end in pairwise(cuts)]
    told = [{"at": run[-1][0], **_share(_reasons(together(one for _, one in run)))} for run in runs]
    return [one for one in told if one["n"]]


def _reasons(counts: Written) -> Mapping[str, int]:
    """All of them by reason, whatever their action."""
    return together({"": reasons} for reasons in counts.values()).get("", {})


def _share(reasons: Mapping[str, int]) -> dict[str, Any]:
    n, kept = sum(reasons.values()), reasons.get(KEPT, 0)
    refused = sorted(((count, reason) for reason, count in reasons.items() if reason != KEPT), reverse=True)
    low, high = share_interval(kept, n) if n else (None, None)
    return {"n": n, "value": kept / n if n else None, "low": low, "high": high,
            "reasons": {reason: count for count, reason in refused}}  # fmt: skip
