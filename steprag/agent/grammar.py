"""The grammar of steps: what may follow a step, and which step a completion is.

A `Grammar` is a value. The environment, the search, the pairs, training and inference take it as an argument, so
another markup is another value, not another agent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from steprag.agent.degenerate import degenerate
from steprag.agent.inert import CONTROL_TOKEN
from steprag.agent.notation import Notation
from steprag.agent.stack import idle
from steprag.agent.tools import BadCall, call_of
from steprag.errors import StepFormatError, quoted
from steprag.types import Completion, Step

START = ""
"""The key of `Grammar.transitions` for a state without steps."""

FAILURES = {
    "truncated": "the token limit cut the completion",
    "empty": "the completion is empty",
    "no_action": "no complete action tag",
    "several_actions": "more than one action tag",
    "no_lead": "the words that announce the action are missing",
    "trailing_text": "text after the closing tag",
    "empty_content": "nothing between the tags",
    "wrong_action": "the action is not allowed in this state",
    "control_token": "a chat template's control token in the text",
    "degenerate": "the text repeats itself, or names roles of a chat instead of words",
    "bad_call": "the call names no tool, or its arguments do not fit the tool",
}
"""Why a completion is refused: the reason as it is counted and stored, and what it means."""


@dataclass(frozen=True)
class Grammar(Notation):
    """A notation with the order of its actions: what may follow a step, and which step a completion is."""

    def allowed(self, steps: tuple[Step, ...], depth: int) -> tuple[str, ...]:
        """The actions that may follow `steps` and still leave room to end the episode within `depth` steps.

        None that would change nothing on the stack (`idle`). Never empty: where nothing fits, the shortest way to the
        end is allowed.
        """
        following = self.transitions[steps[-1].action if steps else START]
        if self.shrinks:
            barred = idle(steps, self)
            following = tuple(name for name in following if self.action(name).effect not in barred)
        room = depth - len(steps)
        fitting = tuple(name for name in following if self._steps_to_end[name] <= room)
        return fitting or (min(following, key=self._steps_to_end.__getitem__),)

    def parse(self, completion: Completion, allowed: tuple[str, ...]) -> Step:
        """The step that a completion is, or StepFormatError with a reason of FAILURES. Nothing is repaired."""
        text, thought = completion.text, len(completion.reasoning)
        beside = f", and {thought:,} characters of reasoning" if thought else ""
        if completion.finish == "length" and not (self.free and len(self.actions) == 1):
            raise StepFormatError("truncated", f"{len(text)} characters without an end{beside}")
        if not text.strip():
            raise StepFormatError("empty", f"no text{beside}")
        if CONTROL_TOKEN.search(text):
            raise StepFormatError("control_token", text)
        if completion.finish != "written" and (unit := degenerate(text)):
            raise StepFormatError("degenerate", f"{quoted(unit)} again and again")
        if self.free:
            return Step(allowed[0], text, text.strip())
        tags = [*self._tag.finditer(text)]
        closed = self._one_is_closed([tag.group() for tag in tags])
        if len(tags) > 2 and closed:
            raise StepFormatError("several_actions", f"{len(tags)} tags")
        if not closed:
            raise StepFormatError("no_action", text)
        opening, closing = tags
        return self._step(text, opening, closing, allowed)

    def _step(self, text: str, opening: re.Match[str], closing: re.Match[str], allowed: tuple[str, ...]) -> Step:
        action = next(one for one in self.actions if one.closing == closing.group())
        content = text[opening.end() : closing.start()].strip()
        if not content:
            raise StepFormatError("empty_content", text)
        trailing = text[closing.end() :].strip()
        if trailing and not (self.lenient and trailing == "."):
            raise StepFormatError("trailing_text", trailing)
        if not self.lenient and not text[: opening.start()].rstrip().endswith(action.lead):
            raise StepFormatError("no_lead", text)
        if action.name not in allowed:
            raise StepFormatError("wrong_action", f"{action.name} where {' or '.join(allowed)} may stand")
        if action.tools:
            try:
                call_of(content, action.tools)
            except BadCall as error:
                raise StepFormatError("bad_call", str(error)) from None
        return Step(action.name, text, content)

    @cached_property
    def _steps_to_end(self) -> dict[str, int]:
        """Steps from taking an action to the end of the episode, itself included, by the shortest way."""
        lengths = {action.name: 1 for action in self.actions if action.terminal}
        while len(lengths) < len(self.actions):
            reached = {
                action.name: 1 + min(lengths[after] for after in self.transitions[action.name] if after in lengths)
                for action in self.actions
                if action.name not in lengths and any(after in lengths for after in self.transitions[action.name])
            }
            if not reached:
                raise ValueError(f"grammar {self.name}: no way to an end from {sorted({*self._by_name} - {*lengths})}")
            lengths |= reached
        return lengths

    @cached_property
    def _closed_by(self) -> dict[str, str]:
        """Each action's closing tag, and the opening one."""
        return {action.closing: action.opening for action in self.actions}

    def _one_is_closed(self, tags: list[str]) -> bool:
        """Whether an opening tag is followed by its closing one."""
        opened: set[str] = set()
        return any(self._closed_by.get(tag) in opened or opened.add(tag) for tag in tags)

    @cached_property
    def _tag(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, [*self._closed_by, *self._closed_by.values()])))
