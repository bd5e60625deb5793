"""Episodes played step by step, so that a caller may watch one, stop it, or only take its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from steprag.agent.environment import Environment, Observation, parse_all
from steprag.errors import StepFormatError
from steprag.policy.protocols import Policy, StateReading
from steprag.types import Completion, Episode, Message, State, Step, Usage

Choose = Callable[[tuple[Message, ...], tuple[Step, ...]], Awaitable[int]]
"""Given a prompt and two or more different steps sampled from it, in that order: the place of the one to take."""


@dataclass(frozen=True)
class Asked:
    """A request is about to go out. `usage`, here and below, is what the episode has cost so far."""

    state: State
    observation: Observation
    usage: Usage


@dataclass(frozen=True)
class Heard:
    """The reply: its completions, the different steps among them, and why the others were refused."""

    completions: tuple[Completion, ...]
    steps: tuple[Step, ...]
    refused: tuple[StepFormatError, ...]
    usage: Usage


@dataclass(frozen=True)
class Taken:
    """The episode is in a new state, after `step`; None where the profile searched with the question itself.

    `searched`: a search led here. It may have found nothing.
    """

    step: Step | None
    state: State
    searched: bool
    usage: Usage


Moment = Asked | Heard | Taken | Episode
"""What `rollout` yields: for each step asked, heard and (unless all was refused) taken, and the episode at the end."""


async def rollout(
    environment: Environment,
    policy: Policy,
    state: State,
    *,
    seed: int,
    candidates: int = 1,
    choose: Choose | None = None,
) -> AsyncIterator[Moment]:
    """Plays from `state` to the end, one request a step; the k-th step samples with `seed + k`.

    A request asks for `candidates` completions; `choose` says which of the steps among them is taken (without it, the
    first). Where every completion breaks the grammar, the episode ends with the first one's reason. Closing the
    iterator ends the play. Raises PolicyError and RetrieverError.
    """
    usage, retrieved, reasoning = Usage(), [], 0
    state = await environment.opened(state)
    if environment.searched(state):
        retrieved.append(state.passages)
        yield Taken(None, state, True, usage)
    while not environment.ended(state):
        observation = environment.observe(state)
        yield Asked(state, observation, usage)
        place = seed + len(state.steps)
        if isinstance(policy, StateReading):
            sample = await policy.read(state, observation.allowed)
        else:
            sample = await policy.sample(observation.messages, observation.allowed, n=candidates, seed=place)
        usage += sample.usage
        reasoning += sum(len(completion.reasoning) for completion in sample.completions)
        steps, refused = parse_all(environment, state, sample.completions)
        yield Heard(sample.completions, steps, tuple(refused), usage)
        if not steps:
            text = sample.completions[0].text
            yield Episode(state, refused[0].reason, usage, tuple(retrieved), text, reasoning)
            return
        step = steps[await choose(observation.messages, steps) if choose and len(steps) > 1 else 0]
        state = await environment.apply(state, step)
        if searched := environment.searched(state):
            retrieved.append(state.passages)
        yield Taken(step, state, searched, usage)
    yield Episode(state, "answer", usage, tuple(retrieved), reasoning=reasoning)


async def episode_of(turns: AsyncIterator[Moment], watch: Callable[[Moment], None] | None = None) -> Episode:
    """The episode at the end of `rollout(…)`; `watch` receives every turn before it."""
    async with aclosing(turns) as played:  # pyright: ignore[reportArgumentType] (a generator, which can be closed)
        async for turn in played:
            if isinstance(turn, Episode):
                return turn
            if watch:
                watch(turn)
    raise RuntimeError("a rollout ended without its episode")
