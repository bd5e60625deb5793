"""What completions look like: the actions with their tags, and the constraints that serving engines understand.

From one value come GBNF (llama.cpp, vLLM) and a regular expression (SGLang); the parser is `steprag.agent.grammar`'s.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from steprag.agent.stack import Action, Effect
from steprag.agent.tools import ToolSpec
from steprag.engines.reasoning import left_open


@dataclass(frozen=True)
class Notation:
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

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> Self:
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

    @property
    def shrinks(self) -> bool:
        """Whether an action takes steps off the stack: else stack and trace are one."""
        return any(action.effect in ("pop", "fold") for action in self.actions)

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

    def _rule(self, action: Action) -> str:
        """The name of an action's rule: llama.cpp takes letters, digits and - alone."""
        plain = re.fullmatch(r"(?!(?:root|thought|action\d+)$)[A-Za-z0-9-]+", action.name)
        return action.name if plain else f"action{[*self._by_name].index(action.name)}"


def _inner(action: Action) -> str:
    """What content is made of behind its first character."""
    return "[^<>]" if action.lines else "[^<>\\n]"


def _escaped(text: str) -> str:
    """`re.escape`, but with plain spaces: engines' regular expressions need not know an escaped one."""
    return re.escape(text).replace("\\ ", " ")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
