"""Works through a file of questions, many at a time, into a run folder: generation and inference share it.

Each result is on the disk before the next question is taken. Started again, finished questions are skipped and failed
ones tried again.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from steprag.agent.compliance import KEPT, Refusals, refusals_told, together
from steprag.agent.environment import Environment
from steprag.agent.open import AgentConfig, OpenAgent
from steprag.batch.endpoints import asking
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import Results
from steprag.config.load import StageConfig
from steprag.config.sections import JournalConfig, PolicyConfig
from steprag.console.progress import Progress, say
from steprag.engines.threads import rare_collections
from steprag.errors import BudgetReached, DataError, RequestError, counted, shortened
from steprag.policy.budget import BudgetConfig, Spending
from steprag.policy.open import model_identity, open_model
from steprag.policy.protocols import Policy
from steprag.policy.requests import OutputFormat
from steprag.policy.traces import SAMPLED, earlier_traces, traced_question
from steprag.records.jsonl import LineJournal, drop_torn_line, file_hash, read_rows, write_json, write_records
from steprag.runs.run import FAILED, PROGRESS, Run, now
from steprag.tree import Failure
from steprag.types import Question, Usage

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Work = Callable[[Question], Awaitable[Outcome | Failure]]
"""What makes a question's result."""
Config = TypeVar("Config", bound=StageConfig)
StageFactory = Callable[[Config, OpenAgent, Journal], Awaitable[Work[Outcome]]]
"""Makes the work of a stage from its configuration, the agent and a journal."""
StageOpener = Callable[[Config], AbstractAsyncContextManager[tuple[OpenAgent, StageFactory[Config, Outcome]]]]
"""Opens the agent and the stage's work in another process; it has to be a function of a module."""
SAMPLING = {*SAMPLED, "constrained"}


@dataclass(frozen=True)
class WorkerPlan(Generic[Config]):
    """Processes that work for this one: how many, what each opens, the fingerprint of the index that it must find.

    `order`: ids of the questions, as one process would begin them. `models`: those that are asked, by role.
    """

    count: int
    opener: StageOpener[Config, object]
    index: str
    order: Sequence[str]
    models: Mapping[str, PolicyConfig]


def sync_seconds(config: StageConfig) -> float:
    """How often the journal is written through to the disk; 0 where the configuration does not say."""
    return next((value.sync_seconds for _, value in config if isinstance(value, JournalConfig)), 0.0)


class Result(Protocol):
    """A tree, a prediction or a verdict."""

    @property
    def usage(self) -> Usage:
        """What its calls took."""
        ...


Given = TypeVar("Given", bound=Result)


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


def pending(questions: list[Question], results: Results[Any]) -> list[Question]:
    """The questions that have no result yet."""
    if len(results):
        say(f"{results.path.name}: {counted(len(results), 'question')} done before")
    return [question for question in questions if question.id not in results]


@contextmanager
def report_spending(
    run: Run, questions: Sequence[Question], results: Results[Any], spending: Spending
) -> Iterator[None]:
    """The block in which a run asks. Then the results are in the questions' order, the manifest has what was spent, and
    one line says it; where a limit, an error or Ctrl-C ended the block, also what is finished and what waits.
    """
    stopped = True
    try:
        yield
        stopped = False
        (run.path / PROGRESS).unlink(missing_ok=True)
    finally:
        results.put_in_order(question.id for question in questions)
        if spending.usage.calls:  # none are known of before the journal is open
            run.set(spent=spending.summary())
            wait = [question.id for question in questions if question.id not in results]
            part = sum(question_id in spending.paid for question_id in wait)
            kept = f" ({part} of them begun: the journal keeps their calls, none is paid twice)" if part else ""
            outcome = (
                f"; {len(questions) - len(wait)} of {len(questions)} questions are finished, {len(wait)} wait{kept}"
            )
            say(f"{run.manifest['stage']}: {spending.bill}{outcome if stopped else ''}")


