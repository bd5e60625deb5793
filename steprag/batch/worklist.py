"""Works through a file of questions, many at a time, into a run folder: generation and inference share it.

Each result is on the disk before the next question is taken. Started again, finished questions are skipped and failed
ones tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from steprag.agent.environment import Environment
from steprag.agent.open import AgentConfig
from steprag.batch.results import Results
from steprag.console.progress import Progress, say
from steprag.errors import ConfigError, DataError
from steprag.policy.budget import Spending
from steprag.policy.client import Model, OpenAIPolicy, model_identity
from steprag.records.jsonl import LineJournal, drop_torn_line, file_hash, read_rows, write_records
from steprag.runs.run import Run
from steprag.tree import Failure
from steprag.types import Question, Usage

Item = TypeVar("Item")
FAILED = "failures.jsonl"
Served = dict[str, dict[str, str]]
"""By role: what its endpoint reports about the model."""
SAMPLING = {"temperature", "top_p", "top_k", "min_p", "max_tokens", "constrained"}


class Result(Protocol):
    """A tree, a prediction or a verdict."""

    @property
    def usage(self) -> Usage:
        """What its calls took."""
        ...


def agent_identity(config: AgentConfig, questions_file: Path, environment: Environment) -> dict[str, Any]:
    """The part of a run's identity that policy, prompts, index and questions make up."""
    return {"questions": file_hash(questions_file), **player_identity(config, environment)}


def player_identity(config: AgentConfig, environment: Environment) -> dict[str, Any]:
    """The part of a run's identity without questions: policy, prompts and index."""
    profile = environment.profile
    return {
        "index": environment.retriever.fingerprint,
        "prompt": profile.identity,
        "grammar": profile.grammar.hash,
        "policy": {**model_identity(config.policy), **config.policy.model_dump(include=SAMPLING)},
        "episode": config.episode.identity,
    }


def unfinished(questions: list[Question], results: Results[Any]) -> list[Question]:
    """The questions that have no result yet."""
    if len(results):
        say(f"{results.path.name}: {len(results)} questions are there already")
    return [question for question in questions if question.id not in results]


async def work_off(
    run: Run,
    todo: list[Question],
    work: Callable[[Question], Awaitable[Result | Failure]],
    *,
    results: Results[Any],
    at_once: int,
    total: int,
    spending: Spending,
    begun: Container[str] = (),
) -> None:
    """Appends `work(question)` to `results`, or to failures.jsonl, for every question of `todo`.

    `total` counts the finished questions too.

    Ids in `begun` have calls from an earlier start: their seconds are marked as partial. Earlier failures stay in
    failures.jsonl (`note_failures` leaves the last of each question that has no result).
    """
    label, failed = run.manifest["stage"], Counter[str]()
    run.note(event="begun")
    with (
        results.appending() as keep,
        LineJournal(run.path / FAILED) as failures,
        Progress(label, total, "questions", total - len(todo)) as progress,
    ):

        async def one(question: Question) -> None:
            began = time.monotonic()
            result = await work(question)
            took: dict[str, Any] = {"id": question.id, "seconds": round(time.monotonic() - began, 3)}
            took |= {"part": True} if question.id in begun else {}
            if isinstance(result, Failure):
                failures.append(result)
                failed[result.reason] += 1
                run.note(event="failure", reason=result.reason, **took)
            else:
                keep(result)
                run.note(event="done", **took, **vars(result.usage))
            progress.advance(notes=_notes(failed, spending))

        async def watch() -> None:
            while True:
                await asyncio.sleep(1)
                progress.show(_notes(failed, spending))

        watching = asyncio.create_task(watch())
        try:
            await for_each(todo, one, at_once=at_once)
        finally:
            watching.cancel()


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int) -> None:
    """Awaits `work(item)` for every item, `at_once` at a time, starting them in order.

    The first error cancels what is under way and is raised as itself.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:  # the workers share one iterator: each item is taken once
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def served_by(**models: Model | None) -> Served:
    """The weights that each role's endpoint reports; roles without a report are omitted."""
    found = {key: each.policy.served for key, each in models.items() if each and isinstance(each.policy, OpenAIPolicy)}
    return {role: served for role, served in found.items() if served}


def same_model(run: Run, **models: Model | None) -> None:
    """`note_served` for the endpoints of these roles."""
    note_served(run, served_by(**models))


def note_served(run: Run, models: Served) -> None:
    """Notes the served models. Raises ConfigError if an endpoint reported another one when the run was begun; an
    endpoint without a report is not checked.
    """
    known = dict(run.manifest.get("served", {}))
    for role, served in models.items():
        if known.setdefault(role, served) != served:
            raise ConfigError(
                f"{run.path} was begun with {known[role]} served as the {role}, which is now {served}; serve the same "
                "again, or choose another folder"
            )
    run.save(served=known)


def _notes(failed: Counter[str], spending: Spending) -> str:
    """The notes beside the progress: failures by kind, and the cost so far."""
    spent = spending.usage
    notes = [f"{count} {reason}" for reason, count in sorted(failed.items())] or ["0 failed"]
    notes.append(f"{spent.calls:,} calls, {spent.prompt_tokens + spent.completion_tokens:,} tokens")
    if spent.cached_tokens and spent.prompt_tokens:
        notes.append(f"{spent.cached_tokens / spent.prompt_tokens:.0%} of prompts cached")
    if spending.usd:
        notes.append(f"${spending.usd:.2f}")
    return ", ".join(notes)


def failures_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The last failure of every question of a run folder that failed once, by its id; some may have a result since."""
    file = folder / FAILED
    if not file.exists():
        return {}
    failed = {}
    for number, row in read_rows(file):
        if not isinstance(row, dict) or not isinstance(row.get("id"), str):
            raise DataError(file, "no failure of a question: it has no id", line=number, remedy="delete the line")
        failed[row["id"]] = row
    return failed


def note_failures(run: Run, results: Results[Any]) -> int:
    """Leaves the failures of questions without a result and counts them; where there are some, marks the run as partial
    and says so.
    """
    drop_torn_line(run.path / FAILED)
    failed = [row for key, row in failures_in(run.path).items() if key not in results]
    write_records(run.path / FAILED, failed)
    if failed:
        run.set(status="partial")
        stage, why = run.manifest["stage"], run.path / FAILED
        say(f"{stage}: {len(failed)} questions failed; {why} says why; run again to retry them")
    return len(failed)
