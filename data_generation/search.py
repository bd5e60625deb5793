"""Monte Carlo tree search for one question, in waves.

A wave (`grow` shows the loop) selects up to `search.wave` leaves by its rule (UCT), counting those in flight, lets
each flight (`data_generation.flights`) explore its leaf at the same time as the others, and lands them in the order of
selection.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from data_generation.config import SearchConfig, TreeLimits
from data_generation.drill import at_hand
from data_generation.flights import Flight, Searcher, fly
from data_generation.growth import Growth, finished, mark_pending, select
from steprag.tree import Tree


async def grow(growth: Growth, searcher: Searcher) -> Tree:
    """Grows the tree in place and returns it finished; its status says why it ended (`verdict`).

    Raises RequestError; `growth` keeps what was sampled until then.
    """
    search, limits = searcher.config.search, searcher.config.tree
    while not (ended := verdict(growth, search, limits)):
        await run_wave(growth, searcher)
    if search.drill is not None:
        await drill(growth, searcher, search.drill)
    return finished(growth, ended)


async def drill(growth: Growth, searcher: Searcher, samples: int) -> None:
    """Samples the states that `at_hand` names until each has that many, and what comes of it is not played on."""
    config, grammar = searcher.config, searcher.environment.profile.grammar
    search = config.search.model_copy(update={"children": samples, "siblings": None, "play": False})
    drilling = replace(searcher, config=config.model_copy(update={"search": search}))
    while not limited(growth, config.tree):
        states = list(islice(at_hand(growth, grammar, samples), search.wave))
        if not states or growth.short:
            return
        for branch in states:
            branch.full = False
            mark_pending(branch, 1)
        await fly([Flight(branch) for branch in states], growth, drilling)


def verdict(growth: Growth, search: SearchConfig, limits: TreeLimits) -> str | None:
    """Why the tree ends here, or None.

    closed: nothing is left to explore. journal: nothing that a replay's journal has. limit: it used up its calls or
    tokens. enough: it has `contrast` right and wrong answers. hopeless: no right answer, and no step that gained, in
    `hopeless` iterations. rollouts: it had its iterations, and `extra` ones more if its answers differ, since there the
    next one teaches most.
    """
    mixed = growth.right > 0 and growth.wrong > 0
    if growth.root.closed:
        return "journal" if growth.short else "closed"
    if limited(growth, limits):
        return "limit"
    if search.contrast is not None and min(growth.right, growth.wrong) >= search.contrast:
        return "enough"
    lost = growth.right == 0 and not growth.gained
    if search.hopeless is not None and lost and growth.iterations >= search.hopeless:
        return "hopeless"
    return "rollouts" if growth.iterations >= search.rollouts + (search.extra if mixed else 0) else None


def limited(growth: Growth, limits: TreeLimits) -> bool:
    """Whether the tree has used up its calls or tokens."""
    used = growth.usage
    if limits.calls is not None and used.calls >= limits.calls:
        return True
    return limits.tokens is not None and used.prompt_tokens + used.completion_tokens >= limits.tokens


async def run_wave(growth: Growth, searcher: Searcher) -> None:
    """Selects leaves, explores them at the same time, and lands them in order."""
    search = searcher.config.search
    jobs: list[Flight] = []
    for _ in range(search.wave):
        leaf = select(growth, searcher.rule)
        if leaf is None:
            break
        leaf.busy = True
        mark_pending(leaf, 1)
        jobs.append(Flight(leaf))
    await fly(jobs, growth, searcher)