async def process_questions(
    run: Run,
    todo: list[Question],
    work: Callable[[Question], Awaitable[Result | Failure]],
    *,
    results: Results[Any],
    at_once: int,
    total: int,
    spending: Spending,
    max_calls: int,
    started_ids: Container[str] = (),
    refill: Iterator[Question] | None = None,
) -> None:
    """Appends `work(question)` to `results`, or to failures.jsonl, for every question of `todo`.

    `total` counts the finished questions too. A question takes at most `max_calls` calls. The folder's progress.json
    says how far the run is; it is removed once all questions are processed.

    `refill`: further questions, as in `for_each`. Questions in `started_ids` have calls from an earlier start: they
    come first, and their seconds are marked as partial. Earlier failures stay in failures.jsonl (`note_failures` leaves
    the last of each question that has no result). Says early if nearly all completions are refused.
    """
    todo, spending.ended = sorted(todo, key=lambda question: question.id not in started_ids), total - len(todo)
    label, failed, refusals = run.manifest["stage"], Counter[str](), Refusals()
    before = earlier_traces(run)
    run.note(event="begun")
    with (
        rare_collections(),
        results.appending() as keep,
        LineJournal(run.path / FAILED) as failures,
        Progress(label, None if refill else total, "questions", total - len(todo)) as progress,
    ):

        async def one(question: Question) -> None:
            async with spending.question(max_calls):
                began = time.monotonic()
                result = await traced_question(work(question), label, question, run, before)
                took: dict[str, Any] = {"id": question.id, "seconds": round(time.monotonic() - began, 3)}
                took |= {"part": True} if question.id in started_ids else {}
                if isinstance(result, Failure):
                    failures.append(result)
                    failed[result.reason] += 1
                    run.note(event="failure", reason=result.reason, **took)
                else:
                    counts = keep(result)
                    if message := refusals.add(results.kind.said(result), counts.get("reasoning", 0)):
                        say(f"{label}: {message}")
                    run.note(event="done", **took, **result.usage.shown)
                progress.advance(notes=_notes(failed, spending))

        def write_progress() -> None:
            progress.show(_notes(failed, spending))
            state = {**progress.state, "calls": spending.usage.calls, "usd": spending.dollars, "at": now()}
            with suppress(OSError):  # a full disk ends no watching, and hides no error that ended the run
                write_json(run.path / PROGRESS, state)

        watching = asyncio.create_task(every_two_seconds(write_progress))
        try:
            await for_each(todo, one, at_once=at_once, refill=refill)
        finally:
            watching.cancel()
            if refusals.first:
                run.manifest.setdefault("first_refused", refusals.first)
            write_progress()


async def every_two_seconds(write_progress: Callable[[], None]) -> None:
    """Until it is cancelled."""
    while True:
        write_progress()
        await asyncio.sleep(2)


