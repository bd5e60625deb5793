"""`steprag generate`: searches a file of questions, many trees at once, and appends each tree as it is finished.

Every call and every search is in the run's journal (`calls.sqlite`) before the tree acts on it
(`steprag.batch.journal`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from data_generation.config import GenerateConfig
from data_generation.expand import Searcher, make_searcher
from data_generation.growth import finished, root_only
from data_generation.plan import most_calls
from data_generation.search import grow
from data_generation.tally import Earlier, summarise
from indexes import open_retriever
from steprag.agent.belief import check_scoring
from steprag.agent.checkpoints import checked_profile
from steprag.agent.judge import Judge, prompt_hash, prompt_of
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.profiles import PromptProfile
from steprag.agent.retriever import PLACES
from steprag.batch.database import absorb_slots
from steprag.batch.datasets import add_dataset_options, chosen_file, file_name
from steprag.batch.journal import Journal, QuestionCalls
from steprag.batch.journalled import scorer_of
from steprag.batch.results import Results
from steprag.batch.shards import Share, add_shard_option, shard_of, share_of
from steprag.batch.tree_results import TREES
from steprag.batch.workers import add_ray_option, slots_of, workers
from steprag.batch.worklist import (
    StageFactory,
    Work,
    WorkerPlan,
    agent_identity,
    model_asked,
    note_failures,
    pending,
    process_questions,
    report_spending,
    run_interruptible,
)
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import NEWEST, index_of, out_of
from steprag.console.terminal import guarded
from steprag.errors import PART_DONE, ConfigError, RequestError
from steprag.policy.budget import Spending, prices_of
from steprag.records.inputs import read_questions
from steprag.records.left_out import LeftOut, as_json
from steprag.records.question_ids import ids_identity
from steprag.runs.run import Run, open_run
from steprag.tree import Failure, Tree
from steprag.types import Question


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag generate", description="Monte Carlo tree search: questions to trees")
    add_dataset_options(parser, "train, else the first there is")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    parser.add_argument("--out", metavar="RUN", help="run folder: trees, failures, journal [runs/generate-NAME]")
    parser.add_argument(
        "--after", nargs="+", default=[], metavar="RUN", help="earlier runs: what their trees hold is marked as known"
    )
    add_shard_option(parser)
    add_ray_option(parser)
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    config, file = config_from(GenerateConfig, given), chosen_file(given, learning=True)
    index = index_of(given, questions=file)
    earlier = Earlier([Path(run) for run in given.after]) if given.after else None
    share, slots = shard_of(given.shard), slots_of(given.ray)
    out = out_of(given, "generate", given.dataset_name or file_name(file))
    run = generate(config, file, index, out, earlier, given.dataset_name, share, slots)
    failed = run_interruptible(run)
    return PART_DONE if failed else 0


async def generate(
    config: GenerateConfig,
    questions_file: Path,
    index: str,
    out: Path,
    earlier: Earlier | None = None,
    dataset: str | None = None,
    share: Share | None = None,
    slots: int = 0,
) -> int:
    """Runs the stage, or its part `share`; returns how many questions failed. `dataset` names the file's data set,
    `slots` is the number of Ray's processes that search, 0 for this one.

    Raises BudgetReached where a limit ended it.
    """
    gone: list[LeftOut] = []
    everything = read_questions(questions_file, dataset, gone)
    questions = everything[: config.limit]
    questions = share.questions(questions) if share else questions
    mine = share_of(config, share)
    profile = checked_profile(config.prompt, config.policy)
    if profile.words.search_first:
        raise ConfigError(
            f"profile {profile.name} searches before the first step: it is for steprag infer, not for trees"
        )
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(profile, retriever, config.episode)
        identity = {**agent_identity(config, questions_file, environment), **search_identity(config)}
        identity |= ids_identity(everything)
        if earlier is not None:
            identity["after"] = earlier.identity
        if share is not None:
            identity |= share.identity
        with open_run(out, "generate", identity=identity, config=config.model_dump()) as run:
            run.save(grammar=profile.grammar.name, left_out=as_json(gone), **tools_told(environment.profile))
            judge = mine.judge if config.reward.judged else None
            agent = open_agent(mine, retriever, environment=environment, judge=judge)
            order = [question.id for question in questions]
            models = {"policy": mine.policy, **({"judge": judge} if judge else {})}
            on_ray = WorkerPlan(slots, partial(open_search, index=index), retriever.fingerprint, order, models)
            trees = await search_all(run, questions, mine, agent, earlier, on_ray if slots else None)
            return note_failures(run, trees)


async def search_all(
    run: Run,
    questions: list[Question],
    config: GenerateConfig,
    opened: AbstractAsyncContextManager[OpenAgent],
    earlier: Earlier | None = None,
    slots: WorkerPlan[GenerateConfig] | None = None,
) -> Results[Tree]:
    """Searches the questions that have no tree yet; returns all trees. `opened` is entered only if some are missing,
    and not where `slots` search.

    Leaving early (a limit, a refused key, Ctrl-C), it waits for the calls in flight, so that their replies are kept.
    """
    trees = Results(run.path / "trees.jsonl", TREES)
    todo = pending(questions, trees)
    absorb_slots(run.path, (question.id for question in questions))
    judge = config.judge if config.reward.judged else None
    spending = Spending(config.budget, prices_of(config.policy, judge))
    with report_spending(run, questions, trees, spending):
        try:
            if todo:
                async with workers(run, config, spending, opened, searching, slots) as (work, started):

                    async def search(question: Question) -> Tree | Failure:
                        tree = await work(question)
                        return earlier.mark(tree) if earlier and isinstance(tree, Tree) else tree

                    at_once, total = config.trees_at_once or 2 * config.policy.concurrency, len(questions)
                    max_calls = sum(most_calls(config, split=False).values())
                    await process_questions(
                        run, todo, search, results=trees, at_once=at_once, total=total, spending=spending,
                        max_calls=max_calls, started_ids=started,
                    )  # fmt: skip
        finally:
            summarise(run, trees.counts())
    return trees


def reserved_in(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The special tokens that a run kept out of its prompts beside those that every run keeps out."""
    listed = manifest.get("reserved")
    return tuple(token for token in listed if isinstance(token, str)) if isinstance(listed, list) else ()


