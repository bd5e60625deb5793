"""What one process of a cluster holds: the agent, its gates, and a journal that nobody else opens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprag.batch.database import KeptCalls
from steprag.batch.journal import Journal
from steprag.batch.workers import Opening, Work, sync_seconds
from steprag.batch.worklist import Served, served_by
from steprag.config import StageConfig
from steprag.errors import BudgetReached
from steprag.policy.budget import Spending
from steprag.sections import PriceConfig
from steprag.types import Failure, Question, Usage


@dataclass(frozen=True)
class SlotPlan:
    """What a slot opens. `config` is its share; `journal` its own file, `below` the run's, which is only read."""

    config: StageConfig
    opening: Opening[Any, Any]
    journal: Path
    below: Path
    prices: Mapping[str, PriceConfig]
    folder: Path
    """Where the command was started: what relative paths are relative to."""


@dataclass(frozen=True)
class SlotSpent:
    """What a slot has spent since the start of the run, calls in flight and lost ones apart."""

    usage: Usage = Usage()
    usd: float = 0.0
    in_flight: int = 0
    lost: int = 0


class Slot:
    """One such process, as an actor. `ready` comes first; then any number of questions at once."""

    def __init__(self, plan: SlotPlan) -> None:
        self._plan = plan
        self._stack = AsyncExitStack()
        self._spending = Spending(prices=plan.prices)

    async def ready(self) -> tuple[str, Served]:
        """Opens everything; the fingerprint of the index, and what the endpoints serve.

        Waits for the journal where a process that is taken for dead still has it.
        """
        plan = self._plan
        if plan.folder.is_dir():
            os.chdir(plan.folder)
        agent, working = await self._stack.enter_async_context(plan.opening(plan.config))
        below = KeptCalls.reading(plan.below)
        self._stack.callback(below.close)
        synced = sync_seconds(plan.config)
        journal = Journal(plan.journal, self._spending, alone=True, below=below, sync_seconds=synced)
        self._journal = await self._stack.enter_async_context(journal)
        self._work: Work[Any] = await working(plan.config, agent, journal)
        return agent.environment.retriever.fingerprint, served_by(policy=agent.policy, judge=agent.judge)

    async def work(self, question: Question) -> Any | Failure:
        """The question's result."""
        return await self._work(question)

    async def spent(self) -> SlotSpent:
        """What its calls took so far."""
        told = self._spending
        return SlotSpent(told.usage, told.usd, told.in_flight, told.lost)

    async def stop(self, why: str) -> None:
        """Sends no more requests, for a limit of the whole run is reached."""
        self._journal.fatal = self._journal.fatal or BudgetReached(why)
        self._journal.closing = True
        await asyncio.gather(*self._journal.in_flight, return_exceptions=True)

    async def close(self) -> None:
        """Waits for the calls in flight and closes everything."""
        await self._stack.aclose()
