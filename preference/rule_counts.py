"""Counts of what each rule or filter was asked about and what it let pass."""

from __future__ import annotations

from typing import TypeVar

Item = TypeVar("Item")


class Funnel:
    """`stages`: by name of the rule, in order of first use, [candidates before it, candidates after it]."""

    def __init__(self) -> None:
        self.stages: dict[str, list[int]] = {}

    def count(self, name: str, passes: bool) -> bool:
        """Notes one candidate; returns `passes`."""
        stage = self.stages.setdefault(name, [0, 0])
        stage[0] += 1
        stage[1] += passes
        return passes

    def cut(self, name: str, candidates: list[Item], most: int) -> list[Item]:
        """The first `most` candidates; the others are counted as dropped."""
        self.note(name, len(candidates), min(most, len(candidates)))
        return candidates[:most]

    def note(self, name: str, before: int, after: int) -> None:
        """Notes many candidates at once."""
        stage = self.stages.setdefault(name, [0, 0])
        stage[0] += before
        stage[1] += after

    def rows(self) -> list[dict[str, str | int]]:
        """The stages as a report lists them."""
        return [{"rule": name, "before": before, "after": after} for name, (before, after) in self.stages.items()]
