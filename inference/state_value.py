"""TC-RAG's state value: an answer is taken only where the policy is certain enough of it, else the episode continues.

After TC-RAG (arXiv 2408.09199), which sums the entropies of an answer's tokens. Here the value is the mean of what the
answer's tokens cost (minus their log-probabilities), so that it does not grow with the answer's length. Stop-RAG
(arXiv 2510.14337) found that such values say little of whether an answer is right: measure before you rely on one.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.config import InferConfig
from steprag.agent.grammar import Grammar
from steprag.agent.open import OpenAgent
from steprag.batch.journal import QuestionCalls
from steprag.errors import ConfigError, StepFormatError
from steprag.policy.open import Model
from steprag.policy.protocols import Policy, Scorer
from steprag.policy.requests import STEPS_FORCED
from steprag.policy.scoring import refusal
from steprag.types import Completion, Message, Sample, Step, Usage

AGAIN = 1_000_003
"""Added to the seed where a step is asked for once more."""


def check_state_value(config: InferConfig) -> None:
    """Raises ConfigError where the policy's endpoint cannot tell how certain it is, or cannot be kept from answering
    again.
    """
    if config.uncertainty is None:
        return
    if why := refusal(config.policy.engine):
        raise ConfigError(f"uncertainty: {why.partition(', or label')[0]}")
    if not config.policy.constrained:
        raise ConfigError("uncertainty: an unconstrained policy would answer again; leave policy.constrained on")
    if config.policy.engine not in STEPS_FORCED:
        raise ConfigError(
            f"uncertainty: engine {config.policy.engine} cannot be held to other steps and would answer again; use "
            f"{', '.join(STEPS_FORCED)}"
        )


@dataclass(frozen=True)
class CertainPolicy:
    """A policy whose answers are held back while they cost more than `most` nats a token and another step may follow.

    Such an answer is replaced by a step asked for with the same prompt, of which only the other actions are allowed.
    Where that one breaks the grammar, the answer stands.
    """

    policy: Policy
    scorer: Scorer
    grammar: Grammar
    most: float

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """As `Policy.sample`. Raises PolicyError."""
        whole = await self.policy.sample(messages, allowed, n=n, seed=seed)
        others = tuple(name for name in allowed if not self.grammar.action(name).terminal)
        if not others:
            return whole
        taken, usage = [], whole.usage
        for place, completion in enumerate(whole.completions):
            cost, scored = await self._cost(messages, allowed, completion)
            usage += scored
            if cost > self.most:
                again = await self.policy.sample(messages, others, n=1, seed=seed + AGAIN + place)
                usage += again.usage
                if self._parsed(again.completions[0], others):
                    completion = again.completions[0]
            taken.append(completion)
        return Sample(tuple(taken), usage)

    async def _cost(
        self, messages: tuple[Message, ...], allowed: tuple[str, ...], completion: Completion
    ) -> tuple[float, Usage]:
        """Nats a token of an answer after its thought and opening tag (0 for other steps), and the usage of the
        request.
        """
        step = self._parsed(completion, allowed)
        if step is None or not self.grammar.action(step.action).terminal:
            return 0.0, Usage()
        head, opening, tail = step.text.partition(self.grammar.action(step.action).opening)
        sample = await self.scorer.score(_written_on(messages, head + opening), tail)
        logprobs = sample.completions[0].logprobs or (0.0,)
        return -sum(logprobs) / len(logprobs), sample.usage

    def _parsed(self, completion: Completion, allowed: tuple[str, ...]) -> Step | None:
        try:
            return self.grammar.parse(completion, allowed)
        except StepFormatError:
            return None


def certain(config: InferConfig, mine: OpenAgent, calls: QuestionCalls, model: Model) -> Policy:
    """The policy of a question's agent `mine`; if `uncertainty` is set, it holds uncertain answers back, by scores of
    `model` that are journalled too.
    """
    policy = mine.policy.policy
    if config.uncertainty is None:
        return policy
    return CertainPolicy(policy, calls.scorer(model), mine.environment.profile.grammar, config.uncertainty)


def _written_on(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The prompt, with `text` as the beginning of the assistant's reply."""
    *before, last = messages
    if last["role"] == "assistant":
        return (*before, Message(role="assistant", content=last["content"] + text))
    return (*messages, Message(role="assistant", content=text))
