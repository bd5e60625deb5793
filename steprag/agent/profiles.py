"""Prompt profiles: the words around a state, as data (YAML under `configs/prompts/`).

A profile is chosen by name or path, hashed into every manifest, and rendered here and nowhere else, so that
search, exported pairs and inference send the same bytes for the same state.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from steprag.agent import grammars
from steprag.agent.grammar import START, Grammar
from steprag.agent.inert import neutralise
from steprag.agent.stack import live
from steprag.agent.tools import ToolSpec
from steprag.errors import ConfigError, quoted
from steprag.records.yaml_files import read_yaml, shaped
from steprag.tree import Tree
from steprag.types import Message, Passage, State

PROFILES = Path(__file__).parents[2] / "configs" / "prompts"
_PLACE = re.compile(r"\{([^{}]*+)\}")


class _Turn(BaseModel):
    """A prompt of its own: system prompt and user turn, byte for byte, with {question}, {steps} and {passages}."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    system: str
    user: str


class _ProfileFile(BaseModel):
    """The YAML file's keys. `tails` maps allowed actions joined by "|" to the last line of the prompt.

    `grammar`: the name of one of `configs/grammars/`, a YAML file beside this one, or its keys.

    `search_first`: the question itself is searched before the first step. `keep`: which passages stay in the prompt,
    where they were found: those of the last step only ("last"), all, or all that were not shown before ("new").
    `continued`: steps and passages stand in the assistant's message, which the model writes on; the user's holds the
    question alone ({asked}: with a question mark).

    `system_role`: "user" puts the system prompt at the head of the user's message, for chat templates that refuse a
    system message (Gemma 1 and 2).

    `tools`: stands behind the system prompt where calls name tools, with {tools}, a line each.

    `turns` is for profiles with a system prompt an action: the prompt of a state without steps ("start"), and of others
    by their allowed actions. Where there are turns they alone make prompts, and `between` stands between steps.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    grammar: str | dict[str, Any]
    system: str = ""
    system_role: Literal["system", "user"] = "system"
    tools: str = ""
    question: str = "{question}"
    step: str = "{text}"
    passages: str = "{passages}"
    passage: str = "{title}: {text}"
    order: Literal["best_first", "best_last"] = "best_first"
    between: str = "\n"
    between_passages: str = "\n"
    search_first: bool = False
    keep: Literal["last", "all", "new"] = "last"
    continued: bool = False
    turns: dict[str, _Turn] = {}
    tails: dict[str, str] = {}
    examples_header: str = ""
    examples: list[str] = []


@dataclass(frozen=True)
class PromptProfile:
    """Turns a state into the chat messages that a policy sees.

    `examples`: how many of the file's worked examples stand in the system prompt (0 for trained policies).
    `hash` covers every word of the file and the number of examples. `reserved`: special tokens of the policy's own
    tokenizer that must not reach it from outside (`steprag.agent.inert.surviving`). `earlier`: messages of earlier
    turns, between system prompt and question (`after`).
    """

    name: str
    grammar: Grammar
    words: _ProfileFile
    examples: int
    hash: str
    reserved: tuple[str, ...] = ()
    earlier: tuple[Message, ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        """Name and hash, as manifests keep them; of a user's own grammar also its name and keys."""
        own = {"name": self.grammar.name, "keys": self.words.grammar} if isinstance(self.words.grammar, dict) else None
        return {"profile": self.name, "hash": self.hash, **({"grammar": own} if own else {})}

    def after(self, exchanges: Sequence[tuple[str, str]]) -> PromptProfile:
        """The profile behind these exchanges of a conversation, the oldest first: what was asked, what was answered."""
        said = [
            (role, text) for exchange in exchanges for role, text in zip(("user", "assistant"), exchange, strict=True)
        ]
        return replace(self, earlier=tuple(Message(role=role, content=self._inert(text)) for role, text in said))

    def render(self, state: State, allowed: tuple[str, ...]) -> tuple[Message, ...]:
        """System prompt and one user turn: question, steps as sampled, passages of the last query, the tail.

        The user turn only ever grows at its end, except passages and tail: root paths are shared prefixes.
        """
        first, *others = messages = self._messages(state, allowed)
        if first["role"] != "system" or self.words.system_role == "system":
            return messages
        joined = "\n\n".join(filter(None, (first["content"], others[0]["content"])))
        return (Message(role="user", content=joined), *others[1:])

    def _messages(self, state: State, allowed: tuple[str, ...]) -> tuple[Message, ...]:
        if self.words.turns:
            return self._turn(state, allowed)
        asked = self._inert(state.question)
        bare = asked.rstrip()
        marked = bare if "\n" in bare else f"{bare.removesuffix('?')}?"  # no mark behind the last choice
        question = fill(self.words.question, question=asked, asked=marked)
        if self.words.continued:
            return self._continued(question, "".join(self._transcript(state)))
        lines = [question, *self._transcript(state)]
        tail = self.words.tails.get("|".join(allowed))
        if tail:
            lines.append(tail)
        first, asked = Message(role="system", content=self._system), Message(role="user", content="\n".join(lines))
        return (first, *self.earlier, asked)

    def _continued(self, question: str, transcript: str) -> tuple[Message, ...]:
        """The question, and what the assistant has written and read so far; no message that would be empty."""
        told = (("system", self._system), ("user", question), ("assistant", transcript))
        first, *rest = (Message(role=role, content=text) for role, text in told)
        return tuple(one for one in (first, *self.earlier, *rest) if one["content"])

    def _transcript(self, state: State) -> list[str]:
        """The steps on the stack as sampled, and the passages that are kept, in the order in which they came."""
        shown = set(live(state.steps, self.grammar))
        kept = self._kept(state, shown)
        parts = []
        for place in range(len(state.steps) + 1):
            if kept[place]:
                parts.append(fill(self.words.passages, passages=self._passages(kept[place])))
            if place in shown:
                parts.append(fill(self.words.step, text=state.steps[place].text))
        return parts

    def _kept(self, state: State, shown: set[int]) -> list[tuple[Passage, ...]]:
        """The passages to show before each step, and after the last one: never those of a step off the stack."""
        if self.words.keep == "last":
            return [()] * len(state.steps) + [state.passages]
        found = [
            passages if place == 0 or place - 1 in shown else ()
            for place, passages in enumerate([*state.earlier, state.passages])
        ]
        if self.words.keep == "all":
            return found
        seen: set[str] = set()
        return [tuple(p for p in passages if not (p.id in seen or seen.add(p.id))) for passages in found]

    def _turn(self, state: State, allowed: tuple[str, ...]) -> tuple[Message, ...]:
        turn = self.words.turns["|".join(allowed) if state.steps else "start"]
        steps = self.words.between.join(fill(self.words.step, text=step.text) for step in state.steps)
        passages = self._passages(state.passages)
        user = fill(turn.user, question=self._inert(state.question), steps=steps, passages=passages)
        return (Message(role="system", content=turn.system), *self.earlier, Message(role="user", content=user))

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> PromptProfile:
        """The profile whose grammar and prompt name `tools`. Raises ConfigError where it has no place to show them."""
        grammar = self.grammar.with_tools(tools)
        if grammar.tools and not self.words.tools:
            raise ConfigError(
                f"prompt profile {self.name} does not show tools, and the index names {len(tools)}; give one with the "
                "key tools, such as stack, or a single index"
            )
        return replace(self, grammar=grammar)

    @cached_property
    def _system(self) -> str:
        parts = [self.words.system.strip()]
        if tools := self.grammar.tools:
            lines = "\n".join(self._inert(tool.shown) for tool in tools)
            parts.append(fill(self.words.tools.strip(), tools=lines))
        if self.examples:
            parts.append(self.words.examples_header)
            parts += [example.strip() for example in self.words.examples[: self.examples]]
        return "\n\n".join(parts)

    def _inert(self, text: str) -> str:
        return neutralise(text, self.reserved)

    def _passages(self, passages: tuple[Passage, ...]) -> str:
        ordered = passages if self.words.order == "best_first" else passages[::-1]
        return self.words.between_passages.join(
            fill(
                _form(self.words.passage, p.title), rank=str(rank), title=self._inert(p.title), text=self._inert(p.text)
            )
            for rank, p in enumerate(ordered, 1)
        )


