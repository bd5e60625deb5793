"""What the stages tell the viewer of their own files: functions by name, loaded when they are asked for.

The core imports no stage. As a command names the module that runs it (`steprag.cli`), a page names the function of a
stage that knows its rules; so what the page shows of a reward or a score is computed where pairs and tables are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

REWARDS = "preference.view_rewards:view_rewards"
"""(tree, line, grammar, options) -> rewards of every node, and what became of every two siblings."""
RULES = "preference.view_rewards:rule_names"
"""() -> the reward rules and their options."""
SCORE = "inference.told:told_score"
"""(prediction) -> its scores, as `steprag evaluate` computes them."""
COMPARISON = "inference.told:told_comparison"
"""(folders, names) -> the rows of `steprag compare`."""


def behind(door: str) -> Callable[..., Any]:
    """The function that a door names."""
    module, _, name = door.partition(":")
    return getattr(importlib.import_module(module), name)
