"""`steprag ask "question"`: one episode, each step shown as it comes, with the passages that its query found."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing

from indexes import open_retriever
from inference.best_of import critic_of
from inference.config import InferConfig, config_of
from steprag.agent.checkpoints import checked_profile
from steprag.agent.critic import Critic, CriticFiles
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.retriever import PLACES
from steprag.agent.rollout import Moment, Taken, episode_of, rollout
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import Journal
from steprag.config.load import add_options, parse_arguments
from steprag.config.recipes import NEWEST, index_of
from steprag.errors import PART_DONE, ConfigError
from steprag.policy.traces import traced
from steprag.types import Episode, Question

SHOWN = 110
"""Characters of a passage."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag ask", description="Ask the agent one question and watch it work.")
    parser.add_argument("question")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    add_options(parser, InferConfig)
    given = parse_arguments(parser, argv)
    config = config_of(InferConfig, given, index=(index := index_of(given)))
    check_keys(config)
    episode = asyncio.run(ask(given.question, index, config))
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
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(profile, retriever, config.episode)
        opened = open_agent(config, retriever, environment=environment)
        async with opened as agent, Journal(IN_MEMORY) as journal:
            return await played(question, config, agent, journal, critic, show)


async def played(
    question: str,
    config: InferConfig,
    agent: OpenAgent,
    journal: Journal,
    critic: CriticFiles | None = None,
    watch: Callable[[Moment], None] | None = None,
) -> Episode:
    """An episode of the agent, told to `watch`. Its calls go through the journal as in a run, so that the same options
    play the same episode. Raises PolicyError and RetrieverError.
    """
    calls = journal.question(Question(f"asked: {question}", question, ()), live=True)
    mine = calls.agent(agent)
    turns = rollout(
        mine.environment,
        mine.policy.policy,
        mine.environment.start(question),
        seed=config.seed,
        candidates=config.candidates,
        choose=Critic(critic).choose if critic else None,
    )
    return await traced(episode_of(turns, watch), "agent", "ask", question)


def show(turn: Moment) -> None:
    """Writes a step that was taken, and below a query what it found."""
    if not isinstance(turn, Taken):
        return
    if turn.step:
        sys.stdout.write(f"{turn.step.action:<9} {' '.join(turn.step.text.split())}\n")
    else:  # the profile searches with the question itself
        sys.stdout.write(f"{'question':<9} {turn.state.question}\n")
    for rank, passage in enumerate(turn.state.passages, 1):
        text = " ".join(passage.text.split())
        score = "" if passage.score is None else f" ({passage.score:.3f})"
        said = f"{score}: {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"
        sys.stdout.write(f"{'':<9} {rank}. {passage.title} [{passage.id}]{said}\n")
    if turn.searched and not turn.state.passages:
        sys.stdout.write(f"{'':<9} nothing found\n")
    sys.stdout.flush()