def run_interruptible(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """`asyncio.run`. The first Ctrl-C cancels the work, which waits for calls in flight; the second cancels these too,
    between two steps of the loop. asyncio would raise it within one: whom that step was to wake would never end.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(work)

    async def stoppable() -> Outcome:
        loop, mine, presses = asyncio.get_running_loop(), asyncio.current_task(), itertools.count(1)

        def cancel(press: int) -> None:
            for task in asyncio.all_tasks():
                if task is mine or press > 1:
                    task.cancel()

        def pressed(*_: object) -> None:
            if (press := next(presses)) > 2:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(cancel, press)

        before = signal.signal(signal.SIGINT, pressed)
        try:
            return await work
        finally:
            signal.signal(signal.SIGINT, before)

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError as cancelled:
        raise KeyboardInterrupt from cancelled


async def for_each(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[None]],
    *,
    at_once: int,
    refill: Iterator[Item] | None = None,
) -> None:
    """Awaits `work(item)` for every item, `at_once` at a time, starting them in order; then for those of `refill`. That
    is asked again whenever an item has ended, since that may decide whether there are more.

    The first error cancels what is under way and is raised as itself; BudgetReached once that has ended too.
    """
    queue, reached, busy, ended = iter(items), list[BudgetReached](), 0, asyncio.Event()

    async def worker() -> None:
        nonlocal busy
        while True:
            for item in itertools.chain(queue, refill or ()):  # the workers share both: each item is taken once
                busy += 1
                try:
                    await work(item)
                except BudgetReached as limit:
                    reached.append(limit)
                    return
                finally:
                    busy -= 1
                    ended.set()
            if not (refill and busy):
                return
            ended.clear()
            await ended.wait()

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if reached:
        raise reached[0]


def _notes(failed: Counter[str], spending: Spending) -> str:
    """The notes beside the progress: failures by kind, and the cost so far."""
    spent = spending.usage
    notes = [f"{count} {reason}" for reason, count in sorted(failed.items())] or ["0 failed"]
    notes.append(f"{counted(spent.calls, 'call')}, {counted(spent.prompt_tokens + spent.completion_tokens, 'token')}")
    if spent.cached_tokens and spent.prompt_tokens:
        notes.append(f"{spent.cached_tokens / spent.prompt_tokens:.0%} of prompts cached")
    if spending.dollars:
        notes.append(f"${spending.dollars:.2f}")
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
    """Leaves the failures of questions without a result and returns how many came to nothing. Where there are some, or
    where all completions were refused, marks the run as partial and says so.
    """
    drop_torn_line(run.path / FAILED)
    failed = [row for key, row in failures_in(run.path).items() if key not in results]
    write_records(run.path / FAILED, failed)
    if failed:
        run.set(status="partial")
        stage, why = run.manifest["stage"], run.path / FAILED
        first = shortened(str(failed[0].get("detail")), 400)
        told = f"{counted(len(failed), 'question')} failed (first: {first})"
        say(f"{stage}: {told}; {why} says why; run again to retry")
    return len(failed) + _refused(run, results)


def _refused(run: Run, results: Results[Any]) -> int:
    """How many results came to nothing: all, where all of their completions were refused. Says so, also where nearly
    all were.
    """
    counted = [counts for counts in results.counts() if "written" in counts]
    counts, reasoning = together(each["written"] for each in counted), sum(each["reasoning"] for each in counted)
    if reasoning:
        run.set(reasoning_chars=reasoning)
    message = refusals_told(counts, run.manifest.get("first_refused", ""), reasoning)
    if message:
        say(f"{run.manifest['stage']}: {message}")
    if not message or any(KEPT in reasons for reasons in counts.values()):
        return 0
    run.set(status="partial")
    return len(counted)


async def ask_all(
    run: Run,
    questions: list[Question],
    results: Results[Given],
    ask: Callable[[Question, Policy], Awaitable[Given]],
    *,
    role: str,
    model: PolicyConfig,
    replies: OutputFormat,
    budget: BudgetConfig,
    max_calls: int = 2,
    refill: Iterator[Question] | None = None,
) -> int:
    """Appends `ask(question, policy)` to `results` for every question that has no result yet, and puts all into the
    questions' order; returns how many failed. `role` names the model in the journal, `replies` is the form of its
    replies. A question takes at most `max_calls`. `refill` (`for_each`) draws further questions and appends them to the
    list. Calls are journalled and bounded. Raises BudgetReached when a limit ends the run.
    """
    todo, spending = pending(questions, results), Spending(budget, {role: model.cost})
    with report_spending(run, questions, results, spending):
        if todo:
            async with open_model(model, replies) as opened, Journal(run.path / JOURNAL, spending) as journal:

                async def one(question: Question) -> Given | Failure:
                    try:
                        return await ask(question, journal.question(question).policy(opened.policy, role, opened.gate))
                    except RequestError as error:
                        return Failure(question.id, type(error).__name__, str(error))

                with asking(run, journal, **{role: opened}):
                    total = len(results) + len(todo) if refill else len(questions)
                    await process_questions(
                        run, todo, one, results=results, at_once=model.concurrency, total=total, spending=spending,
                        max_calls=max_calls, started_ids=journal.started_ids, refill=refill,
                    )  # fmt: skip
    return note_failures(run, results)


def model_asked(model: PolicyConfig) -> dict[str, Any]:
    """What decides the replies of a model, for a run's identity."""
    return {**model_identity(model), **model.model_dump(include=SAMPLING)}
