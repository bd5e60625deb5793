"""Slots on a Ray cluster (extra `ray`): each a process that works questions off, anywhere in the cluster.

A question is the unit. This process alone hands questions out, holds the budget and writes the run's results; slots
write their journals, into the run folder, which all machines see. Ray carries calls only; whatever has to outlive a
process is on the disk. A slot that dies is replaced, and its questions go on from its journal.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Container, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray  # pyright: ignore[reportMissingImports]
from ray.exceptions import RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]

from steprag.batch.database import JournalReader, absorb_slots, slot_journal
from steprag.batch.endpoints import Served, note_served, served_by
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.ray_cluster import cluster, own_error
from steprag.batch.shards import Share, share_of
from steprag.batch.worklist import Config, StageOpener, Work, WorkerPlan, sync_seconds
from steprag.config.load import StageConfig
from steprag.config.sections import PriceConfig
from steprag.console.progress import say
from steprag.errors import BudgetReached, ConfigError, StepragError
from steprag.policy.budget import BudgetConfig, Spending
from steprag.policy.traces import beneath, carried, finish_traces
from steprag.runs.run import Run
from steprag.tree import Failure
from steprag.types import Question, Usage

Reply = TypeVar("Reply")
DEATHS = 3
"""Deaths of its slot after which a question that runs alone fails."""
OPENINGS = 3
"""Deaths of a slot while it opens, after which the run ends."""
PATIENT = 30.0
"""Seconds after which a slot that has no place in the cluster is mentioned."""


@dataclass(frozen=True)
class SlotPlan:
    """What a slot opens. `config` is its share, `journal` its own file, `base_journal` the run's, read only."""

    config: StageConfig
    opener: StageOpener[Any, Any]
    journal: Path
    base_journal: Path
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
        """Opens everything; returns the index's fingerprint and what the endpoints serve.

        Waits for the journal while a process that is taken for dead still holds it.
        """
        plan = self._plan
        if plan.folder.is_dir():
            os.chdir(plan.folder)
        agent, factory = await self._stack.enter_async_context(plan.opener(plan.config))
        base_journal = JournalReader.reading(plan.base_journal)
        self._stack.callback(base_journal.close)
        synced = sync_seconds(plan.config)
        journal = Journal(plan.journal, self._spending, exclusive=True, base_journal=base_journal, sync_seconds=synced)
        self._journal = await self._stack.enter_async_context(journal)
        self._work: Work[Any] = await factory(plan.config, agent, journal)
        return agent.environment.retriever.fingerprint, served_by(policy=agent.policy, judge=agent.judge)

    async def work(self, question: Question, trace: dict[str, str]) -> Any | Failure:
        """The question's result; `trace`: what its spans lie below."""
        return await beneath(trace, self._work(question))

    async def spent(self) -> SlotSpent:
        """What its calls took so far."""
        spent = self._spending
        return SlotSpent(spent.usage, spent.usd, spent.in_flight, spent.lost)

    async def stop(self, why: str) -> None:
        """Sends no more requests, for a limit of the whole run is reached."""
        self._journal.fatal = self._journal.fatal or BudgetReached(why)
        self._journal.closing = True
        await asyncio.gather(*self._journal.in_flight, return_exceptions=True)

    async def close(self) -> None:
        """Waits for the calls in flight and closes everything."""
        await self._stack.aclose()
        await asyncio.to_thread(finish_traces)


@asynccontextmanager
async def opened_slots(
    run: Run, config: Config, spending: Spending, slots: WorkerPlan[Config]
) -> AsyncIterator[tuple[Work[Any], Container[str]]]:
    """As `steprag.batch.workers.workers`, with slots. Raises ConfigError where a model would be started by each."""
    for role, asked in slots.models.items():
        if not asked.remote:
            raise ConfigError(f"--ray asks models that are served already; start the {role} and give {role}.base_url")
    journal = Journal(run.path / JOURNAL, spending)
    journal.close()  # slots read it; nobody writes it until they have ended
    started_ids, prices = journal.started_ids, spending.prices
    try:
        with cluster(slots.count):
            pool = _Pool(_plans(run.path, config, slots, prices), spending, slots.index)
            try:
                note_served(run, await pool.open())
                counting = asyncio.create_task(pool.count())
                try:
                    yield pool.work, started_ids
                finally:
                    counting.cancel()
                    await asyncio.gather(counting, return_exceptions=True)
            finally:
                await pool.close()
    finally:
        absorb_slots(run.path, slots.order)
        exact = Spending(prices=prices)
        Journal(run.path / JOURNAL, exact).close()
        spending.usage, spending.usd, spending.lost, spending.in_flight = exact.usage, exact.usd, exact.lost, 0
        spending.unpriced, spending.guessed, spending.paid = exact.unpriced, exact.guessed, exact.paid
        run.set(calls_lost=exact.lost)


def _plans(folder: Path, config: Config, slots: WorkerPlan[Config], prices: Any) -> list[SlotPlan]:
    """Each slot with its share of concurrency and rates. All slots share one budget, which is held here."""
    start, free = secrets.token_hex(4), config.model_copy(update={"budget": BudgetConfig()})
    folder = folder.absolute()
    return [
        SlotPlan(
            share_of(free, Share(place, slots.count)),
            slots.opener,
            slot_journal(folder, start, place),
            folder / JOURNAL,
            prices,
            Path.cwd(),
        )
        for place in range(slots.count)
    ]


