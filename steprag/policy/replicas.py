"""Which replicas of an engine stood behind one address: what each was asked, and what it found in its prefix cache.

A router may name the replica in a header of its replies (`policy.replica_header`). Nobody else can tell them apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from steprag.types import Usage


@dataclass
class ReplicaCalls:
    """What one replica answered, in tokens as the engine reports them."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass
class Replicas:
    """All replicas that were met, by name; `split`: sessions that met more than one; `unnamed`: replies without the
    header.
    """

    by_name: dict[str, ReplicaCalls] = field(default_factory=dict)
    split: int = 0
    unnamed: int = 0

    def met(self, name: str | None, usage: Usage, session: set[str]) -> None:
        """A reply of the replica of that name; `session` holds the names that its session has met."""
        if not name:
            self.unnamed += 1
            return
        calls = self.by_name.setdefault(name, ReplicaCalls())
        calls.calls += 1
        calls.prompt_tokens += usage.prompt_tokens
        calls.cached_tokens += usage.cached_tokens
        self.split += name not in session and len(session) == 1
        session.add(name)

    def add(self, other: Replicas) -> None:
        """Counts what another process met too."""
        self.split, self.unnamed = self.split + other.split, self.unnamed + other.unnamed
        for name, theirs in other.by_name.items():
            ours = self.by_name.setdefault(name, ReplicaCalls())
            ours.calls += theirs.calls
            ours.prompt_tokens += theirs.prompt_tokens
            ours.cached_tokens += theirs.cached_tokens

    @property
    def facts(self) -> dict[str, Any]:
        """As a run's events have it."""
        by_name = {name: asdict(calls) for name, calls in sorted(self.by_name.items())}
        return {"replicas": by_name, "split_sessions": self.split, "unnamed": self.unnamed}

    @property
    def line(self) -> str:
        """For whoever watches: replicas and the share of their prompts that was cached, least to most."""
        if not self.by_name:
            return f"none of {self.unnamed} replies names its replica; policy.replica_header is another one here"
        shares = [each.cached_tokens / each.prompt_tokens for each in self.by_name.values() if each.prompt_tokens]
        cached = f"{min(shares):.0%} to {max(shares):.0%} of prompts cached" if shares else "no prompts counted"
        unnamed = f", {self.unnamed} replies named none" if self.unnamed else ""
        return f"{len(self.by_name)} replicas, {cached}, {self.split} questions met more than one{unnamed}"
