"""`steprag ask "question"`: one episode, each step shown as it comes, with the passages that its query found."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import aclosing

from indexes import open_retriever
from inference.best_of import critic_of
from inference.config import InferConfig, config_of, support_for
from steprag.agent.checkpoints import checked_profile
from steprag.agent.citations import LACKING, Grounds, grounds_of, headed
from steprag.agent.critic import Critic, CriticFiles
from steprag.agent.grammar import FAILURES
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.retriever import PLACES, url_of
from steprag.agent.rollout import Moment, Taken, episode_of, rollout
from steprag.agent.talk import reply_to
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import Journal
from steprag.config.load import add_options, parse_arguments
from steprag.config.recipes import NEWEST, index_of
from steprag.errors import PART_DONE, ConfigError
from steprag.policy.traces import traced
from steprag.types import Episode, Question, State, Step, Usage

SHOWN = 110
"""Characters of a passage."""
_TAG = re.compile(r"</?[a-z_]{1,20}>")
"""What marks an action in a step."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag ask", description="Ask the agent one question and watch it work.")
    parser.add_argument("question")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    add_options(parser, InferConfig)
    given = parse_arguments(parser, argv)
    if words := reply_to(given.question):  # no search is meant
        sys.stdout.write(f"{words}\n")
        return 0
    config = config_of(InferConfig, given, index=(index := index_of(given)))
    check_keys(config)
    episode = asyncio.run(ask(given.question, index, config))
    return 0 if episode.finish == "answer" else PART_DONE


def check_keys(config: InferConfig) -> None:
    """Raises ConfigError for a key that would do nothing."""
    budget = {f"budget.{name}": limit is not None for name, limit in config.budget.model_dump().items()}
    questions = {"sample": config.sample is not None, "limit": config.limit is not None}
    given = {"best_of": config.best_of > 1, **questions, **budget}
    for key, is_given in given.items():
        if is_given:
            raise ConfigError(f"steprag ask plays one episode; {key} is for steprag infer")


async def ask(question: str, index: str, config: InferConfig) -> Episode:
    """Plays the episode and writes each step to standard output, then the answer. Raises PolicyError and
    RetrieverError.
    """
    profile = checked_profile(config.prompt, config.policy)
    critic = critic_of(config, profile)
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(profile, retriever, config.episode)
        opened = open_agent(config, retriever, environment=environment)
        async with opened as agent, Journal(IN_MEMORY) as journal:
            episode = await played(question, config, agent, journal, critic, show)
        conclude(episode, grounds_of(episode.state, environment, support_for(index)))
        return episode


async def played(
    question: str,
    config: InferConfig,
    agent: OpenAgent,
    journal: Journal,
    critic: CriticFiles | None = None,
    watch: Callable[[Moment], None] | None = None,
) -> Episode:
    """An episode of the agent, told to `watch`. Its calls go through the journal as in a run, so that the same options
    play the same episode. What is no question gets fixed words. Raises PolicyError and RetrieverError.
    """
    if words := reply_to(question):
        action = agent.environment.profile.grammar.answer.name
        return Episode(State(question, (Step(action, words, words),)), "answer", Usage())
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
        sys.stdout.write(f"{turn.step.action:<9} {' '.join(_TAG.sub(' ', turn.step.text).split())}\n")
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


def conclude(episode: Episode, grounds: Grounds) -> None:
    """Writes the answer, a warning where nothing supports it, and its sources; or why there is none."""
    if episode.prediction is None:
        sys.stdout.write(f"\nno answer: {FAILURES.get(episode.finish, episode.finish)}: {episode.refused}\n")
        return
    sys.stdout.write(f"\n{headed(episode.prediction, grounds.lacks)}\n")
    if grounds.lacks:
        sys.stdout.write(f"warning: {LACKING[grounds.lacks]}\n")
    for number, passage in enumerate(grounds.sources, 1):
        place = " ".join([passage.title or passage.id, url_of(passage.id) or ""])
        sys.stdout.write(f"source {number}: {place.rstrip()}\n")
