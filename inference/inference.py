"""`steprag infer`: runs the agent over a question file, writes each prediction as it comes, then scores them.

Calls and searches are journalled as in generation: what an interrupted run paid for is not paid again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: Python looks beside it first, where `inference` would be this file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)


from indexes import open_retriever
from inference.best_of import Scorer, by_critic, by_vote, check_sampling, critic_of, play
from inference.config import InferConfig, config_of
from inference.scoring.evaluate import evaluate, table
from inference.scoring.scores import HARNESS
from inference.state_value import certain, check_state_value
from steprag.agent.checkpoints import checked_profile
from steprag.agent.compliance import said_in, written
from steprag.agent.critic import Critic
from steprag.agent.environment import Environment
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.retriever import PLACES
from steprag.agent.rollout import Choose
from steprag.batch.database import absorb_slots
from steprag.batch.datasets import add_dataset_options, chosen_file, file_name, sampled
from steprag.batch.journal import Journal
from steprag.batch.merge import Merging
from steprag.batch.results import ResultKind, Results
from steprag.batch.shards import Share, add_shard_option, shard_of, share_of
from steprag.batch.workers import add_ray_option, slots_of, workers
from steprag.batch.worklist import (
    Slots,
    Work,
    Working,
    agent_identity,
    billed,
    note_failures,
    run_calmly,
    unfinished,
    work_off,
)
from steprag.config.load import NEWEST, add_options, index_of, parse_arguments
from steprag.console.terminal import guarded
from steprag.errors import PART_DONE, RequestError
from steprag.policy.budget import Spending, prices_of
from steprag.policy.protocols import Policy
from steprag.records.inputs import read_questions
from steprag.records.left_out import LeftOut, as_json
from steprag.records.question_ids import ids_identity
from steprag.runs.run import NUMBERED, Run, open_run
from steprag.tree import Failure
from steprag.types import Episode, Found, Prediction, Question, Usage

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
    config, index = config_of(InferConfig, given), index_of(given)
    file = chosen_file(given)
    share, slots = shard_of(given.shard), slots_of(given.ray)
    out = Path(given.out or f"runs/infer-{given.dataset_name or file_name(file)}{NUMBERED}")
    run = infer(config, file, index, out, given.dataset_name, share, slots)
    scores, failed = run_calmly(run)
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
    check_state_value(config)
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
        if config.uncertainty is not None:
            identity |= {"uncertainty": config.uncertainty}
        if critic:
            identity |= {"critic": critic.hash, "candidates": config.candidates}
        if share:
            identity |= share.identity
        with open_run(out, "infer", identity=identity, config=config.model_dump()) as run:
            judge = Critic(critic) if critic and not slots else None
            agent = open_agent(mine, retriever, environment=environment)
            order = [question.id for question in questions]
            models = {"policy": mine.policy}
            on_ray = Slots(slots, partial(open_answers, index=index), retriever.fingerprint, order, models)
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
    slots: Slots[InferConfig] | None = None,
) -> Results[Prediction]:
    """Answers the questions that have no prediction yet; returns all. `opened` is entered only if some are missing,
    and not where `slots` answer.
    """
    predictions = Results(run.path / "predictions.jsonl", PREDICTIONS)
    todo = unfinished(questions, predictions)
    spending = Spending(config.budget, prices_of(config.policy))
    with billed(run, questions, predictions, spending):
        if todo:
            absorb_slots(run.path, (question.id for question in questions))
            working = partial(answering, critic=critic)
            async with workers(run, config, spending, opened, working, slots) as (answer, begun):
                at_once, most = config.policy.concurrency, config.best_of * config.candidates * config.episode.depth
                await work_off(run, todo, answer, results=predictions, at_once=at_once, total=len(questions),
                               spending=spending, most=most, begun=begun)  # fmt: skip
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
            certain(config, mine, calls, agent.policy),
            best_of=config.best_of,
            critic=critic.score if critic else None,
            candidates=config.candidates,
            choose=critic.choose if critic else None,
        )

    return answer


@asynccontextmanager
async def open_answers(
    config: InferConfig, *, index: str
) -> AsyncIterator[tuple[OpenAgent, Working[InferConfig, Prediction]]]:
    """The agent of a process that answers for another one, and `answering`."""
    chosen = critic_of(config, checked_profile(config.prompt, config.policy))
    critic = Critic(chosen) if chosen else None
    async with aclosing(open_retriever(index, config.retriever)) as retriever, open_agent(config, retriever) as agent:
        yield agent, partial(answering, critic=critic)


async def answer_one(
    question: Question,
    seed: int,
    environment: Environment,
    policy: Policy,
    *,
    best_of: int = 1,
    critic: Scorer | None = None,
    candidates: int = 1,
    choose: Choose | None = None,
) -> Prediction | Failure:
    """The question's prediction, or why it failed. `choose` takes each step of an episode from among `candidates`; of
    several episodes the critic takes one, or else their vote.
    """
    asked = question.question
    try:
        episodes = await play(
            environment, policy, asked, seed=seed, times=best_of, candidates=candidates, choose=choose
        )
    except RequestError as error:
        return Failure(question.id, type(error).__name__, str(error))
    if critic is None or best_of == 1:
        return _prediction(question, episodes, by_vote(episodes))
    return _prediction(question, episodes, await asyncio.to_thread(by_critic, episodes, environment, critic))


def _prediction(question: Question, episodes: Sequence[Episode], chosen: int) -> Prediction:
    """The chosen one of several episodes, with the answers and the usage of all."""
    episode = episodes[chosen]
    several = len(episodes) > 1
    return Prediction(
        id=question.id,
        question=question.question,
        golden_answers=question.golden_answers,
        prediction=episode.prediction,
        steps=episode.state.steps,
        passages=tuple(tuple(Found(p.id, p.title, p.score) for p in found) for found in episode.retrieved),
        usage=sum((each.usage for each in episodes), Usage()),
        finish=episode.finish,
        metadata=question.metadata,
        refused=episode.refused or None,
        answers=tuple(each.prediction for each in episodes) if several else None,
        chosen=chosen if several else None,
        searches=sum(len(each.retrieved) for each in episodes) if several else None,
        reasoning=sum(each.reasoning for each in episodes) or None,
        dataset=question.dataset,
    )


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
