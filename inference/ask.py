"""`steprag ask "question"`: one episode, each step shown as it comes, with the passages that its query found."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path

from indexes import open_retriever
from inference.config import InferConfig, add_infer_options, infer_config
from inference.critic_choice import critic_of
from steprag.agent.checkpoints import checked_profile
from steprag.agent.critic import Critic
from steprag.agent.environment import Environment, rollout
from steprag.batch.journal import Journal
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import PART_DONE, ConfigError
from steprag.policy.client import open_policy
from steprag.policy.gate import Gate
from steprag.types import Episode, Passage, Question, State

SHOWN = 110
"""Characters of a passage."""
IN_MEMORY = Path(":memory:")
"""A journal that no file keeps. Calls go through one as in a run, so that the same options play the same episode."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag ask", description="Ask the agent one question and watch it work.")
    parser.add_argument("question")
    parser.add_argument("--index", required=True, metavar="DIR", help="index folder")
    add_infer_options(parser)
    given = parse_arguments(parser, argv)
    config = infer_config(given)
    check_keys(config)
    episode = asyncio.run(ask(given.question, given.index, config))
    if episode.prediction is None:
        sys.stdout.write(f"no answer: {episode.finish}: {episode.refused}\n")
        return PART_DONE
    return 0


def check_keys(config: InferConfig) -> None:
    """Raises ConfigError for a key that would do nothing."""
    budget = {f"budget.{name}": limit is not None for name, limit in config.budget.model_dump().items()}
    questions = {"sample": config.sample is not None, "limit": config.limit is not None}
    given = {"best_of": config.best_of > 1, **questions, **budget}
    for key, is_given in given.items():
        if is_given:
            raise ConfigError(f"steprag ask plays one episode; {key} is for steprag infer")


async def ask(question: str, index: str, config: InferConfig) -> Episode:
    """Plays the episode and writes each step to standard output. Raises PolicyError and RetrieverError."""
    profile = checked_profile(config.prompt, config.policy)
    critic = critic_of(config, profile)
    choose = Critic(critic).choose if critic else None
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = Environment(profile, retriever, config.retriever.top_k, config.search.depth)
        await retriever.ready()
        async with open_policy(config.policy, profile.grammar) as policy, Journal(IN_MEMORY) as journal:
            calls = journal.question(Question("asked", question, ()))
            return await rollout(
                environment,
                calls.policy(policy, "policy", Gate(config.policy)),
                environment.start(question),
                seed=config.seed,
                after_step=partial(show, environment),
                candidates=config.candidates,
                choose=choose,
            )


def show(environment: Environment, state: State) -> None:
    """Writes the last step, and below a query what it found."""
    if state.steps:
        step = state.steps[-1]
        sys.stdout.write(f"{step.action:<9} {' '.join(step.text.split())}\n")
    else:  # the profile searches with the question itself
        sys.stdout.write(f"{'question':<9} {state.question}\n")
    for rank, passage in enumerate(state.passages, 1):
        sys.stdout.write(f"{'':<9} {rank}. {_line(passage)}\n")
    if environment.searched(state) and not state.passages:
        sys.stdout.write(f"{'':<9} nothing found\n")
    sys.stdout.flush()


def _line(passage: Passage) -> str:
    text = " ".join(passage.text.split())
    score = "" if passage.score is None else f" ({passage.score:.3f})"
    return f"{passage.title} [{passage.id}]{score}: {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
