"""The kinds of steps, and the stack: which steps of a trace the prompt shows.

The trace only grows. The stack is a pure function of it, so journals, seeds, trees and replays need nothing but steps.
Rules after TC-RAG's memory stack (arXiv 2408.09199), whose summary has no effect there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from steprag.agent.tools import ToolSpec
from steprag.types import Step

Effect = Literal["push", "call", "pop", "fold", "end"]
"""What a step does to the stack, which is what the prompt shows of the trace.

push: it is kept. call: its content is searched, and it is kept with what was found. pop: it takes the last call or fold
off the stack, with all above, and stays as a note. fold: it stands for all above the last fold. end: it ends the
episode.
"""


@dataclass(frozen=True)
class Action:
    """One kind of step: `[thought] lead <tag> content </tag>`. `lead` may be empty.

    `thought`: constrained output may have free words before the lead (the parser's always may). `content_chars`
    bounds the content in constrained output, in characters; the parser sets no bound. `pinned`: no pop and no fold
    takes it off the stack. `tools`: what its content may call, where there are named tools (`steprag.agent.tools`).
    `tags`: the opening and the closing one, where they are not made of the name. `lines`: constrained output may have
    several lines of content.
    """

    name: str
    lead: str
    effect: Effect = "push"
    thought: bool = True
    content_chars: int = 400
    pinned: bool = False
    tools: tuple[ToolSpec, ...] = ()
    tags: tuple[str, str] | None = None
    lines: bool = False

    @property
    def retrieves(self) -> bool:
        """Whether its content is a query to the retriever."""
        return self.effect == "call"

    @property
    def terminal(self) -> bool:
        """Whether it ends the episode."""
        return self.effect == "end"

    @property
    def keeps(self) -> bool:
        """Whether its content holds facts for the rest of the episode: it is pushed or folds, and is no plan."""
        return self.effect in ("push", "fold") and not self.pinned

    @property
    def opening(self) -> str:
        """The tag before the content, such as `<query>`."""
        return self.tags[0] if self.tags else f"<{self.name}>"

    @property
    def closing(self) -> str:
        """The tag after the content, such as `</query>`."""
        return self.tags[1] if self.tags else f"</{self.name}>"

    @property
    def head(self) -> str:
        """What stands before the content."""
        return f"{self.lead} {self.opening}" if self.lead else self.opening

    def tail(self, content: str) -> str:
        """What follows the head where a step says `content`, in one line."""
        return f" {' '.join(content.split())} {self.closing}"


class Markup(Protocol):
    """A grammar, as far as the stack goes."""

    @property
    def shrinks(self) -> bool:
        """Whether an action takes steps off the stack."""
        ...

    def action(self, name: str) -> Action:
        """The action of that name. Raises KeyError where there is none."""
        ...


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
