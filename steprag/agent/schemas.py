"""JSON Schema as SDKs write it, made plain: references looked up, alternatives decided.

One optional text is `anyOf` with null for pydantic, a list of types for zod, `nullable` for OpenAPI; a class is a
`$ref`, alone or within `allOf`; a choice is an `enum`, or constants side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steprag.errors import ConfigError

NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
PARTS, DEEP = 5000, 20
"""Parts of one schema that are read, choices and names among them, and how deep: references can make a short one
unfold without end.
"""
_KEPT = ("type", "enum", "properties", "required", "default")
Plain = dict[str, Any]


class SchemaReader:
    """Reads the parts of the schema `root`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, PARTS

    def plain(self, part: object, deep: int = 0) -> Plain:
        """What `part` says of type (one name), enum, properties, required and default; nothing where all is allowed.

        Of several alternatives the first counts that a call can hold; null is none. Raises ConfigError for a schema
        beyond `PARTS` or `DEEP`.
        """
        told = {key: part[key] for key in _KEPT if key in part} if isinstance(part, Mapping) else {}
        self._left -= 1 + sum(len(value) for value in told.values() if isinstance(value, list | Mapping))
        if self._left < 0 or deep > DEEP:
            raise ConfigError(f"its schema unfolds into more than {PARTS:,} parts, or more than {DEEP} levels")
        if not isinstance(part, Mapping):
            return {} if part is True else {"type": "unknown"}
        if "const" in part:
            told["enum"] = [part["const"]]
        for whole in [*([self._at(part["$ref"])] if "$ref" in part else []), *_listed(part.get("allOf"))]:
            told = _joined(self.plain(whole, deep + 1), told)
        for key in ("anyOf", "oneOf"):
            told = _joined(_first([self.plain(one, deep + 1) for one in _listed(part.get(key))]), told)
        return _typed(told)

    def _at(self, pointer: object) -> object:
        """What a reference into the schema names; nothing outside of it is looked up."""
        if not (isinstance(pointer, str) and pointer.startswith("#/")):
            return None
        found: object = self._root
        for step in pointer.split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _joined(below: Plain, above: Plain) -> Plain:
    """Both, of two values the one from above; properties and required names of both."""
    told = {**below, **above}
    one, other = below.get("properties"), above.get("properties")
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        told["properties"] = {**one, **other}
    one, other = below.get("required"), above.get("required")
    if isinstance(one, list) and isinstance(other, list):
        told["required"] = [*one, *other]
    return told


def _typed(told: Plain) -> Plain:
    """With one type where a list stands, and one for an enum that has none. Null is no choice."""
    kinds = told.get("type")
    if isinstance(kinds, list):
        named = [{**told, "type": kind} for kind in kinds]
        told = {**told, "type": _first(named).get("type", "null")}
    choices = told.get("enum")
    if isinstance(choices, list):
        choices = [one for one in choices if one is not None]
        told = {**told, "enum": choices}
        if "type" not in told:
            told["type"] = NAMES.get(type(choices[0]), "unknown") if choices else "null"
    return told


def _first(plain: Sequence[Plain]) -> Plain:
    """The first alternative that a call can hold, with the choices of all of its type. Those that only forbid, such as
    one of required names, are none.
    """
    real = [one for one in plain if one.get("type", "null") != "null"]
    best = next((one for one in real if one["type"] in NAMES.values()), None)
    best = best or next((one for one in real if one.get("properties")), real[0] if real else {})
    alike = [one for one in real if one["type"] == best["type"]]
    if not all(isinstance(one.get("enum"), list) for one in alike):  # one of them allows all of its type
        return {key: value for key, value in best.items() if key != "enum"}
    return {**best, "enum": [choice for one in alike for choice in one["enum"]]} if alike else best
