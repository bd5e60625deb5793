"""The types that the workers of a run share: this process and the slots of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from steprag.agent.open import Agent
from steprag.batch.journal import Journal
from steprag.config.load import StageConfig
from steprag.config.sections import JournalConfig, PolicyConfig
from steprag.tree import Failure
from steprag.types import Question

Outcome = TypeVar("Outcome")
Work = Callable[[Question], Awaitable[Outcome | Failure]]
"""What makes a question's result."""
Config = TypeVar("Config", bound=StageConfig)
Working = Callable[[Config, Agent, Journal], Awaitable[Work[Outcome]]]
"""Makes the work of a stage from its configuration, the agent and a journal."""
Opening = Callable[[Config], AbstractAsyncContextManager[tuple[Agent, Working[Config, Outcome]]]]
"""Opens the agent and the stage's work in another process; it has to be a function of a module."""


@dataclass(frozen=True)
class Slots(Generic[Config]):
    """Processes that work for this one: how many, what each opens, the fingerprint of the index that it must find.

    `order`: ids of the questions, as one process would begin them. `models`: those that are asked, by role.
    """

    count: int
    opening: Opening[Config, object]
    index: str
    order: Sequence[str]
    models: Mapping[str, PolicyConfig]


def sync_seconds(config: StageConfig) -> float:
    """How often the journal is written through to the disk; 0 where the configuration does not say."""
    return next((value.sync_seconds for _, value in config if isinstance(value, JournalConfig)), 0.0)
