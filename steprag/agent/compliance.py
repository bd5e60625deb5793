"""How many completions follow their grammar: by action, with the reasons of those that were refused, and over time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from steprag.agent import grammars
from steprag.errors import quoted
from steprag.records.turns import Turn
from steprag.scores.stats import share_interval
from steprag.types import Prediction

KEPT = ""
"""The reason of a completion that was not refused."""
NO_ACTION = "none"
"""The action of a refused completion that opens no action's tag."""
PARTS = 20
"""Points of a curve over time at most."""
_TAG = re.compile(r"<[^<>\s]+>")

EARLY = 20
"""Completions after which a run whose completions are nearly all refused says so."""
LITTLE = 0.1
"""The share of completions that follow the grammar from which on a run is worth its cost."""
HINTS = {
    "truncated": "raise policy.max_tokens",
    "empty": "raise policy.max_tokens",
    "bad_call": "compare the calls with the tools (steprag tools list)",
}
"""What helps against a reason for which completions are refused."""
OTHER_HINT = (
    "take a model that was trained on this prompt, an engine that forces steps (policy.constrained), or another "
    "prompt.profile"
)
THINKING = (
    "{:,} characters of reasoning (reasoning_content, <think>) came with them: raise policy.max_tokens, or turn "
    "thinking off: policy.chat_template_kwargs '{{enable_thinking: false}}'"
)

Said = tuple[str | None, str, str | None]
"""A completion: its action where that is known, its text, the reason for which it was refused."""
Written = dict[str, dict[str, int]]
"""Completions by action, then by the reason for which they were refused (`KEPT` where they were not)."""


def opened(text: str) -> str:
    """The action whose tag a completion opens first, of any grammar that this process has read; else `NO_ACTION`."""
    return next((grammars.OPENINGS[tag] for tag in _TAG.findall(text) if tag in grammars.OPENINGS), NO_ACTION)


def said_in(prediction: Prediction) -> list[Said]:
    """The completions of an episode; of best-of-N the chosen one's. Steps that a person gave to a turn are left out."""
    given = prediction.given if isinstance(prediction, Turn) else 0
    steps: list[Said] = [(step.action, step.text, None) for step in prediction.steps[given:]]
    broken = prediction.refused is not None or prediction.finish in ("empty", "truncated")  # an empty text is not kept
    return [*steps, (None, prediction.refused or "", prediction.finish)] if broken else steps


def written(completions: Iterable[Said]) -> Written:
    """Counts completions. If the action is unknown, the text's first tag names it."""
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


def refusals_told(counts: Written, first: str, reasoning: int) -> str | None:
    """What to say of completions that were nearly all refused; None of others. `first`: the first that was refused.
    `reasoning`: characters that were split off.
    """
    reasons = {reason: count for reason, count in _reasons(counts).items() if reason != KEPT}
    n, refused = sum(_reasons(counts).values()), sum(reasons.values())
    if not n or refused < (1 - LITTLE) * n:
        return None
    ranked = sorted(reasons, key=lambda reason: (-reasons[reason], reason))
    listed = ", ".join(f"{reason} {reasons[reason]}" for reason in ranked)
    hint = THINKING.format(reasoning) if reasoning else HINTS.get(ranked[0], OTHER_HINT)
    example = f"; first: {first}" if first else ""
    return f"{refused} of {n} completions were refused ({listed}){example}; {hint}"


@dataclass
class Refusals:
    """The completions of a run as they come. `first`: reason and text of the first that was refused."""

    counts: Written = field(default_factory=dict)
    reasoning: int = 0
    first: str = ""
    _said: bool = False

    def add(self, completions: Sequence[Said], reasoning: int = 0) -> str | None:
        """Counts some more; `EARLY` of them in, and once, what `refusals_told` says."""
        self.counts, self.reasoning = together((self.counts, written(completions))), self.reasoning + reasoning
        refused = (f"{failure}: {quoted(text)}" for _, text, failure in completions if failure)
        self.first = self.first or next(refused, "")
        if self._said or sum(_reasons(self.counts).values()) < EARLY:
            return None
        self._said = True
        return refusals_told(self.counts, self.first, self.reasoning)
