"""`steprag generate`: searches a file of questions, many trees at once, and appends each tree as it is finished.

Every call and every search is in the run's journal (`calls.sqlite`) before the tree acts on it
(`steprag.batch.journal`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

from data_generation.config import GenerateConfig
from data_generation.growth import finished, plant
from data_generation.rounds import Earlier
from data_generation.search import Searcher, grow, make_searcher
from indexes import open_retriever
from steprag.agent.checkpoints import checked_profile
from steprag.agent.judge import Judge, prompt_hash
from steprag.agent.open import Agent, make_environment, open_agent
from steprag.batch.journal import JOURNAL, Journal, QuestionCalls
from steprag.batch.worklist import (
    SAMPLING,
    agent_identity,
    in_question_order,
    note_failures,
    same_model,
    unfinished,
    work_off,
)
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.errors import PART_DONE, ConfigError, RequestError
from steprag.files import existing, read_records
from steprag.inputs import ids_identity, read_questions
from steprag.policy.budget import Spending
from steprag.policy.client import model_identity
from steprag.progress import say
from steprag.runs import Run, open_run
from steprag.types import Failure, Question, Tree, Usage


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag generate", description="Monte Carlo tree search: questions to trees")
    parser.add_argument("--questions", required=True, metavar="FILE", help="questions, JSON Lines")
    parser.add_argument("--dataset_name", metavar="NAME", help="the data set of these questions [as the rows say]")
    parser.add_argument("--index", required=True, metavar="DIR|URL", help="index folder, or a service's URL")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder: trees, failures, journal, manifest")
    parser.add_argument(
        "--after", nargs="+", default=[], metavar="RUN", help="earlier runs: what their trees hold is marked as known"
    )
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    config = config_from(GenerateConfig, given)
    file = existing(given.questions, "question file")
    earlier = Earlier([Path(run) for run in given.after]) if given.after else None
    failed = asyncio.run(generate(config, file, given.index, Path(given.out), earlier, given.dataset_name))
    return PART_DONE if failed else 0


async def generate(
    config: GenerateConfig,
    questions_file: Path,
    index: str,
    out: Path,
    earlier: Earlier | None = None,
    dataset: str | None = None,
) -> int:
    """Runs the stage; returns how many questions failed. `dataset` names the file's data set.

    Raises BudgetReached where a limit ended it.
    """
    everything = read_questions(questions_file, dataset)
    questions = everything[: config.limit]
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
        with open_run(out, "generate", identity=identity, config=config.model_dump()) as run:
            run.save(grammar=profile.grammar.name)
            judge = config.judge if config.reward.judged else None
            agent = open_agent(config, retriever, environment=environment, judge=judge)
            await search_all(run, questions, config, agent, earlier)
            return note_failures(run, run.path / "trees.jsonl", _question_id)


async def search_all(
    run: Run,
    questions: list[Question],
    config: GenerateConfig,
    opened: AbstractAsyncContextManager[Agent],
    earlier: Earlier | None = None,
) -> None:
    """Searches the questions that have no tree yet. `opened` is entered only if there are some.

    Leaving early (a limit, a refused key, Ctrl-C), it waits for the calls in flight, so that their replies are kept.
    """
    trees = run.path / "trees.jsonl"
    todo = unfinished(questions, trees, _question_id)
    spending = Spending(config.budget, {"policy": config.policy.price, "judge": config.judge.price})
    tally = Tally()
    for tree in read_records(trees, Tree) if trees.exists() else ():
        tally.add(tree)
    try:
        if todo:
            async with opened as agent, Journal(run.path / JOURNAL, spending) as journal:
                run.set(calls_lost=journal.lost)
                same_model(run, policy=agent.policy, judge=agent.judge)

                async def search(question: Question) -> Tree | Failure:
                    tree = await search_one(question, searcher_for(journal.question(question), config, agent))
                    if isinstance(tree, Tree):
                        tree = earlier.mark(tree) if earlier else tree
                        tally.add(tree)
                    return tree

                at_once = config.trees_at_once or 2 * config.policy.concurrency
                await work_off(run, todo, search, file=trees, at_once=at_once, total=len(questions), spending=spending,
                               begun=journal.begun)  # fmt: skip
    finally:
        in_question_order(trees, questions, _question_id)
        summarise(run, tally, spending)


def search_identity(config: GenerateConfig) -> dict[str, Any]:
    """What decides the trees beyond the agent: search, reward, limits, seed, and the judge where there is one."""
    identity = config.model_dump(include={"search", "reward", "tree", "seed"})
    if config.reward.judged:
        judge = {**model_identity(config.judge), **config.judge.model_dump(include=SAMPLING), "prompt": prompt_hash()}
        identity["judge"] = judge
    return identity


def searcher_for(calls: QuestionCalls, config: GenerateConfig, agent: Agent) -> Searcher:
    """What one question's search works with: the agent behind the journal."""
    mine = calls.agent(agent)
    judge = Judge(mine.judge.policy, config.reward.gold) if mine.judge else None
    return make_searcher(mine.environment, mine.policy.policy, judge, config)


async def search_one(question: Question, searcher: Searcher) -> Tree | Failure:
    """The question's tree, or why it failed, with the tree as far as it grew."""
    growth = plant(question, searcher.environment.start(question.question))
    try:
        return await grow(growth, searcher)
    except RequestError as error:
        return Failure(question.id, type(error).__name__, str(error), finished(growth, "failed"))
    finally:
        growth.take_apart()


def _question_id(row: dict[str, Any]) -> str:
    return row["question"]["id"]


class Tally:
    """What the trees of a run hold; counted as they are finished, for reading many of them again takes long."""

    def __init__(self) -> None:
        self.counts = {"trees": 0, "nodes": 0, "known": 0, "refused_steps": 0, "solved": 0, "mixed": 0}
        self.ended: Counter[str] = Counter()
        self.usage = Usage()

    def add(self, tree: Tree) -> None:
        scores = [node.prediction_f1 for node in tree.nodes if node.prediction_f1 is not None]
        self.counts["trees"] += 1
        self.counts["nodes"] += len(tree.nodes)
        self.counts["known"] += len(tree.known or ())
        self.counts["refused_steps"] += sum(node.failure is not None for node in tree.nodes)
        self.counts["solved"] += any(score == 1.0 for score in scores)
        self.counts["mixed"] += bool(scores) and max(scores) > min(scores)
        self.ended[tree.status] += 1
        self.usage += tree.usage


def summarise(run: Run, tally: Tally, spending: Spending) -> None:
    """Writes the counts into the manifest and says what the trees hold."""
    counts, ended, usage = tally.counts, tally.ended, tally.usage
    run.set(counts=counts, ended_by=dict(sorted(ended.items())), usage=vars(usage))
    if spending.usage.calls:
        run.set(spent=spending.summary())
    known = f" ({counts['known']} known from earlier runs)" if counts["known"] else ""
    cost = f", ${spending.usd:.2f}" if spending.usd else ""
    say(
        f"generate: {counts['trees']} trees ({counts['solved']} solved, {counts['mixed']} with answers of both kinds), "
        f"{counts['nodes']} nodes{known}, {usage.calls} calls, "
        f"{usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} completion tokens{cost}"
    )
    if counts["trees"]:
        listed = ", ".join(f"{name} {count}" for name, count in ended.most_common())
        say(f"generate: ended by {listed}; next: steprag pairs --trees {run.path}")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
