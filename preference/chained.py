"""Which labels ask chained match (`steprag.agent.chained`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preference.config import LabelConfig
from steprag.agent.chained import chained_match
from steprag.agent.facts import Facts
from steprag.types import Passage


def is_chained(facts: Facts, label: LabelConfig) -> bool:
    """Whether chained match labels a tree: `evidence` asks it where the question marks nothing."""
    return facts.gold is None if label.name == "evidence" else label.chained


def chain(facts: Facts, label: LabelConfig, found: Sequence[Passage] = ()) -> Facts:
    """The facts with what chained match says, where the label asks it. `found`: as `chained_match` takes it."""
    return replace(facts, met=chained_match(facts, found)) if is_chained(facts, label) else facts
