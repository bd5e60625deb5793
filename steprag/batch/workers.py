"""The workers of a run: this process, or slots, which are processes of a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Container
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from steprag.agent.open import OpenAgent
from steprag.batch.endpoints import asking
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.ray_cluster import check_ray
from steprag.batch.worklist import Config, Outcome, StageFactory, Work, WorkerPlan, sync_seconds
from steprag.errors import ConfigError
from steprag.policy.budget import Spending
from steprag.runs.run import Run


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
    opened: AbstractAsyncContextManager[OpenAgent],
    factory: StageFactory[Config, Outcome],
    slots: WorkerPlan[Config] | None,
) -> AsyncIterator[tuple[Work[Outcome], Container[str]]]:
    """The work on one question, and the ids of the questions that have calls from an earlier start.

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
        with asking(run, journal, policy=agent.policy, judge=agent.judge):
            yield await factory(config, agent, journal), journal.started_ids