def _form(passage: str, title: str) -> str:
    """The form of a passage; without a title what stands between title and text goes too."""
    before, place, after = passage.partition("{text}")
    return place + after if place and not title and before.startswith("{title}") else passage


def fill(template: str, **values: str) -> str:
    """Replaces {name} once, left to right; braces inside values are never templates."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), template)


def load_profile(name: str, examples: int = 0) -> PromptProfile:
    """A profile by name (a file of `configs/prompts/`) or by the path of a YAML file. Raises ConfigError."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    if not os.path.isfile(path):  # a name out of a file may be none of a path
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.yaml")))
        raise ConfigError(f"prompt profile {quoted(name)} not found; known: {known} (or give the path of a YAML file)")
    words = shaped(_ProfileFile, read_yaml(path), f"{path}: not a prompt profile")
    if isinstance(words.grammar, str) and words.grammar.endswith((".yaml", ".yml")):
        words.grammar = read_yaml(path.parent / words.grammar)
    told: list[Any] = [words.model_dump(exclude_unset=True), examples]
    if isinstance(words.grammar, dict):
        grammar = grammars.own_grammar(words.grammar, path, path.stem)
        told.append(grammar.name)
    elif words.grammar in grammars.BUILT_IN:
        grammar = grammars.GRAMMARS[words.grammar]
    else:
        known = ", ".join(sorted(grammars.BUILT_IN))
        raise ConfigError(f"{path}: unknown grammar {quoted(words.grammar)}; known: {known}, a YAML file, or its keys")
    if words.turns and grammar.shrinks:
        raise ConfigError(f"{path}: turns show every step, but grammar {grammar.name} takes steps off the stack")
    if missing := _missing_turns(words, grammar):
        raise ConfigError(f"{path}: turns lacks {', '.join(missing)}")
    if not 0 <= examples <= len(words.examples):
        raise ConfigError(f"prompt.examples is {examples}; {path.name} has {len(words.examples)}")
    content = json.dumps(told, ensure_ascii=False, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return PromptProfile(path.stem, grammar, words, examples, digest)


def _missing_turns(words: _ProfileFile, grammar: Grammar) -> list[str]:
    """The prompts that an episode can need and a profile with turns does not have."""
    if not words.turns:
        return []
    reached = {"start"}
    for after in (following for last, following in grammar.transitions.items() if last != START):
        terminal = tuple(name for name in after if grammar.action(name).terminal)
        reached |= {"|".join(after), "|".join(terminal or after)}
    return sorted(reached - words.turns.keys())


def check_made_by(profile: PromptProfile, identity: Mapping[str, Any], source: Path) -> None:
    """Raises ConfigError if the identity of the run `source` names other prompts than the profile has now."""
    if (identity.get("prompt") or {}).get("hash", profile.hash) != profile.hash:
        raise ConfigError(f"{source} was made by other prompts than {profile.name} is now; give the same profile")


def told_grammar(manifest: Mapping[str, Any]) -> Grammar | None:
    """The user's own grammar that a run's manifest holds; None where it holds none. Raises ConfigError."""
    prompt = manifest.get("prompt") or (manifest.get("identity") or {}).get("prompt") or {}
    told = prompt.get("grammar")
    if not isinstance(told, dict) or not isinstance(told.get("keys"), dict):
        return None
    return grammars.own_grammar(told["keys"], "manifest.json", str(told.get("name")).rpartition("-")[0])


def grammar_of(manifest: Mapping[str, Any]) -> Grammar:
    """The grammar of a run's steps, by its manifest; the base grammar if the manifest names no profile.

    A user's own grammar stands in the identity of its prompts. Raises ConfigError if the run's profile is not found
    from here, or if this program does not know its grammar.
    """
    own = told_grammar(manifest)
    if name := manifest.get("grammar") or (own and own.name):
        if not isinstance(name, str) or name not in grammars.GRAMMARS:
            raise ConfigError(f"grammar {quoted(name)}, which a run's manifest or tree names, is not known here; the "
                              "manifest of its run holds one of your own: give that folder")  # fmt: skip
        return grammars.GRAMMARS[name]
    prompt = (manifest.get("config") or {}).get("prompt")
    profile = prompt.get("profile") if isinstance(prompt, dict) else None
    return load_profile(str(profile)).grammar if profile else grammars.TRANSCRIPT


def grammar_of_tree(tree: Tree, manifest: Mapping[str, Any]) -> Grammar:
    """The grammar that a tree names, or else the manifest of its run. Raises ConfigError as `grammar_of` and
    `check_follows`.
    """
    grammar = grammar_of({**manifest, **({"grammar": tree.grammar} if tree.grammar else {})})
    check_follows(tree, grammar)
    return grammar


def check_follows(tree: Tree, grammar: Grammar) -> None:
    """Raises ConfigError where a tree names another grammar, or has an action that this one lacks."""
    whose = f"the tree of question {quoted(tree.question.id)}"
    if tree.grammar not in (None, grammar.name):
        raise ConfigError(
            f"{whose} follows grammar {quoted(tree.grammar)}, not {grammar.name}; give trees of one prompt "
            "profile, and where a profile is asked for the one that made them"
        )
    known = {action.name for action in grammar.actions}
    if unknown := next((node.action for node in tree.nodes if node.action not in known | {None}), None):
        raise ConfigError(
            f"{whose} has the action {quoted(unknown)}, which grammar {grammar.name} lacks: give the whole run folder, "
            "whose manifest names its grammar, or add the field grammar to the tree's line"
        )
