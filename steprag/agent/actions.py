"""The kinds of steps: what each looks like, and what it does to the stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from steprag.agent.tools import ToolSpec

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
    """

    name: str
    lead: str
    effect: Effect = "push"
    thought: bool = True
    content_chars: int = 400
    pinned: bool = False
    tools: tuple[ToolSpec, ...] = ()

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
        return f"<{self.name}>"

    @property
    def closing(self) -> str:
        """The tag after the content, such as `</query>`."""
        return f"</{self.name}>"

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
