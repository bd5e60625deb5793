"""The stack: which steps of a trace the prompt shows.

The trace only grows. The stack is a pure function of it, so journals, seeds, trees and replays need nothing but steps.
Rules after TC-RAG's memory stack (arXiv 2408.09199), whose summary has no effect there.
"""

from __future__ import annotations

from collections.abc import Iterator

from steprag.agent.actions import Effect, Markup
from steprag.types import Step


def live(steps: tuple[Step, ...], grammar: Markup) -> tuple[int, ...]:
    """Places in the trace of the steps that are on the stack, the bottom first. The last step is always on top."""
    if not grammar.shrinks:
        return tuple(range(len(steps)))
    stacks = [stack for stack, _ in _walk(steps, grammar)]
    return tuple(stacks[-1]) if stacks else ()


def popped(steps: tuple[Step, ...], grammar: Markup) -> frozenset[int]:
    """Places in the trace of the steps that a later pop took off the stack; steps that a fold replaces do not count.

    These steps led astray even where the episode ended well: training shows them to a model and does not learn them.
    """
    if not grammar.shrinks:
        return frozenset()
    walked = zip(steps, _walk(steps, grammar), strict=True)
    pops = (gone for step, (_, gone) in walked if grammar.action(step.action).effect == "pop")
    return frozenset(place for gone in pops for place in gone)


def _walk(steps: tuple[Step, ...], grammar: Markup) -> Iterator[tuple[list[int], list[int]]]:
    """After each step: the places on the stack, and those that it took off."""
    stack: list[int] = []
    for place, step in enumerate(steps):
        floor = _floor(_effects(stack, steps, grammar), grammar.action(step.action).effect)
        gone = [at for at in stack[floor:] if not grammar.action(steps[at].action).pinned]
        stack = [*(at for at in stack if at not in gone), place]
        yield stack, gone


def idle(steps: tuple[Step, ...], grammar: Markup) -> frozenset[Effect]:
    """The effects that would change nothing now: a pop without a call or fold on the stack, a fold without a call above
    the last fold.
    """
    effects = _effects(live(steps, grammar), steps, grammar)
    idle: set[Effect] = set()
    if not {"call", "fold"} & set(effects):
        idle.add("pop")
    if "call" not in effects[_above(effects, "fold") :]:
        idle.add("fold")
    return frozenset(idle)


def _effects(stack: list[int] | tuple[int, ...], steps: tuple[Step, ...], grammar: Markup) -> list[Effect]:
    return [grammar.action(steps[place].action).effect for place in stack]


def _floor(effects: list[Effect], effect: Effect) -> int:
    """The height from which on a step of that effect clears the stack."""
    if effect == "pop":
        return max((height for height, one in enumerate(effects) if one in ("call", "fold")), default=len(effects))
    return _above(effects, "fold") if effect == "fold" else len(effects)


def _above(effects: list[Effect], effect: Effect) -> int:
    """The height above the highest step of that effect; 0 without one."""
    return max((height + 1 for height, one in enumerate(effects) if one == effect), default=0)
