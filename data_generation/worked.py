"""`steprag trees worked`: worked episodes, written by hand or from gold facts, to supervised steps.

The episodes are replayed in the environment, so every prompt is the one that inference renders. Each query is really
searched; what the episode says about gold passages decides what the evidence step is shown among the passages found.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from indexes import open_retriever
from steprag.agent.environment import Environment
from steprag.agent.open import make_environment
from steprag.agent.profiles import load_profile
from steprag.config.load import StageConfig, add_options, config_from, parse_arguments
from steprag.config.recipes import NEWEST, PASSAGES, index_of, out_of
from steprag.config.sections import EpisodeConfig, Positive, PromptConfig
from steprag.console.progress import say, say_next
from steprag.errors import DataError, StepFormatError
from steprag.records.inputs import read_passages
from steprag.records.jsonl import existing, file_hash, read_records, write_records
from steprag.records.training_rows import Trajectory
from steprag.runs.run import add_overwrite_option, open_run
from steprag.types import Completion, Message, Passage, State

SOURCE = "worked"


class WorkedConfig(StageConfig):
    """`steprag trees worked`."""

    prompt: PromptConfig = Field(default_factory=PromptConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    limit: Positive | None = Field(default=None, description="use the first so many episodes only")
    seed: int = Field(default=0, description="decides where a gold passage goes that the search missed")


@dataclass(frozen=True)
class WorkedStep:
    """A step as it should be written. `gold`, of an evidence step: ids of the passages that it was copied from.

    A step with `learn` false is taken and shown, and gives no row: a detour that is not to be imitated.
    """

    action: str
    text: str
    gold: tuple[str, ...] = ()
    learn: bool = True


@dataclass(frozen=True)
class WorkedEpisode:
    """A question and the steps that answer it."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    steps: tuple[WorkedStep, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag trees worked", description="Worked episodes to supervised steps.")
    parser.add_argument("--episodes", required=True, metavar="FILE", help="worked episodes, JSON Lines")
    parser.add_argument("--corpus", metavar="FILE", help="the corpus that their gold passages are in [the index's own]")
    parser.add_argument("--index", metavar="DIR", help=f"index of that corpus [{NEWEST}]")
    parser.add_argument("--out", metavar="DIR", help="run folder; gets sft.train.jsonl [runs/worked-FILE]")
    add_overwrite_option(parser)
    add_options(parser, WorkedConfig)
    given = parse_arguments(parser, argv)
    config = config_from(WorkedConfig, given)
    episodes = existing(given.episodes, "file of worked episodes")
    index = index_of(given)
    corpus = existing(given.corpus or Path(index) / PASSAGES, "corpus")
    asyncio.run(work(config, episodes, corpus, index, out_of(given, "worked", episodes), given.overwrite))
    return 0


async def work(
    config: WorkedConfig, episodes: Path, corpus: Path, index: str, out: Path, overwrite: bool | None = None
) -> int:
    """Runs the stage; returns how many supervised steps it wrote."""
    profile = load_profile(config.prompt.profile, config.prompt.examples)
    async with aclosing(open_retriever(index)) as retriever:
        environment = make_environment(profile, retriever, config.episode)
        identity = {
            "episodes": file_hash(episodes),
            "corpus": file_hash(corpus),
            "limit": config.limit,
            "index": environment.retriever.fingerprint,
            "prompt": environment.profile.identity,
            **config.episode.identity,
            "seed": config.seed,
        }
        with open_run(out, "worked", identity=identity, config=config.model_dump(), overwrite=overwrite) as run:
            rows = await replay_all(episodes, corpus, environment, config.seed, config.limit)
            write_records(run.path / "sft.train.jsonl", rows)
            run.set(counts={"steps": len(rows)}, prompt=environment.profile.identity)
        say(f"worked: {len(rows)} supervised steps in {run.path}")
        say_next("train", run.path, "--stage", "sft")
    return len(rows)


async def replay_all(
    file: Path, corpus: Path, environment: Environment, seed: int, limit: int | None = None
) -> list[Trajectory]:
    """The supervised steps of a file's first `limit` episodes. Raises DataError where the grammar refuses a step."""
    episodes = list(islice(read_records(file, WorkedEpisode), limit))
    golds = {gold for episode in episodes for step in episode.steps for gold in step.gold}
    passages = {passage.id: passage for passage in read_passages(corpus) if passage.id in golds}
    rows: list[Trajectory] = []
    for number, episode in enumerate(episodes, 1):
        try:
            rows += await replay(episode, passages, environment, random.Random(f"{seed}/{episode.id}"))
        except StepFormatError as error:
            raise DataError(file, f"episode {episode.id}: {error}", line=number) from None
        except KeyError as error:
            raise DataError(file, f"episode {episode.id}: no passage {error} in {corpus}", line=number) from None
    return rows


async def replay(
    episode: WorkedEpisode, passages: dict[str, Passage], environment: Environment, rng: random.Random
) -> list[Trajectory]:
    """One row for each step to learn: the prompt of the state, and the step as written."""
    state, rows = await environment.opened(environment.start(episode.question)), []
    golds = {gold for step in episode.steps for gold in step.gold}
    for written in episode.steps:
        if state.passages:
            state = replace(state, passages=_shown(state, written, golds, passages, rng))
        prompt = environment.observe(state).messages
        step = environment.parse(state, Completion(written.text, "stop"))
        completion = (Message(role="assistant", content=written.text),)
        if written.learn:
            rows.append(Trajectory(prompt, completion, episode.id, step.action, len(state.steps) + 1, SOURCE))
        state = await environment.apply(state, step)
    return rows


def _shown(
    state: State, step: WorkedStep, golds: set[str], passages: dict[str, Passage], rng: random.Random
) -> tuple[Passage, ...]:
    """What the evidence step sees: the passages found, with its gold ones among them, and no other gold passage.

    A gold passage that the search missed takes a random place, the last other one goes; a step that finds nothing
    sees none that holds the answer.
    """
    shown = [passage for passage in state.passages if passage.id not in golds or passage.id in step.gold]
    for gold in step.gold:
        if all(passage.id != gold for passage in shown):
            others = [passage for passage in shown if passage.id not in step.gold]
            if others and len(shown) == len(state.passages):
                shown.remove(others[-1])
            shown.insert(rng.randint(0, len(shown)), passages[gold])
    return tuple(shown)
