"""`steprag ask "question"`: one episode, each step shown as it comes, with the passages that its query found."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

from indexes import open_retriever
from inference.best_of import critic_of
from inference.config import DEMO_INDEX, InferConfig, add_infer_options, config_of
from inference.state_value import certain, check_state_value
from steprag.agent.checkpoints import checked_profile
from steprag.agent.critic import Critic
from steprag.agent.open import make_environment, open_agent
from steprag.agent.retriever import PLACES
from steprag.agent.rollout import Moment, Taken, episode_of, rollout
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import Journal
from steprag.config.load import index_of, parse_arguments
from steprag.errors import PART_DONE, ConfigError
from steprag.types import Episode, Question

SHOWN = 110
"""Characters of a passage."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag ask", description="Ask the agent one question and watch it work.")
    parser.add_argument("question")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [the recipe's, else {DEMO_INDEX}]")
    add_infer_options(parser)
    given = parse_arguments(parser, argv)
    config = config_of(InferConfig, given, shipped=True)
    check_keys(config)
    if given.index is given.config is None and Path(DEMO_INDEX).exists():
        given.index = DEMO_INDEX
    episode = asyncio.run(ask(given.question, index_of(given), config))
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
    check_state_value(config)
    profile = checked_profile(config.prompt, config.policy)
    critic = critic_of(config, profile)
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(profile, retriever, config.episode)
        opened = open_agent(config, retriever, environment=environment)
        # calls go through a journal as in a run, so that the same options play the same episode
        async with opened as agent, Journal(IN_MEMORY) as journal:
            calls = journal.question(Question("asked", question, ()))
            mine = calls.agent(agent)
            turns = rollout(
                mine.environment,
                certain(config, mine, calls, agent.policy),
                mine.environment.start(question),
                seed=config.seed,
                candidates=config.candidates,
                choose=Critic(critic).choose if critic else None,
            )
            return await episode_of(turns, show)


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
