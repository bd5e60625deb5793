"""A policy's belief at a state: the probability that it gives the right answer there.

No rollout is played. The prompt continues with the words that announce an answer, and the golden answer with its
closing tag is scored (`Scorer`). A step's gain is the rise of this belief, as in information-gain rewards (arXiv
2510.14967), here in logarithms, which also separate unlikely answers. Search, rewards of finished trees
and reinforcement learning compare beliefs by the functions here, so a gain means one thing everywhere.
"""

from __future__ import annotations

import asyncio
import math

from steprag.agent.environment import Environment
from steprag.errors import ConfigError, PolicyError, PolicyUnavailable
from steprag.policy.protocols import Scorer
from steprag.policy.scoring import SCORING
from steprag.tree import Belief
from steprag.types import Message, Question, State, Usage

FLOOR = -12.0
"""The floor of a belief, in nats: differences below it (a probability of 6 in a million) are noise."""
CLEAR = 2.0
"""Nats by which a step must raise the belief to have gained: seven times as likely."""
CONVINCED = 0.2
"""Probability from which a right answer counts as supported by the state, not as luck."""
MOST_ANSWERS = 3
"""Golden answers that are scored at a state, the first ones: some data sets list dozens."""


async def believe(environment: Environment, scorer: Scorer, question: Question, state: State) -> Belief:
    """The policy's belief in the likeliest golden answer at `state`, which is not at its end. Raises PolicyError."""
    prompt, action = environment.announced(state), environment.profile.grammar.answer
    tails: dict[str, str] = {}  # those that are written alike are asked once
    for answer in question.golden_answers:
        tails.setdefault(action.tail(answer), answer)
    golden = list(tails.items())[:MOST_ANSWERS]
    scored = await asyncio.gather(*(scorer.score(prompt, tail) for tail, _ in golden))
    usage = sum((sample.usage for sample in scored), Usage())
    beliefs = []
    for (_, answer), sample in zip(golden, scored, strict=True):
        logprobs = sample.completions[0].logprobs or ()
        beliefs.append(Belief(answer, round(sum(logprobs), 4), len(logprobs), usage))
    return max(beliefs, key=lambda belief: belief.logp)


async def check_scoring(scorer: Scorer) -> None:
    """Scores a few words, so that an endpoint without scores is refused before any work. Raises ConfigError."""
    prompt = (Message(role="user", content="Which is the capital of Peru?"), Message(role="assistant", content="It is"))
    try:
        await scorer.score(prompt, " Lima.")
    except (PolicyError, PolicyUnavailable) as error:
        raise ConfigError(
            f"this endpoint does not tell log-probabilities of a given text ({error}); serve the model with "
            f"{', '.join(SCORING)} (steprag policy serve), or label without a model (label.name=cover)"
        ) from None


def floored(belief: Belief) -> float:
    """The belief in nats, from `FLOOR` to 0."""
    return max(belief.logp, FLOOR)


def gains(after: Belief, before: Belief) -> bool:
    """Whether the belief rose by `CLEAR` nats or more."""
    return floored(after) - floored(before) >= CLEAR


def probability(belief: Belief) -> float:
    """The probability of the golden answer, 0 to 1."""
    return math.exp(belief.logp)
