"""How many candidates each rule and filter let pass."""

from __future__ import annotations


class RuleCounts:
    """What each rule or filter was asked about and what it let pass.

    `stages`: by name of the rule, in order of first use, [candidates before it, candidates after it].
    """

    def __init__(self) -> None:
        self.stages: dict[str, list[int]] = {}

    def count(self, name: str, passes: bool) -> bool:
        """Notes one candidate; returns `passes`."""
        self.note(name, 1, int(passes))
        return passes

    def note(self, name: str, before: int, after: int) -> None:
        """Notes many candidates at once."""
        stage = self.stages.setdefault(name, [0, 0])
        stage[0] += before
        stage[1] += after

    def rows(self) -> list[dict[str, str | int]]:
        """The stages as a report lists them."""
        return [{"rule": name, "before": before, "after": after} for name, (before, after) in self.stages.items()]
