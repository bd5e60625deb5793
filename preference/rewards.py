"""Rewards of a finished tree: for every node, how good it was to go there. Nothing is written into the tree.

A label is a function of a tree's `Facts` and a `LabelConfig`. It gives an `Estimate` for every node by id, None where
it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from preference.chained import chain
from preference.config import LabelConfig
from preference.labels.cover import cover
from preference.labels.estimates import Estimate as Estimate
from preference.labels.estimates import Rewards as Rewards
from preference.labels.evidence import evidence
from preference.labels.first_answer import first_answer
from preference.labels.gain import gain
from preference.labels.gold import gold, gold_or_outcome
from preference.labels.judge import judge
from preference.labels.own import own
from preference.labels.reasonrag import reasonrag
from preference.labels.spre import spre
from steprag.agent.facts import Facts

Label = Callable[[Facts, LabelConfig], Rewards]
PARTS: dict[str, Label] = {
    "spre": spre,
    "first_answer": first_answer,
    "judge": judge,
    "gold": gold,
    "cover": cover,
    "gain": gain,
    "reasonrag": reasonrag,
}
"""Labels that `mixed` may add up."""


def rewards(facts: Facts, label: LabelConfig) -> Rewards:
    """The reward that `label` names, for every node by id."""
    facts = chain(facts, label) if facts.met is None else facts
    return own(label.name, facts) if ":" in label.name else LABELS[label.name](facts, label)


def mixed(facts: Facts, label: LabelConfig) -> Rewards:
    """The weighted mean (`label.mix`) of those rewards that a node has; `basis` names them.

    The parts are taken as independent for the standard error; a part without one adds none.
    """
    parts = {name: own(name, facts) if ":" in name else PARTS[name](facts, label) for name in sorted(label.mix)}
    return [_mean({name: part[node.id] for name, part in parts.items()}, label.mix) for node in facts.tree.nodes]


def _mean(parts: dict[str, Estimate | None], weights: dict[str, float]) -> Estimate | None:
    there = {name: part for name, part in parts.items() if part is not None}
    whole = sum(weights[name] for name in there)
    if not whole:
        return None
    value = sum(weights[name] * part.value for name, part in there.items()) / whole
    errors = [weights[name] * part.error / whole for name, part in there.items() if part.error is not None]
    return Estimate(value, math.hypot(*errors) if errors else None, "+".join(there))


LABELS: dict[str, Label] = {**PARTS, "gold": gold_or_outcome, "evidence": evidence, "mixed": mixed}
"""What `label.name` may be, beside functions of the user's own."""
