"""The one agent: what a policy sees in a state, and what its completion makes of it.

Search, pair export, training and inference all go through `Environment`, so no model is trained on a prompt that it
will not see. The environment holds no state of its own: states are values, and any number of episodes share one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steprag.agent.grammar import START
from steprag.agent.inert import screened_apart
from steprag.agent.profiles import PromptProfile
from steprag.agent.retriever import Retriever
from steprag.errors import StepFormatError
from steprag.policy.gate import chars_of
from steprag.types import Completion, Message, Passage, State, Step


@dataclass(frozen=True)
class Observation:
    """What a policy sees: the prompt, and the actions that its completion may take."""

    messages: tuple[Message, ...]
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """The agent's world: a prompt profile (with its grammar), a retriever, `top_k` passages a query, `depth` steps at
    most. `chars`: where a prompt has more characters, only a step that folds or ends may follow. `screen`: passages are
    taken without the sentences that speak to a model (`steprag.agent.inert`).
    """

    profile: PromptProfile
    retriever: Retriever
    top_k: int
    depth: int
    chars: int | None = None
    screen: bool = False

    def start(self, question: str) -> State:
        """The state of a question before its first step; `opened` adds what the question itself finds."""
        return State(question)

    async def opened(self, state: State) -> State:
        """`state`; before its first step with what the question itself finds, where the profile searches first.

        Raises RetrieverError.
        """
        if not self.profile.words.search_first or state.steps or state.passages:
            return state
        return replace(state, passages=await self._found(state.question))

    def observe(self, state: State) -> Observation:
        """The prompt for a state that is not at its end."""
        allowed = self.allowed(state)
        return Observation(self.profile.render(state, allowed), allowed)

    def allowed(self, state: State) -> tuple[str, ...]:
        """The actions that may follow `state`, which is not at its end. Never empty.

        If its prompt is too long (`chars`), only actions that fold or end; if none of these may follow, all.
        """
        grammar = self.profile.grammar
        names = grammar.allowed(state.steps, self.depth)
        if self.chars is None or chars_of(self.profile.render(state, names)) <= self.chars:
            return names
        following = grammar.transitions[state.steps[-1].action if state.steps else START]
        shorter = tuple(name for name in names if grammar.action(name).effect in ("fold", "end"))
        return shorter or tuple(name for name in following if grammar.action(name).terminal) or names

    def announced(self, state: State) -> tuple[Message, ...]:
        """The prompt for a state, with the words that announce an answer as the assistant's own: only its content and
        closing tag are missing.
        """
        messages, head = self.observe(state).messages, self.profile.grammar.answer.head
        if messages[-1]["role"] == "assistant":
            return (*messages[:-1], Message(role="assistant", content=messages[-1]["content"] + head))
        return (*messages, Message(role="assistant", content=head))

    def parse(self, state: State, completion: Completion, allowed: tuple[str, ...] | None = None) -> Step:
        """The step that `completion` is in `state`, of which `observe` gave `allowed`. Raises StepFormatError."""
        return self.profile.grammar.parse(completion, allowed or self.allowed(state))

    async def apply(self, state: State, step: Step) -> State:
        """The state after `step`, with passages where it is a query. Raises RetrieverError."""
        passages: tuple[Passage, ...] = ()
        if self.profile.grammar.action(step.action).retrieves:
            passages = await self._found(step.content)
        return State(state.question, (*state.steps, step), passages, (*state.earlier, state.passages))

    async def _found(self, query: str) -> tuple[Passage, ...]:
        passages = await self.retriever.search(query, self.top_k)
        return await screened_apart(passages) if self.screen else passages

    def searched(self, state: State) -> bool:
        """Whether a search led to `state`: its last step's, or the question's own where the profile searches first.

        It may have found nothing: then `state.passages` is as empty as after any other step.
        """
        if not state.steps:
            return self.profile.words.search_first
        return self.profile.grammar.action(state.steps[-1].action).retrieves

    def ended(self, state: State) -> bool:
        """Whether the last step ends the episode (an answer, in the base grammar). The depth is not looked at."""
        return bool(state.steps) and self.profile.grammar.action(state.steps[-1].action).terminal


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
