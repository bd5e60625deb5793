"""`steprag infer`: runs the agent over a question file, writes each prediction as it comes, then scores them.

Calls and searches are journalled as in generation: what an interrupted run paid for is not paid again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: Python looks beside it first, where `inference` would be this file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)


from indexes import open_retriever
from inference.answer import answer_one
from inference.best_of import check_sampling, critic_of
from inference.config import InferConfig, config_of
from inference.scoring.evaluate import evaluate, table
from inference.scoring.scores import HARNESS
from steprag.agent.checkpoints import checked_profile
from steprag.agent.compliance import said_in, written
from steprag.agent.critic import Critic
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.retriever import PLACES
from steprag.batch.database import absorb_slots
from steprag.batch.datasets import add_dataset_options, chosen_file, file_name, sampled
from steprag.batch.journal import Journal
from steprag.batch.merge import Merging
from steprag.batch.results import ResultKind, Results
from steprag.batch.shards import Share, add_shard_option, shard_of, share_of
from steprag.batch.workers import add_ray_option, slots_of, workers
from steprag.batch.worklist import (
    StageFactory,
    Work,
    WorkerPlan,
    agent_identity,
    note_failures,
    pending,
    process_questions,
    report_spending,
    run_interruptible,
)
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import NEWEST, index_of, out_of
from steprag.console.terminal import guarded
from steprag.errors import PART_DONE
from steprag.policy.budget import Spending, prices_of
from steprag.records.inputs import read_questions
from steprag.records.left_out import LeftOut, as_json
from steprag.records.question_ids import ids_identity
from steprag.runs.run import Run, open_run
from steprag.tree import Failure
from steprag.types import Prediction, Question

PREDICTIONS = ResultKind(
    Prediction, lambda one: one.id, lambda one: {"written": written(said_in(one)), "reasoning": one.reasoning or 0},
    said=said_in,
)  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag infer", description="Run the agent over questions and score it.")
    add_dataset_options(parser, "test, else dev")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    parser.add_argument("--out", metavar="RUN", help="run folder: predictions.jsonl, metrics.json [runs/infer-NAME]")
    parser.add_argument("--json", action="store_true", help="scores as JSON on standard output")
    add_shard_option(parser)
    add_ray_option(parser)
    add_options(parser, InferConfig)
    given = parse_arguments(parser, argv)
    config_from(InferConfig, given)  # what is mistyped is said before any file is read
    file = chosen_file(given)
    index = index_of(given, questions=file)
    config = config_of(InferConfig, given, index=index)
    share, slots = shard_of(given.shard), slots_of(given.ray)
    out = out_of(given, "infer", given.dataset_name or file_name(file))
    run = infer(config, file, index, out, given.dataset_name, share, slots)
    scores, failed = run_interruptible(run)
    sys.stdout.write((json.dumps(scores, indent=2) if given.json else table(scores)) + "\n")
    return PART_DONE if failed else 0


async def infer(
    config: InferConfig,
    questions_file: Path,
    index: str,
    out: Path,
    dataset: str | None = None,
    share: Share | None = None,
    slots: int = 0,
) -> tuple[dict[str, Any], int]:
    """Runs the stage, or its part `share`; returns the scores and how many questions failed. `dataset` names the
    file's data set, `slots` is the number of Ray's processes that answer, 0 for this one.
    """
    check_sampling(config)
    gone: list[LeftOut] = []
    everything = read_questions(questions_file, dataset, gone)
    questions = sampled(everything, config.sample, config.seed)[: config.limit]
    questions = share.questions(questions) if share else questions
    mine = share_of(config, share)
    profile = checked_profile(config.prompt, config.policy)
    critic = critic_of(config, profile)
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(profile, retriever, config.episode)
        identity = {
            **agent_identity(config, questions_file, environment),
            **config.model_dump(include={"seed"} | ({"best_of"} if config.best_of > 1 else set())),
            **({"sample": config.sample} if config.sample else {}),
            "engine": config.policy.engine,  # each computes and quantises in its own way
            "harness": HARNESS,
            **ids_identity(everything),
        }
        if critic:
            identity |= {"critic": critic.hash, "candidates": config.candidates}
        if share:
            identity |= share.identity
        with open_run(out, "infer", identity=identity, config=config.model_dump()) as run:
            judge = Critic(critic) if critic and not slots else None
            agent = open_agent(mine, retriever, environment=environment)
            order = [question.id for question in questions]
            models = {"policy": mine.policy}
            on_ray = WorkerPlan(slots, partial(open_answers, index=index), retriever.fingerprint, order, models)
            run.save(asked=len(questions), left_out=as_json(gone))
            predictions = await answer_all(run, questions, mine, agent, judge, on_ray if slots else None)
            failed = note_failures(run, predictions)
            scores = _scored(run)
    return scores, failed


def _scored(run: Run) -> dict[str, Any]:
    """The scores of the run's predictions, which the manifest then counts."""
    scores = evaluate(run.path)
    run.set(counts={key: scores[key] for key in ("questions", "answered", "failed")}, usage=scores["usage"])
    return scores


def _finish(run: Run, predictions: Results[Prediction]) -> None:
    del predictions  # scored from their file
    sys.stdout.write(table(_scored(run)) + "\n")


MERGING = Merging("predictions.jsonl", PREDICTIONS, _finish)


async def answer_all(
    run: Run,
    questions: list[Question],
    config: InferConfig,
    opened: AbstractAsyncContextManager[OpenAgent],
    critic: Critic | None = None,
    slots: WorkerPlan[InferConfig] | None = None,
) -> Results[Prediction]:
    """Answers the questions that have no prediction yet; returns all. `opened` is entered only if some are missing,
    and not where `slots` answer.
    """
    predictions = Results(run.path / "predictions.jsonl", PREDICTIONS)
    todo = pending(questions, predictions)
    spending = Spending(config.budget, prices_of(config.policy))
    with report_spending(run, questions, predictions, spending):
        if todo:
            absorb_slots(run.path, (question.id for question in questions))
            factory = partial(answering, critic=critic)
            async with workers(run, config, spending, opened, factory, slots) as (answer, started):
                at_once = config.policy.concurrency
                max_calls = config.best_of * config.candidates * config.episode.depth
                await process_questions(
                    run, todo, answer, results=predictions, at_once=at_once, total=len(questions), spending=spending,
                    max_calls=max_calls, started_ids=started,
                )  # fmt: skip
    return predictions


async def answering(
    config: InferConfig, agent: OpenAgent, journal: Journal, *, critic: Critic | None = None
) -> Work[Prediction]:
    """What answers one question: the agent behind the journal."""

    async def answer(question: Question) -> Prediction | Failure:
        calls = journal.question(question)
        mine = calls.agent(agent)
        return await answer_one(
            question,
            config.seed,
            mine.environment,
            mine.policy.policy,
            best_of=config.best_of,
            critic=critic.score if critic else None,
            candidates=config.candidates,
            choose=critic.choose if critic else None,
        )

    return answer


@asynccontextmanager
async def open_answers(
    config: InferConfig, *, index: str
) -> AsyncIterator[tuple[OpenAgent, StageFactory[InferConfig, Prediction]]]:
    """The agent of a process that answers for another one, and `answering`."""
    chosen = critic_of(config, checked_profile(config.prompt, config.policy))
    critic = Critic(chosen) if chosen else None
    async with aclosing(open_retriever(index, config.retriever)) as retriever, open_agent(config, retriever) as agent:
        yield agent, partial(answering, critic=critic)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
