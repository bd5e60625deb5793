"""The workers of a run: this process, or slots, which are processes of a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from steprag.agent.open import Agent
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.ray_cluster import check_ray
from steprag.batch.worklist import same_model
from steprag.config.load import StageConfig
from steprag.config.sections import JournalConfig, PolicyConfig
from steprag.errors import ConfigError
from steprag.policy.budget import Spending
from steprag.runs.run import Run
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


def add_ray_option(parser: argparse.ArgumentParser) -> None:
    """`--ray N`."""
    text = "work with so many processes of the Ray cluster at $RAY_ADDRESS; without one, of this machine [0: without]"
    parser.add_argument("--ray", metavar="N", default="0", help=text)


def slots_of(text: str) -> int:
    """The number that `--ray` names. Raises ConfigError."""
    if not text.isdecimal() or int(text) > 10_000:
        raise ConfigError(f"--ray {text}: expected the number of processes")
    return int(text)


@asynccontextmanager
async def workers(
    run: Run,
    config: Config,
    spending: Spending,
    opened: AbstractAsyncContextManager[Agent],
    working: Working[Config, Outcome],
    slots: Slots[Config] | None,
) -> AsyncIterator[tuple[Work[Outcome], Container[str]]]:
    """The work on one question, and the ids of the questions that an earlier start has begun.

    Leaving the block waits for the calls in flight, so that their replies are kept.
    """
    if slots is not None:
        check_ray()
        from steprag.batch.ray_slots import opened_slots

        async with opened_slots(run, config, spending, slots) as both:
            yield both
        return
    kept = Journal(run.path / JOURNAL, spending, sync_seconds=sync_seconds(config))
    async with opened as agent, kept as journal:
        run.set(calls_lost=journal.lost)
        same_model(run, policy=agent.policy, judge=agent.judge)
        yield await working(config, agent, journal), journal.begun


def sync_seconds(config: StageConfig) -> float:
    """How often the journal is written through to the disk; 0 where the configuration does not say."""
    return next((value.sync_seconds for _, value in config if isinstance(value, JournalConfig)), 0.0)
