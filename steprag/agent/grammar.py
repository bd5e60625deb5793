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
from steprag.engines.reasoning import left_open
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
    for models that would write on; constrained output may contain one newline before the closing tag. `thought_tags`:
    constrained output has the thought between these, in any number of lines. `must_think`: it has one, though the
    parser would do without. `free`: a completion is no step in tags but, as it is, the content of the first
    allowed action; of an only action also where the token limit cut it.
    """

    name: str
    actions: tuple[Action, ...]
    transitions: Mapping[str, tuple[str, ...]]
    thought_chars: int = 240
    lenient: bool = False
    stops: bool = False
    thought_tags: tuple[str, str] | None = None
    must_think: bool = False
    free: bool = False

    @property
    def thinks(self) -> bool:
        """Whether its thoughts are what is else split off as a model's reasoning: they stay in the completion."""
        return bool(self.thought_tags and left_open(self.thought_tags[0]))

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
        if self.free:
            flags.append("free")
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
        if completion.finish == "length" and not (self.free and len(self.actions) == 1):
            raise StepFormatError("truncated", f"{len(text)} characters without an end{beside}")
        if not text.strip():
            raise StepFormatError("empty", f"no text{beside}")
        if CONTROL_TOKEN.search(text):
            raise StepFormatError("control_token", text)
        if self.free:
            return Step(allowed[0], text, text.strip())
        tags = self._tag.findall(text)
        if len(tags) > 2 and self._one_is_closed(tags):
            raise StepFormatError("several_actions", f"{len(tags)} tags")
        # Asked of two tags alone: on many that stay open the search would be quadratic in their number.
        match = self._complete.search(text) if len(tags) == 2 else None
        if match is None:
            raise StepFormatError("no_action", text)
        return self._step(text, match, allowed)

    def _step(self, text: str, match: re.Match[str], allowed: tuple[str, ...]) -> Step:
        place, content = next((place, found) for place, found in enumerate(match.groups()) if found is not None)
        action, content = self.actions[place], content.strip()
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
        if self.free:
            return "root ::= [^\\x00]+\n"
        actions = [self.action(name) for name in allowed]
        bare = [self._rule(action) for action in actions if not action.thought]
        after = " | ".join(self._rule(action) for action in actions if action.thought)
        # One thought before all that may follow it: with one for each, xgrammar's masks take up to 20 times as long.
        words = f"thought {_quoted(' ')}"
        before = "thought" if self.thought_tags else words if self.must_think else f"({words})?"
        thinking = [f"{before} ({after})"] if after else []
        rules = [f"root ::= {' | '.join(thinking + bare)}"]
        for action in actions:
            head, tail = _quoted(action.head), ('"\\n"? ' if self.stops else "") + _quoted(action.closing)
            content = f"[^<>\\n ] {_inner(action)}{{0,{action.content_chars}}}"
            if action.tools:
                content = f"({' | '.join(_quoted(f'{tool.name}: ') for tool in action.tools)}) {content}"
            rules.append(f'{self._rule(action)} ::= {head} " "? {content} {tail}')
        free = f"[^<>\\n]{{1,{self.thought_chars}}}"
        if self.thought_tags:
            opening, closing = map(_quoted, self.thought_tags)
            free = f"{opening} [^<>]{{1,{self.thought_chars}}} {closing} [ \\n]{{0,2}}"
        if after:
            rules.append(f"thought ::= {free}")
        return "\n".join(rules) + "\n"

    def regex(self, allowed: tuple[str, ...]) -> str:
        """The allowed steps as a regular expression (SGLang), the same language as `gbnf`."""
        if self.free:
            return r"[\s\S]+"
        words = f"[^<>\\n]{{1,{self.thought_chars}}} "
        before = words if self.must_think else f"(?:{words})?"
        if self.thought_tags:
            opening, closing = map(_escaped, self.thought_tags)
            before = f"{opening}[^<>]{{1,{self.thought_chars}}}{closing}[ \\n]{{0,2}}"
        forms = []
        for action in map(self.action, allowed):
            thought = before if action.thought else ""
            head, tail = _escaped(action.head), ("\\n?" if self.stops else "") + _escaped(action.closing)
            names = f"(?:{'|'.join(_escaped(f'{tool.name}: ') for tool in action.tools)})" if action.tools else ""
            forms.append(f"{thought}{head} ?{names}[^<>\\n ]{_inner(action)}{{0,{action.content_chars}}}{tail}")
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
                raise ValueError(f"grammar {self.name}: no way to an end from {sorted({*self._by_name} - {*lengths})}")
            lengths |= reached
        return lengths

    def _rule(self, action: Action) -> str:
        """The name of an action's rule: llama.cpp takes letters, digits and - alone."""
        plain = re.fullmatch(r"(?!(?:root|thought|action\d+)$)[A-Za-z0-9-]+", action.name)
        return action.name if plain else f"action{[*self._by_name].index(action.name)}"

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

    @cached_property
    def _complete(self) -> re.Pattern[str]:
        """An action's tags with the content between them: a group for each action."""
        tagged = (f"{re.escape(action.opening)}(.*?){re.escape(action.closing)}" for action in self.actions)
        return re.compile("|".join(tagged), re.DOTALL)


def _inner(action: Action) -> str:
    """What content is made of behind its first character."""
    return "[^<>]" if action.lines else "[^<>\\n]"


def _escaped(text: str) -> str:
    """`re.escape`, but with plain spaces: engines' regular expressions need not know an escaped one."""
    return re.escape(text).replace("\\ ", " ")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
