"""The run of a stage that sends every question to one model once, such as `steprag judge`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import Results
from steprag.batch.worklist import SAMPLING, Result, note_failures, same_model, unfinished, work_off
from steprag.config.sections import PolicyConfig
from steprag.errors import RequestError
from steprag.policy.budget import BudgetConfig, Spending
from steprag.policy.client import Policy, model_identity, open_model
from steprag.policy.requests import OutputFormat
from steprag.runs.run import Run
from steprag.tree import Failure
from steprag.types import Question

Given = TypeVar("Given", bound=Result)


async def ask_each(
    run: Run,
    questions: list[Question],
    results: Results[Given],
    ask: Callable[[Question, Policy], Awaitable[Given]],
    *,
    role: str,
    model: PolicyConfig,
    replies: OutputFormat,
    budget: BudgetConfig,
) -> int:
    """Appends `ask(question, policy)` to `results` for every question that has no result yet, and puts all into the
    questions' order; returns how many failed. `role` names the model in the journal, `replies` is the form of its
    replies. Calls are journalled and bounded. Raises BudgetReached where a limit ended it.
    """
    if todo := unfinished(questions, results):
        spending = Spending(budget, {role: model.price})
        async with open_model(model, replies) as opened, Journal(run.path / JOURNAL, spending) as journal:
            run.set(calls_lost=journal.lost)
            same_model(run, **{role: opened})

            async def one(question: Question) -> Given | Failure:
                try:
                    return await ask(question, journal.question(question).policy(opened.policy, role, opened.gate))
                except RequestError as error:
                    return Failure(question.id, type(error).__name__, str(error))

            at_once, total = model.concurrency, len(questions)
            await work_off(
                run, todo, one, results=results, at_once=at_once, total=total, spending=spending, begun=journal.begun
            )
    results.put_in_order(question.id for question in questions)
    return note_failures(run, results)


def model_asked(model: PolicyConfig) -> dict[str, Any]:
    """What decides the replies of a model, for a run's identity."""
    return {**model_identity(model), **model.model_dump(include=SAMPLING)}
