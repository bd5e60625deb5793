"""Tools as the policy sees them: names, arguments, and the check of a call.

A call is the content of a step: `name: arguments`. A tool of one text takes it bare; others take one line of JSON.
A call is checked against these specifications before the tool runs, so a bad call is a refused step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from steprag.agent.schemas import Plain, SchemaReader
from steprag.errors import ConfigError, quoted
from steprag.records.json_text import NotJson, decoded

Kind = Literal["string", "integer", "number", "boolean", "object"]
KINDS: dict[Kind, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,)}  # fmt: skip
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
DESCRIBED = 300
"""Characters of a description that are shown."""
CHOICE = 80
"""Characters of one of the choices of an argument."""
NESTED = 2
"""Levels of objects within a call; what lies deeper cannot be filled."""


@dataclass(frozen=True)
class Argument:
    """A named value of a call; `choices`, where there are some, are the only ones. `parts`: what an object holds."""

    name: str
    kind: Kind = "string"
    required: bool = True
    choices: tuple[Any, ...] = ()
    parts: tuple[Argument, ...] = ()

    @property
    def shown(self) -> str:
        """How the prompt describes it: its kind, choices or parts, and whether it may be left out."""
        told = " or ".join(json.dumps(one, ensure_ascii=False) for one in self.choices) or self.kind
        told = _in_braces(self.parts) if self.parts else told
        return f'"{self.name}": {told}' + ("" if self.required else " (optional)")

    def fault(self, value: object) -> str | None:
        """Why a value does not fit; None where it does."""
        if not _fits(self.kind, value):
            return f"{self.name} is no {self.kind}"
        if self.choices and value not in self.choices:
            return f"{self.name} is none of {', '.join(map(str, self.choices))}"
        return fault_in(value, self.parts, self.name) if isinstance(value, dict) else None


def _fits(kind: Kind, value: object) -> bool:
    return isinstance(value, bool) == (kind == "boolean") and isinstance(value, KINDS[kind])


def _in_braces(arguments: tuple[Argument, ...]) -> str:
    return "{" + ", ".join(one.shown for one in arguments) + "}"


def fault_in(given: Mapping[str, Any], arguments: tuple[Argument, ...], owner: str) -> str | None:
    """Why values do not fit the arguments of `owner`; None where they do."""
    known = {argument.name: argument for argument in arguments}
    for name, value in given.items():
        if name not in known:
            return f"{owner} has no {quoted(name)}"
        if fault := known[name].fault(value):
            return f"{owner}: {fault}"
    missing = [argument.name for argument in arguments if argument.required and argument.name not in given]
    return f"{owner} needs {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class ToolSpec:
    """A tool's name, what it does in a line, and its arguments in order."""

    name: str
    description: str
    arguments: tuple[Argument, ...]

    @property
    def bare(self) -> bool:
        """Whether its one argument is a text, which a call gives as it is."""
        return len(self.arguments) == 1 and self.arguments[0].kind == "string" and not self.arguments[0].choices

    @property
    def shown(self) -> str:
        """The line of the prompt that describes it."""
        told = "text" if self.bare else _in_braces(self.arguments)
        return f"{self.name}: {told}. {self.description}"


@dataclass(frozen=True)
class Call:
    """A call that fits its tool; `arguments` by name."""

    tool: str
    arguments: Mapping[str, Any]


class BadCall(ValueError):
    """Why a call fits no tool."""


def call_of(content: str, tools: tuple[ToolSpec, ...]) -> Call:
    """The call that a step's content is. With a single tool its name may be left out. Raises BadCall."""
    name, colon, rest = content.partition(":")
    by_name = {tool.name: tool for tool in tools}
    tool = by_name.get(name.strip()) if colon else None
    if tool is None and len(tools) == 1:
        tool, rest = tools[0], content
    if tool is None:
        raise BadCall(f"name one of {', '.join(by_name)}, then a colon")
    if tool.bare:
        if not rest.strip():
            raise BadCall(f"{tool.name} needs a text")
        return Call(tool.name, {tool.arguments[0].name: rest.strip()})
    given = _object(rest, tool)
    if fault := fault_in(given, tool.arguments, tool.name):
        raise BadCall(fault)
    return Call(tool.name, given)