async def searching(config: GenerateConfig, agent: OpenAgent, journal: Journal) -> Work[Tree]:
    """What searches one question: the agent behind the journal."""
    if config.search.score:
        await check_scoring(scorer_of(agent.policy))

    async def search(question: Question) -> Tree | Failure:
        return await search_one(question, searcher_for(journal.question(question), config, agent))

    return search


@asynccontextmanager
async def open_search(
    config: GenerateConfig, *, index: str
) -> AsyncIterator[tuple[OpenAgent, StageFactory[GenerateConfig, Tree]]]:
    """The agent of a process that searches for another one, and `searching`."""
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        judge = config.judge if config.reward.judged else None
        async with open_agent(config, retriever, judge=judge) as agent:
            yield agent, searching


def tools_told(profile: PromptProfile) -> dict[str, Any]:
    """What the manifest keeps for replays: the tools that the prompts name, and the special tokens kept out of them;
    nothing where there are none.
    """
    told: dict[str, Any] = {"tools": [asdict(tool) for tool in profile.grammar.tools]} if profile.grammar.tools else {}
    return told | ({"reserved": list(profile.reserved)} if profile.reserved else {})


def search_identity(config: GenerateConfig) -> dict[str, Any]:
    """What decides the trees beyond the agent: search, reward, limits, seed, and the judge where there is one."""
    identity = config.model_dump(include={"search", "reward", "tree", "seed"})
    identity["search"]["drill"] = None  # as in runs that were begun while there was such a key
    if not config.search.score:  # as in runs that were begun before there was such a key
        del identity["search"]["score"]
    if config.reward.judged:
        judge = {**model_asked(config.judge), "prompt": prompt_hash(prompt_of(config.judge))}
        identity["judge"] = judge
    return identity


def searcher_for(calls: QuestionCalls, config: GenerateConfig, agent: OpenAgent) -> Searcher:
    """What one question's search works with: the agent behind the journal."""
    mine = calls.agent(agent)
    judge = Judge(mine.judge.policy, config.reward.gold, prompt_of(config.judge)) if mine.judge else None
    scorer = calls.scorer(agent.policy) if config.search.score else None
    return make_searcher(mine.environment, mine.policy.policy, judge, config, scorer)


async def search_one(question: Question, searcher: Searcher) -> Tree | Failure:
    """The question's tree, or why it failed, with the tree as far as it grew."""
    tree = root_only(question, searcher.environment)
    try:
        return await grow(tree, searcher)
    except RequestError as error:
        return Failure(question.id, type(error).__name__, str(error), finished(tree, "failed"))
    finally:
        tree.take_apart()


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
