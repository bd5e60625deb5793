"""Best-of-N: several episodes of one question, of which a vote or the step critic chooses one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from inference.config import InferConfig
from steprag.agent.critic import CriticFiles, find_critic
from steprag.agent.environment import Environment
from steprag.agent.profiles import PromptProfile
from steprag.agent.rollout import Choose, episode_of, rollout
from steprag.errors import ConfigError
from steprag.policy.protocols import Policy
from steprag.policy.traces import traced
from steprag.scores.metrics import normalise
from steprag.types import Episode, Message

Scorer = Callable[[tuple[Message, ...], str], float]
"""A critic: how good a completion is after a prompt; greater is better."""
SEEDS_APART = 1_000_000
"""Between the seeds of two episodes, since the k-th step of one samples with its seed + k."""


def check_sampling(config: InferConfig) -> None:
    """Raises ConfigError where N episodes would be one episode N times."""
    if config.best_of > 1 and config.policy.temperature == 0:
        raise ConfigError(
            f"best_of is {config.best_of} and policy.temperature is 0: every episode would be the same; "
            "give --policy.temperature 0.8"
        )


def critic_of(config: InferConfig, profile: PromptProfile) -> CriticFiles | None:
    """The critic that the configuration names, None where it names none. Raises ConfigError where it cannot choose."""
    if config.critic is None:
        if config.candidates > 1:
            raise ConfigError("candidates: nothing chooses among them; give a step critic with --critic")
        return None
    if config.candidates == config.best_of == 1:
        raise ConfigError("critic: one completion of one episode is no choice; give --candidates 4 or --best_of 4")
    if config.candidates > 1 and config.policy.temperature == 0:
        raise ConfigError("candidates: at temperature 0 all are the same; give --policy.temperature 0.8")
    return find_critic(config.critic, profile, unchecked=config.prompt.unchecked)


async def play(
    environment: Environment,
    policy: Policy,
    question: str,
    *,
    seed: int,
    times: int,
    candidates: int = 1,
    choose: Choose | None = None,
) -> list[Episode]:
    """`times` episodes, the first with `seed`: one after the other, since other questions fill the policy meanwhile.

    `candidates` and `choose` as in `rollout`. Raises PolicyError and RetrieverError.
    """
    begin = partial(rollout, environment, policy, environment.start(question), candidates=candidates, choose=choose)
    seeds = [seed + SEEDS_APART * number for number in range(times)]
    return [await traced(episode_of(begin(seed=each)), "agent", "episode", question) for each in seeds]


def by_vote(episodes: Sequence[Episode]) -> int:
    """The place of the first episode with the most frequent normalised answer; of equals, the one given first.

    0 where no episode has an answer.
    """
    said = [None if one.prediction is None else normalise(one.prediction) for one in episodes]
    votes = Counter(answer for answer in said if answer is not None)
    return said.index(max(votes, key=votes.__getitem__)) if votes else 0


def by_critic(episodes: Sequence[Episode], environment: Environment, score: Scorer) -> int:
    """The place of the episode whose answer step scores best after the prompt that it was written to; of equals, the
    first. 0 where no episode has an answer.
    """

    def worth(place: int) -> float:
        state = episodes[place].state
        return score(environment.observe(state.before).messages, state.steps[-1].text)

    return max((place for place, one in enumerate(episodes) if one.prediction is not None), key=worth, default=0)
