"""An episode that another program plays step by step: the one agent's rollout, whose policy waits for its words.

A step's reward is what it adds to the score of the episode so far (`grpo.rewards`); together they are what stage grpo
gives for the same completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from indexes import open_retriever
from steprag.agent.environment import Environment, Observation
from steprag.agent.open import make_environment
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import Asked, Moment, Taken, episode_of, rollout
from steprag.config.load import load_config
from steprag.errors import ConfigError, quoted
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing
from steprag.types import Completion, Episode, Message, Passage, Question, Sample, Usage
from training.config import TrainConfig
from training.play.judging import judged_terms
from training.play.rewards import Played, check_names, score


@dataclass(frozen=True)
class StepWorld:
    """What episodes are played in: questions by id, the agent's environment, rewards and their weights."""

    questions: Mapping[str, Question]
    environment: Environment
    rewards: Mapping[str, float]


def open_step_world(questions: str, index: str, recipe: str | None = None) -> StepWorld:
    """The world of a question file, an index and a recipe of `steprag train` (prompt, episode, grpo.rewards).

    Raises ConfigError and DataError, also for rewards that only stage grpo can give.
    """
    config = load_config(TrainConfig, recipe)
    asked, weights = read_questions(existing(questions, "question file")), config.grpo.rewards
    check_names(weights)
    if apart := judged_terms(weights, asked) | ({"length"} & weights.keys()):
        raise ConfigError(f"grpo.rewards: {', '.join(sorted(apart))} needs a judge or tokens; only stage grpo has them")
    profile = load_profile(config.prompt.profile, config.prompt.examples)
    environment = make_environment(profile, open_retriever(index, config.retriever), config.episode)
    return StepWorld({question.id: question for question in asked}, environment, weights)


@dataclass
class StepwiseEpisode:
    """One episode. `seen`: what the next completion is asked for, None once it is over; `found`: the passages of each
    search; `total`: the rewards so far. Raises ConfigError for a question that the world lacks.
    """

    world: StepWorld
    name: str
    seen: Observation | None = None
    found: list[tuple[Passage, ...]] = field(default_factory=list)
    episode: Episode | None = None
    total: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in self.world.questions:
            raise ConfigError(f"no question has the id {quoted(self.name)}; the question file names them")
        self.question = self.world.questions[self.name]
        self._words, self._asked = asyncio.Queue[str](), asyncio.Event()

    async def begin(self) -> StepwiseEpisode:
        """Plays up to the first completion. Raises RetrieverError, here and in `step`."""
        state = self.world.environment.start(self.question.question)
        self._play = asyncio.create_task(episode_of(rollout(self.world.environment, self, state, seed=0), self._watch))
        await self._turn()
        return self

    async def step(self, text: str) -> float:
        """Takes a completion; returns its reward. One that breaks the grammar ends the episode."""
        if self.seen is None:
            raise ConfigError("the episode is over; begin another one")
        self._words.put_nowait(text)
        await self._turn()
        episode = self.episode or Episode(self._state, "open", Usage(), tuple(self.found))
        played = Played(self.question, episode, self.world.environment.profile.grammar, 0)
        before, self.total = self.total, score([played], self.world.rewards).totals[0]
        return self.total - before

    def close(self) -> None:
        """Ends the play."""
        self._play.cancel()

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As the rollout's policy: what `step` is given."""
        del messages, allowed, n, seed
        self._asked.set()
        return Sample((Completion(await self._words.get(), "stop"),), Usage(1))

    async def _turn(self) -> None:
        self._asked.clear()
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({asked, self._play}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if self._play.done():
            self.seen, self.episode = None, self._play.result()

    def _watch(self, moment: Moment) -> None:
        if isinstance(moment, Asked):
            self.seen, self._state = moment.observation, moment.state
        elif isinstance(moment, Taken) and moment.searched:
            self.found.append(moment.state.passages)