class _Pool:
    """The slots. A question goes to the one with least to do."""

    def __init__(self, plans: list[SlotPlan], spending: Spending, index: str) -> None:
        self._plans, self._spending, self._index = plans, spending, index
        self._slots: list[Any] = [None] * len(plans)
        self._open: set[int] = set()
        self._busy = Counter[int]()
        self._opening = [asyncio.Lock() for _ in plans]
        self._alone = [asyncio.Lock() for _ in plans]
        self._before = SlotSpent(spending.usage, spending.usd, 0, spending.lost)
        self._spent: dict[int, SlotSpent] = {}

    async def open(self) -> dict[str, dict[str, str]]:
        """Starts all slots; returns what their endpoints serve."""
        served: dict[str, dict[str, str]] = {}
        for report in await asyncio.gather(*(self._start(place) for place in range(len(self._plans)))):
            for role, facts in report.items():
                if served.setdefault(role, facts) != facts:
                    raise ConfigError(f"the {role} is {served[role]} for one slot and {facts} for another")
        return served

    async def work(self, question: Question) -> Any | Failure:
        """The question's result from a slot. If its slot dies, the question is retried alone; after DEATHS more deaths
        it fails.
        """
        self._spending.check()
        place = min(range(len(self._slots)), key=lambda place: self._busy[place])
        self._busy[place] += 1
        try:
            if (result := await self._tried(place, question)) is not None:
                return result
            for _ in range(DEATHS):
                async with self._alone[place]:
                    if (result := await self._tried(place, question)) is not None:
                        return result
        finally:
            self._busy[place] -= 1
        why = f"its process died {DEATHS + 1} times (out of memory? Ray's logs say why)"
        return Failure(question.id, "WorkerLost", why)

    async def _tried(self, place: int, question: Question) -> Any | None:
        """The result; None where the slot died, which has then been replaced."""
        async with self._opening[place]:  # waits for one that is being replaced
            slot = self._slots[place]
        try:
            return await actor_reply(slot.work.remote(question, carried()))
        except RayActorError:
            await self._replace(place, slot)
            return None

    async def _replace(self, place: int, dead: Any) -> None:
        async with self._opening[place]:
            if self._slots[place] is dead:
                say(f"ray: slot {place} died; another one takes its place")
                ray.kill(dead, no_restart=True)  # it may be out of reach and alive
                await self._start(place)

    async def _start(self, place: int) -> dict[str, dict[str, str]]:
        """Starts a slot at `place` and waits until it is open; returns what its endpoints serve."""
        at_once = len(self._plans) + 10_000  # all bounds are ours
        kind: Any = ray.remote(Slot)
        kind = kind.options(num_cpus=1, max_concurrency=at_once, scheduling_strategy="SPREAD")
        for _ in range(OPENINGS):
            self._open.discard(place)
            self._slots[place] = slot = kind.remote(self._plans[place])
            late = asyncio.get_running_loop().call_later(
                PATIENT, say, f"ray: slot {place} is not open yet: it waits for a free processor, or for its journal"
            )
            try:
                fingerprint, served = await actor_reply(slot.ready.remote())
            except RayActorError:
                continue
            finally:
                late.cancel()
            if fingerprint != self._index:
                raise ConfigError(f"slot {place} finds another index than this process: {fingerprint}")
            self._open.add(place)
            return served
        raise StepragError(f"slot {place} died {OPENINGS} times while it opened (out of memory? Ray's logs say why)")

    async def count(self) -> None:
        """Sums what all slots have spent once a second, and stops them where a limit is reached."""
        while True:
            await asyncio.sleep(1)
            await asyncio.gather(*(self._ask_spent(place) for place in range(len(self._slots))))
            parts, before, total = list(self._spent.values()), self._before, self._spending
            total.usage = sum((part.usage for part in parts), before.usage)
            total.usd = before.usd + sum(part.usd for part in parts)
            total.lost = before.lost + sum(part.lost for part in parts)
            total.in_flight = sum(part.in_flight for part in parts)
            total.moved()
            try:
                total.check()
            except BudgetReached as reached:
                for slot in self._slots:
                    slot.stop.remote(str(reached))

    async def _ask_spent(self, place: int) -> None:
        if place not in self._open:
            return  # one that opens again does not know yet what its journal holds
        with suppress(RayActorError, TimeoutError):
            self._spent[place] = await asyncio.wait_for(actor_reply(self._slots[place].spent.remote()), 5)

    async def close(self) -> None:
        """Lets every slot wait for its calls in flight, and ends it. One that waits for its place is ended at once."""
        await asyncio.gather(*(self._end(place, slot) for place, slot in enumerate(self._slots) if slot is not None))

    async def _end(self, place: int, slot: Any) -> None:
        if place in self._open:
            with suppress(RayActorError):
                await actor_reply(slot.close.remote())
        ray.kill(slot, no_restart=True)


async def actor_reply(reply: Awaitable[Reply]) -> Reply:
    """An actor's reply. Its StepragError is raised here without the actor's traceback."""
    try:
        return await reply
    except RayTaskError as error:
        raise own_error(error) from None
