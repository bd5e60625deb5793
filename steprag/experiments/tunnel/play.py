"""Episodes in the tunnel, by the agent that plays everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.experiments.tunnel.policy import BatchedPolicy
from steprag.experiments.tunnel.world import DEPTH, SHOWN, FactWorld
from steprag.types import Episode, Question, State

AT_ONCE = 512


def environment_of(world: FactWorld) -> Environment:
    """The agent's environment over a world."""
    return Environment(load_profile("tunnel"), world, SHOWN, DEPTH)


async def play(
    environment: Environment, policy: BatchedPolicy, states: Sequence[State], seeds: Sequence[int]
) -> list[Episode]:
    """One episode from each state."""
    played: list[Episode] = []
    for first in range(0, len(states), AT_ONCE):
        some = zip(states[first : first + AT_ONCE], seeds[first : first + AT_ONCE], strict=True)
        played += await asyncio.gather(
            *(episode_of(rollout(environment, policy, state, seed=seed)) for state, seed in some)
        )
    return played


def answers(world: FactWorld, policy: BatchedPolicy, questions: Sequence[Question], seed: int = 0) -> list[Episode]:
    """An episode a question."""
    environment = environment_of(world)
    states = [environment.start(question.question) for question in questions]
    return asyncio.run(play(environment, policy, states, [seed + 100 * i for i in range(len(questions))]))
