"""Grammars as YAML: those of `configs/grammars/`, and users' own (docs/extend.md). The class is
`steprag.agent.grammar.Grammar`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from steprag.agent.grammar import START, Grammar
from steprag.agent.inert import CONTROL_TOKEN, neutralise
from steprag.agent.stack import Action, Effect
from steprag.engines.reasoning import left_open
from steprag.errors import ConfigError, nearest, quoted
from steprag.records.yaml_files import read_yaml, shaped

FOLDER = Path(__file__).parents[2] / "configs" / "grammars"
FIRST = "start"
"""The key of `order` for a state without steps."""
_NAME = re.compile(r"(?!(?:start|none)$)[A-Za-z][\w-]{0,39}", re.ASCII)
_TAG = re.compile(r"</?[A-Za-z_][\w:.-]{0,60}>", re.ASCII)
Chars = Annotated[int, Field(ge=1, le=2000)]
"""llama.cpp repeats nothing more often."""


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _ActionKeys(_Keys):
    """As the fields of `Action`. `tags`: opening and closing one; else they are made of the name."""

    effect: Effect = "push"
    lead: str = Field(default="", pattern=r"^[^<>\n]*$")
    tags: tuple[str, str] | None = None
    thought: bool = True
    chars: Chars = 400
    lines: bool = False
    pinned: bool = False


class _ThoughtKeys(_Keys):
    """The words before an action. `tags`: they stand between these, in any number of lines. `required`: constrained
    output has some, as it has where there are tags.
    """

    tags: tuple[str, str] | None = None
    chars: Chars = 240
    required: bool = False


class _GrammarKeys(_Keys):
    """The keys of a file. `order`: what may follow an action; left out, all may follow all that do not end. `free`: as
    of `Grammar`.
    """

    actions: dict[str, _ActionKeys] = Field(min_length=1, max_length=40)
    order: dict[str, list[str]] = {}
    thought: _ThoughtKeys = _ThoughtKeys()
    lenient: bool = True
    stops: bool = True
    free: bool = False

    @property
    def following(self) -> dict[str, list[str]]:
        going = (name for name, one in self.actions.items() if one.effect != "end")
        return self.order or {last: [*self.actions] for last in (FIRST, *going)}


def own_grammar(keys: Mapping[str, Any], where: object, stem: str) -> Grammar:
    """A user's grammar, called after its file and content (`solution-1a2b3c4d`). Raises as `grammar_from`."""
    digest = hashlib.sha256(json.dumps(keys, default=str).encode()).hexdigest()
    return grammar_from(keys, where, f"{stem[:40]}-{digest[:8]}")


def grammar_from(keys: Mapping[str, Any], where: object, name: str) -> Grammar:
    """The grammar that the keys of the file `where` describe; from now on one of `GRAMMARS`.

    Raises ConfigError, with the key, for one that no episode could follow.
    """
    file = shaped(_GrammarKeys, keys, f"{where}: grammar")
    if problem := next(_problems(file), None):
        raise ConfigError(f"{where}: grammar: {problem}")
    actions = tuple(
        Action(called, one.lead, one.effect, one.thought, one.chars, one.pinned, (), one.tags, one.lines)
        for called, one in file.actions.items()
    )
    order = {START if last == FIRST else last: (*after,) for last, after in file.following.items()}
    thought = file.thought
    made = Grammar(name, actions, order, thought.chars, file.lenient, file.stops, thought.tags, thought.required,
                   file.free)  # fmt: skip
    try:
        made.allowed((), 1)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; let them lead to an action with the effect end") from None
    for action in actions:
        OPENINGS.setdefault(action.opening, action.name)
    return GRAMMARS.setdefault(name, made)


def _problems(file: _GrammarKeys) -> Iterator[str]:
    """What is wrong with a file whose keys and types are right, and the remedy."""
    owners: dict[str, str] = {}
    pairs = {f"actions.{name}": one.tags or (f"<{name}>", f"</{name}>") for name, one in file.actions.items()}
    for name in file.actions:
        if not _NAME.fullmatch(name):
            yield f"actions: {quoted(name)}: a name has letters, digits, - and _, and is neither start nor none"
    for key, tags in {**pairs, **({"thought": file.thought.tags} if file.thought.tags else {})}.items():
        for tag in tags:
            if not _TAG.fullmatch(tag) or CONTROL_TOKEN.search(tag) or tag in neutralise(tag):
                yield f"{key}: {quoted(tag)} is no tag like <name>, or is a chat template's; take another"
            if owners.setdefault(tag, key) != key or tags[0] == tags[1]:
                yield f"{key}: the tag {tag} is ambiguous, as {owners[tag]} has it too; give each its own"
        if key != "thought" and left_open(tags[0]):
            yield f"{key}: {tags[0]} is read as a model's reasoning; name it under thought: {{tags: …}}, or otherwise"
    ends = {name for name, one in file.actions.items() if one.effect == "end"}
    if not ends:
        yield "no episode would end: give an action the effect end"
    yield from _disorder(file, ends)


def _disorder(file: _GrammarKeys, ends: set[str]) -> Iterator[str]:
    for last, after in (order := file.following).items():
        if stranger := next((name for name in (last, *after) if name not in {*file.actions, FIRST}), None):
            yield f"order.{last}: {quoted(stranger)} is no action{nearest(stranger, [*file.actions])}"
        if last in ends or FIRST in after:
            yield f"order.{last}: nothing follows the end, and start follows nothing; leave it out"
        elif not any(file.actions[name].effect not in ("pop", "fold") for name in after):
            yield f"order.{last}: add an action that neither pops nor folds: these may have nothing to take away"
    for name in (FIRST, *file.actions):
        if name not in order and name not in ends:
            yield f"order.{name} is missing: say what may follow, or leave the whole order out"
    if unused := set(file.actions) - {name for after in order.values() for name in after}:
        yield f"order: {min(unused)} follows nothing; add it where it may stand, or leave the action out"


OPENINGS: dict[str, str] = {}
"""Opening tags of all of `GRAMMARS`, and the action of each."""
GRAMMARS: dict[str, Grammar] = {}
"""The grammars that this process knows, by name: those of `FOLDER`, and users' own that it has read."""
for _file in sorted(FOLDER.glob("*.yaml")):
    grammar_from(read_yaml(_file), _file, _file.stem)
BUILT_IN = tuple(GRAMMARS)
TRANSCRIPT, PROGUIDE, STACK = GRAMMARS["transcript"], GRAMMARS["proguide"], GRAMMARS["stack"]
RECORDED = GRAMMARS["recorded"]
