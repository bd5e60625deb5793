"""The one agent: what a policy sees in a state, and what its completion makes of it.

Search, pair export, training and inference all go through `Environment`, so no model is trained on a prompt that it
will not see. The environment holds no state of its own: states are values, and any number of episodes share one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from steprag.agent.profiles import PromptProfile
from steprag.agent.retriever import Retriever
from steprag.errors import StepFormatError
from steprag.policy.client import Policy
from steprag.types import Completion, Episode, Message, Passage, State, Step, Usage

Choose = Callable[[tuple[Message, ...], tuple[Step, ...]], Awaitable[int]]
"""Given a prompt and two or more different steps sampled from it, in that order: the place of the one to take."""


@dataclass(frozen=True)
class Observation:
    """What a policy sees: the prompt, and the actions that its completion may take."""

    messages: tuple[Message, ...]
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """The agent's world: a prompt profile (with its grammar), a retriever, `top_k` passages a query, `depth` steps at
    most.
    """

    profile: PromptProfile
    retriever: Retriever
    top_k: int
    depth: int

    def start(self, question: str) -> State:
        return State(question)

    async def opened(self, state: State) -> State:
        """`state`; before its first step with what the question itself finds, where the profile searches first.

        Raises RetrieverError.
        """
        if not self.profile.words.search_first or state.steps or state.passages:
            return state
        return replace(state, passages=await self.retriever.search(state.question, self.top_k))

    def observe(self, state: State) -> Observation:
        """The prompt for a state that is not at its end."""
        allowed = self.profile.grammar.allowed(state.steps, self.depth)
        return Observation(self.profile.render(state, allowed), allowed)

    def parse(self, state: State, completion: Completion) -> Step:
        """The step that `completion` is in `state`. Raises StepFormatError."""
        return self.profile.grammar.parse(completion, self.profile.grammar.allowed(state.steps, self.depth))

    async def apply(self, state: State, step: Step) -> State:
        """The state after `step`, with passages where it is a query. Raises RetrieverError."""
        passages: tuple[Passage, ...] = ()
        if self.profile.grammar.action(step.action).retrieves:
            passages = await self.retriever.search(step.content, self.top_k)
        return State(state.question, (*state.steps, step), passages, (*state.earlier, state.passages))

    def searched(self, state: State) -> bool:
        """Whether a search led to `state`: its last step's, or the question's own where the profile searches first.

        It may have found nothing: then `state.passages` is as empty as after any other step.
        """
        if not state.steps:
            return self.profile.words.search_first
        return self.profile.grammar.action(state.steps[-1].action).retrieves

    def ended(self, state: State) -> bool:
        return bool(state.steps) and self.profile.grammar.action(state.steps[-1].action).terminal


async def rollout(
    environment: Environment,
    policy: Policy,
    state: State,
    *,
    seed: int,
    after_step: Callable[[State], None] | None = None,
    candidates: int = 1,
    choose: Choose | None = None,
) -> Episode:
    """Plays from `state` to the end, one request a step; the k-th step samples with `seed + k`.

    A request asks for `candidates` completions; `choose` says which of the steps among them is taken (without it, the
    first). `after_step` is told each new state. Where every completion breaks the grammar, the episode ends with the
    first one's reason. Raises PolicyError and RetrieverError.
    """
    usage = Usage()
    state = await environment.opened(state)
    retrieved = [state.passages] if environment.searched(state) else []
    if retrieved and after_step:
        after_step(state)
    while not environment.ended(state):
        observation = environment.observe(state)
        place = seed + len(state.steps)
        sample = await policy.sample(observation.messages, observation.allowed, n=candidates, seed=place)
        usage += sample.usage
        steps, refused = parse_all(environment, state, sample.completions)
        if not steps:
            return Episode(state, refused[0].reason, usage, tuple(retrieved), sample.completions[0].text)
        step = steps[await choose(observation.messages, steps) if choose and len(steps) > 1 else 0]
        state = await environment.apply(state, step)
        if environment.searched(state):
            retrieved.append(state.passages)
        if after_step:
            after_step(state)
    return Episode(state, "answer", usage, tuple(retrieved))


def parse_all(
    environment: Environment, state: State, completions: tuple[Completion, ...]
) -> tuple[tuple[Step, ...], list[StepFormatError]]:
    """The different steps among the completions, in order, and why the others are refused."""
    steps: list[Step] = []
    refused: list[StepFormatError] = []
    for completion in completions:
        try:
            steps.append(environment.parse(state, completion))
        except StepFormatError as error:
            refused.append(error)
    return tuple(dict.fromkeys(steps)), refused