def _object(text: str, tool: ToolSpec) -> dict[str, Any]:
    try:
        given = decoded(text) if text.strip() else {}
    except NotJson:
        raise BadCall(f"{tool.name} takes one line of JSON") from None
    if not isinstance(given, dict):
        raise BadCall(f"{tool.name} takes a JSON object")
    return given


def specs_in(manifest: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools that a run's manifest names, as `asdict` wrote them; none where it names none. Raises ConfigError."""
    try:
        return TypeAdapter(tuple[ToolSpec, ...]).validate_python(manifest.get("tools") or ())
    except ValidationError as error:
        told = error.errors()[0]["msg"].lower()
        raise ConfigError(f"the manifest's tools cannot be read ({told}); restore it from a copy of the run") from None


def spec_of(name: str, description: str, schema: Mapping[str, Any]) -> ToolSpec:
    """The specification of a tool with a JSON schema; a stranger's schema may be anything.

    Arguments that no policy can fill are left out where they are optional. Raises ConfigError if a required argument is
    one of these, or if the schema is invalid.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"tool {quoted(name)}: a name has letters, digits, '_', '.' and '-', 64 at most")
    try:
        reader = SchemaReader(schema)
        arguments = _arguments(reader.plain(schema), reader, NESTED)
    except ConfigError as error:
        raise ConfigError(f"tool {name}: {error}") from None
    return ToolSpec(name, " ".join(description.split())[:DESCRIBED], arguments)


def _arguments(schema: Mapping[str, Any], reader: SchemaReader, levels: int) -> tuple[Argument, ...]:
    """The arguments that an object's schema describes. Raises ConfigError where one is required and none can fill it.

    One with a default may be left out, whatever is said to be required: zod lists such ones too.
    """
    required, properties = schema.get("required") or [], schema.get("properties") or {}
    named = isinstance(required, list | tuple) and all(isinstance(key, str) for key in required)
    if not (isinstance(properties, Mapping) and named):
        raise ConfigError("its schema cannot be read: properties are an object, required lists names")
    if missing := [key for key in required if key not in properties]:
        raise ConfigError(f"its schema requires {quoted(missing[0])} and does not describe it")
    arguments = []
    for key, value in properties.items():
        told = reader.plain(value)
        needed = key in required and "default" not in told
        argument = _fillable(str(key), told, needed, reader, levels)
        if isinstance(argument, Argument):
            arguments.append(argument)
        elif needed:
            raise ConfigError(f"argument {quoted(str(key))} {argument}")
    return tuple(arguments)


def _fillable(name: str, told: Plain, required: bool, reader: SchemaReader, levels: int) -> Argument | str:
    """The argument that a plain schema describes, or why no policy can fill it. One of any type is a text."""
    kind, choices = told.get("type", "string"), told.get("enum") or []
    if not NAME.fullmatch(name):
        return "has a name that is not of letters, digits, '_', '.' and '-', 64 at most"
    if kind == "object" and told.get("properties") and levels:
        try:
            parts = _arguments(told, reader, levels - 1)
        except ConfigError as error:
            return f"is an object: {error}"
        return Argument(name, "object", required, parts=parts) if parts else "is an object that no policy can fill"
    if not (isinstance(kind, str) and kind in KINDS) or kind == "object":
        said = quoted(kind if isinstance(kind, str) else "unknown")
        return f"is of type {said}; a policy can fill strings, numbers, integers and booleans alone"
    if not isinstance(choices, list) or not all(_fits(kind, one) and _is_short(one) for one in choices):
        return f"has choices that are not {kind}s in a line of {CHOICE} characters at most"
    return Argument(name, kind, required, tuple(choices))


def _is_short(choice: object) -> bool:
    text = str(choice)
    return len(text) <= CHOICE and text == " ".join(text.split())
