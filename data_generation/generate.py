"""`steprag generate`: searches a file of questions, many trees at once, and appends each tree as it is finished."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from data_generation.config import GenerateConfig
from data_generation.search import finished, grow, plant
from indexes import open_retriever
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.environment import Environment
from steprag.errors import RequestError
from steprag.files import existing, read_questions, read_records
from steprag.policy import Policy, open_policy
from steprag.progress import say
from steprag.prompts import load_profile
from steprag.questions import agent_identity, in_question_order, note_failures, unfinished, work_off
from steprag.runs import Run, open_run
from steprag.types import Failure, Question, Tree, Usage


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag generate", description="Monte Carlo tree search: questions to trees")
    parser.add_argument("--questions", required=True, metavar="FILE", help="questions, JSON Lines")
    parser.add_argument("--index", required=True, metavar="DIR", help="index folder")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder: trees.jsonl, failures.jsonl, manifest")
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    config = config_from(GenerateConfig, given)
    file = existing(given.questions, "question file")
    return 3 if asyncio.run(generate(config, file, given.index, Path(given.out))) else 0


async def generate(config: GenerateConfig, questions_file: Path, index: str, out: Path) -> int:
    """Runs the stage; returns how many questions failed."""
    questions = read_questions(questions_file)[: config.limit]
    profile = load_profile(config.prompt.profile, config.prompt.examples)
    retriever = open_retriever(index)
    environment = Environment(profile, retriever, config.retriever.top_k, config.search.depth)
    identity = {
        **agent_identity(config, questions_file, profile, retriever),
        **config.model_dump(include={"search", "reward", "seed"}),
    }
    with open_run(out, "generate", identity=identity, config=config.model_dump()) as run:
        trees = run.path / "trees.jsonl"
        todo = unfinished(questions, trees, _question_id)
        if todo:
            async with open_policy(config.policy, profile.grammar) as policy:

                async def search(question: Question) -> Tree | Failure:
                    return await search_one(question, config, environment, policy)

                at_once = config.policy.concurrency
                await work_off(run, todo, search, file=trees, at_once=at_once, total=len(questions))
        await retriever.close()
        in_question_order(trees, questions, _question_id)
        _summarise(run, trees)
        return note_failures(run)


async def search_one(
    question: Question, config: GenerateConfig, environment: Environment, policy: Policy
) -> Tree | Failure:
    """The question's tree, or why it failed, with the tree as far as it grew."""
    growth = plant(question)
    try:
        return await grow(growth, environment, policy, config.search, config.reward, config.seed)
    except RequestError as error:
        return Failure(question.id, type(error).__name__, str(error), finished(growth, "failed"))


def _question_id(row: dict[str, Any]) -> str:
    return row["question"]["id"]


def _summarise(run: Run, trees: Path) -> None:
    """Counts the run's trees into the manifest and says what they hold."""
    counts = {"trees": 0, "nodes": 0, "refused_steps": 0, "solved": 0, "mixed": 0}
    usage = Usage()
    for tree in read_records(trees, Tree) if trees.exists() else ():
        scores = [node.prediction_f1 for node in tree.nodes if node.prediction_f1 is not None]
        counts["trees"] += 1
        counts["nodes"] += len(tree.nodes)
        counts["refused_steps"] += sum(node.failure is not None for node in tree.nodes)
        counts["solved"] += any(score == 1.0 for score in scores)
        counts["mixed"] += bool(scores) and max(scores) > min(scores)
        usage += tree.usage
    run.set(counts=counts, usage=vars(usage))
    say(
        f"generate: {counts['trees']} trees ({counts['solved']} solved, {counts['mixed']} with answers of both kinds), "
        f"{counts['nodes']} nodes, {usage.calls} calls, "
        f"{usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} completion tokens"
    )


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
