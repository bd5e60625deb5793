"""A label of the user's own: `module:function`, of a tree and its grammar."""

from __future__ import annotations

import math

from preference.labels.estimates import Estimate, Rewards
from steprag.agent.facts import Facts
from steprag.agent.rewards import takes
from steprag.errors import ConfigError, counted, quoted
from steprag.extras import function_at


def own(place: str, facts: Facts) -> Rewards:
    """What the function says. Its code runs here.

    Raises ConfigError where it cannot be imported or takes an episode, and where it returns anything but an Estimate or
    None for every node by id.
    """
    function = function_at(place, "label.name")
    if not takes(function, 2):
        raise ConfigError(f"label.name: {place} does not take a tree and its grammar; give a function of these two "
                          "arguments (a function of an episode is for --grpo.rewards)")  # fmt: skip
    made, nodes = function(facts.tree, facts.grammar), len(facts.tree.nodes)
    if not isinstance(made, list) or len(made) != nodes:
        what = counted(len(made), "value") if isinstance(made, list) else f"a {type(made).__name__}"
        raise ConfigError(f"label.name: {place} returned {what} for a tree of {nodes} nodes; return a list with a "
                          "steprag.Estimate or None for each")  # fmt: skip
    for number, one in enumerate(made):
        if not (one is None or (isinstance(one, Estimate) and math.isfinite(one.value))):
            raise ConfigError(f"label.name: {place} says {quoted(one)} of node {number}; return a steprag.Estimate of a"
                              " finite value, or None")  # fmt: skip
    return made
