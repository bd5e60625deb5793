"""Steps and their grammar: which actions there are, what ends a step, what may follow.

A `Grammar` is a value. The environment, the search, the pairs, training and inference take it as an argument, so
another markup is another value, not another agent. From the same value come the parser and the constraints that
serving engines understand (GBNF for llama.cpp and vLLM, a regular expression for SGLang).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from steprag.agent.inert import CONTROL_TOKEN
from steprag.agent.stack import Action, Effect, idle
from steprag.agent.tools import BadCall, ToolSpec, call_of
from steprag.errors import StepFormatError
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
    "bad_call": "the call names no tool, or its arguments do not fit the tool",
}
"""Why a completion is refused: the reason as it is counted and stored, and what it means."""


@dataclass(frozen=True)
class Grammar:
    """Actions and the transitions between them: `transitions[last action or START]` lists what may come next.

    `thought_chars` bounds a thought in constrained output, as `Action.content_chars` the content. `lenient`: the parser
    lets the lead be missing and a full stop follow the closing tag. `stops`: a completion is stopped at a closing tag,
    for models that would write on; constrained output may contain one newline before the closing tag. `thinks`:
    constrained output has the thought as `<think>…</think>`, in any number of lines. `must_think`: it has one, though
    the parser would do without.
    """

    name: str
    actions: tuple[Action, ...]
    transitions: Mapping[str, tuple[str, ...]]
    thought_chars: int = 240
    lenient: bool = False
    stops: bool = False
    thinks: bool = False
    must_think: bool = False

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> Grammar:
        """The same grammar whose calls name one of `tools`; a single tool need not be named, so it changes nothing."""
        if len(tools) < 2 and all(tool.bare for tool in tools):
            return self
        calls = (replace(action, tools=tools) if action.retrieves else action for action in self.actions)
        return replace(self, actions=tuple(calls))

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What calls may name; none where they are queries."""
        return next((action.tools for action in self.actions if action.retrieves), ())

    @property
    def stop(self) -> tuple[str, ...]:
        """The closing tags at which a completion is stopped, whatever is allowed; none where it ends by itself."""
        return tuple(action.closing for action in self.actions) if self.stops else ()

    @cached_property
    def hash(self) -> str:
        """Hash of actions, transitions and lenience: part of a run's identity."""
        facts = [self.gbnf(tuple(self._by_name)), {last: [*after] for last, after in self.transitions.items()}]
        flags: list[object] = [self.stop, self.lenient, [a.name for a in self.actions if a.retrieves]]
        if self.shrinks:
            flags.append({action.name: [action.effect, action.pinned] for action in self.actions})
        return hashlib.sha256(json.dumps([*facts, *flags], sort_keys=True).encode()).hexdigest()[:16]

    def action(self, name: str) -> Action:
        """The action of that name. Raises KeyError where the grammar has none."""
        return self._by_name[name]

    @cached_property
    def effects(self) -> dict[str, Effect]:
        """What each action does to the stack, by its name."""
        return {action.name: action.effect for action in self.actions}

    @cached_property
    def evidence(self) -> frozenset[str]:
        """The names of the actions that keep facts and do not end the episode."""
        return frozenset(action.name for action in self.actions if action.keeps and not action.terminal)

    @property
    def answer(self) -> Action:
        """The action that ends the episode; the first one where there are several."""
        return next(action for action in self.actions if action.terminal)

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

    @property
    def shrinks(self) -> bool:
        """Whether an action takes steps off the stack: else stack and trace are one."""
        return any(action.effect in ("pop", "fold") for action in self.actions)

    def parse(self, completion: Completion, allowed: tuple[str, ...]) -> Step:
        """The step that a completion is, or StepFormatError with a reason of FAILURES. Nothing is repaired."""
        text, thought = completion.text, len(completion.reasoning)
        beside = f", and {thought:,} characters of reasoning" if thought else ""
        if completion.finish == "length":
            raise StepFormatError("truncated", f"{len(text)} characters without an end{beside}")
        if not text.strip():
            raise StepFormatError("empty", f"no text{beside}")
        if CONTROL_TOKEN.search(text):
            raise StepFormatError("control_token", text)
        tags = self._tag.findall(text)
        if len(tags) > 2 and _one_is_closed(tags):
            raise StepFormatError("several_actions", f"{len(tags)} tags")
        # Asked of two tags alone: on many that stay open the search would be quadratic in their number.
        match = self._complete.search(text) if len(tags) == 2 else None
        if match is None:
            raise StepFormatError("no_action", text)
        return self._step(text, match, allowed)

    def _step(self, text: str, match: re.Match[str], allowed: tuple[str, ...]) -> Step:
        action, content = self.action(match["name"]), match["content"].strip()
        if not content:
            raise StepFormatError("empty_content", text)
        trailing = text[match.end() :].strip()
        if trailing and not (self.lenient and trailing == "."):
            raise StepFormatError("trailing_text", trailing)
        if not self.lenient and not text[: match.start()].rstrip().endswith(action.lead):
            raise StepFormatError("no_lead", text)
        if action.name not in allowed:
            raise StepFormatError("wrong_action", f"{action.name} where {' or '.join(allowed)} may stand")
        if action.tools:
            try:
                call_of(content, action.tools)
            except BadCall as error:
                raise StepFormatError("bad_call", str(error)) from None
        return Step(action.name, text, content)

    def gbnf(self, allowed: tuple[str, ...]) -> str:
        """The allowed steps as a GBNF grammar (llama.cpp, vLLM)."""
        actions = [self.action(name) for name in allowed]
        bare = [action.name for action in actions if not action.thought]
        after = " | ".join(action.name for action in actions if action.thought)
        # One thought before all that may follow it: with one for each, xgrammar's masks take up to 20 times as long.
        words = f"thought {_quoted(' ')}"
        before = "thought" if self.thinks else words if self.must_think else f"({words})?"
        thinking = [f"{before} ({after})"] if after else []
        rules = [f"root ::= {' | '.join(thinking + bare)}"]
        for action in actions:
            head, tail = _quoted(action.head), ('"\\n"? ' if self.stops else "") + _quoted(action.closing)
            content = f"[^<>\\n ] [^<>\\n]{{0,{action.content_chars}}}"
            if action.tools:
                content = f"({' | '.join(_quoted(f'{tool.name}: ') for tool in action.tools)}) {content}"
            rules.append(f'{action.name} ::= {head} " "? {content} {tail}')
        free = f"[^<>\\n]{{1,{self.thought_chars}}}"
        tagged = f'"<think>" [^<>]{{1,{self.thought_chars}}} "</think>" [ \\n]{{0,2}}'
        if after:
            rules.append(f"thought ::= {tagged if self.thinks else free}")
        return "\n".join(rules) + "\n"

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The allowed steps as a regular expression (SGLang), the same language as `gbnf`."""
        forms = []
        for action in map(self.action, allowed):
            words = f"[^<>\\n]{{1,{self.thought_chars}}} "
            tagged = f"<think>[^<>]{{1,{self.thought_chars}}}</think>[ \\n]{{0,2}}"
            before = tagged if self.thinks else words if self.must_think else f"(?:{words})?"
            thought = before if action.thought else ""
            head, tail = _escaped(action.head), ("\\n?" if self.stops else "") + action.closing
            names = f"(?:{'|'.join(_escaped(f'{tool.name}: ') for tool in action.tools)})" if action.tools else ""
            forms.append(f"{thought}{head} ?{names}[^<>\\n ][^<>\\n]{{0,{action.content_chars}}}{tail}")
        return "|".join(f"(?:{form})" for form in forms)

    def schema(self, allowed: tuple[str, ...]) -> None:
        """None: steps are tagged text, which no JSON schema describes."""

    @cached_property
    def _by_name(self) -> dict[str, Action]:
        return {action.name: action for action in self.actions}

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
                raise ValueError(f"grammar {self.name}: no way to an end from {set(self._by_name) - set(lengths)}")
            lengths |= reached
        return lengths

    @cached_property
    def _tag(self) -> re.Pattern[str]:
        return re.compile("</?(?:" + "|".join(map(re.escape, self._by_name)) + ")>")

    @cached_property
    def _complete(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, self._by_name))
        return re.compile(rf"<(?P<name>{names})>(?P<content>.*?)</(?P=name)>", re.DOTALL)


class FreeGrammar(Grammar):
    """Steps without tags, as other frameworks' agents write them: a completion is the first action that is allowed."""

    def parse(self, completion: Completion, allowed: tuple[str, ...]) -> Step:
        """The whole text as a step. Raises StepFormatError where it is cut, empty, or holds a control token."""
        if completion.finish == "length":
            raise StepFormatError("truncated", f"{len(completion.text)} characters without an end")
        if not completion.text.strip():
            raise StepFormatError("empty", "no text")
        if CONTROL_TOKEN.search(completion.text):
            raise StepFormatError("control_token", completion.text)
        return Step(allowed[0], completion.text, completion.text.strip())


def _one_is_closed(tags: list[str]) -> bool:
    """Whether an opening tag is followed by its closing one."""
    opened: set[str] = set()
    for tag in tags:
        if tag.startswith("</") and tag.replace("/", "", 1) in opened:
            return True
        opened.add(tag)
    return False


def _escaped(text: str) -> str:
    """`re.escape`, but with plain spaces: engines' regular expressions need not know an escaped one."""
    return re.escape(text).replace("\\ ", " ")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
