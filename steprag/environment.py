"""The one agent: what a policy sees in a state, and what its completion makes of it.

Search, pair export, training and inference all go through `Environment`, so no model is trained on a prompt that it
will not see. The environment holds no state of its own: states are values, and any number of episodes share one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from steprag.errors import StepFormatError
from steprag.policy import Policy
from steprag.prompts import PromptProfile
from steprag.retriever import Retriever
from steprag.types import Completion, Episode, Message, Passage, State, Step, Usage


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

    def ended(self, state: State) -> bool:
        return bool(state.steps) and self.profile.grammar.action(state.steps[-1].action).terminal


async def rollout(
    environment: Environment,
    policy: Policy,
    state: State,
    *,
    seed: int,
    after_step: Callable[[State], None] | None = None,
) -> Episode:
    """Plays from `state` to the end, one completion a step; the k-th step samples with `seed + k`.

    `after_step` is told each new state. A completion that breaks the grammar ends the episode with that reason. Raises
    PolicyError and RetrieverError.
    """
    usage = Usage()
    state = await environment.opened(state)
    retrieved = [state.passages] if state.passages else []
    if retrieved and after_step:
        after_step(state)
    while not environment.ended(state):
        observation = environment.observe(state)
        sample = await policy.sample(observation.messages, observation.allowed, n=1, seed=seed + len(state.steps))
        usage += sample.usage
        completion = sample.completions[0]
        try:
            step = environment.parse(state, completion)
        except StepFormatError as error:
            return Episode(state, error.reason, usage, tuple(retrieved), completion.text)
        state = await environment.apply(state, step)
        if state.passages:
            retrieved.append(state.passages)
        if after_step:
            after_step(state)
    return Episode(state, "answer", usage, tuple(retrieved))
