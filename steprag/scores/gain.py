"""Compares beliefs in the golden answer of one question: in nats, with a floor.

Search, rewards of finished trees and reinforcement learning call these, so a gain means one thing everywhere.
"""

from __future__ import annotations

import math

from steprag.tree import Belief

FLOOR = -12.0
"""The floor of a belief, in nats: differences below it (a probability of 6 in a million) are noise."""
CLEAR = 2.0
"""Nats by which a step must raise the belief to have gained: seven times as likely."""
CONVINCED = 0.2
"""Probability from which a right answer counts as supported by the state, not as luck."""


def floored(belief: Belief) -> float:
    """The belief in nats, from `FLOOR` to 0."""
    return max(belief.logp, FLOOR)


def gains(after: Belief, before: Belief) -> bool:
    """Whether the belief rose by `CLEAR` nats or more."""
    return floored(after) - floored(before) >= CLEAR


def probability(belief: Belief) -> float:
    """The probability of the golden answer, 0 to 1."""
    return math.exp(belief.logp)
