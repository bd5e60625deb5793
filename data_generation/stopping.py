"""When a search of one question ends."""

from __future__ import annotations

import math

from data_generation.config import SearchConfig, TreeLimits
from data_generation.growth import SearchTree


def verdict(tree: SearchTree, search: SearchConfig, limits: TreeLimits) -> str | None:
    """Why the tree ends here, or None.

    closed: nothing is left to explore. journal: nothing that a replay's journal has. limit: it used up its calls or
    tokens. enough: it has `contrast` right and wrong answers. hopeless: no right answer, and no step that gained, in
    `hopeless` iterations. rollouts: it had all its iterations.
    """
    if tree.root.closed:
        return "journal" if tree.short else "closed"
    used = tree.usage
    tokens = used.prompt_tokens + used.completion_tokens
    if used.calls >= (limits.calls or math.inf) or tokens >= (limits.tokens or math.inf):
        return "limit"
    if search.contrast is not None and min(tree.right, tree.wrong) >= search.contrast:
        return "enough"
    lost = tree.right == 0 and not tree.gained
    if search.hopeless is not None and lost and tree.iterations >= search.hopeless:
        return "hopeless"
    return None if left(tree, search) > 0 else "rollouts"


def left(tree: SearchTree, search: SearchConfig) -> int:
    """Iterations left: of `rollouts`, and of `extra` where answers differ, since there the next teaches most."""
    mixed = tree.right > 0 and tree.wrong > 0
    return search.rollouts + (search.extra if mixed else 0) - tree.iterations
