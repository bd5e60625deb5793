"""YAML files of ours and of strangers: recipes, prompt profiles, judge prompts. One reader for all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from steprag.errors import ConfigError, quoted

Shape = TypeVar("Shape", bound=BaseModel)
LONGEST = 1 << 20
"""Bytes of a YAML file; the longest of ours has a few thousand."""


@cache
def _plain_loader() -> type[yaml.SafeLoader]:
    """SafeLoader that refuses aliases (a few lines can stand for gigabytes) and texts that UTF-8 cannot write."""

    class PlainLoader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(None, None, "an alias (*name); write the value out", mark)
            return super().compose_node(parent, index)

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            try:
                str(value).encode()
            except UnicodeEncodeError:
                problem = "half of a surrogate pair, which is no character; write the character itself"
                raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from None
            return value

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set[object]()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if key.tag == "tag:yaml.org,2002:bool":  # on, off, yes, no: as a key the word is meant
                    key.tag = "tag:yaml.org,2002:str"
                name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
                # PyYAML lets the last one count, without a word
                if name in seen and key.tag != "tag:yaml.org,2002:merge":
                    problem = f"a second {quoted(key.value)}; make one of both"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return PlainLoader


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; none for an empty one.

    Raises ConfigError, with the line where it is known, for a file that is missing, longer than 1 MiB, not UTF-8 or
    not YAML, that has aliases or half of a surrogate pair, or whose keys are not all text.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: not found, or no file")
    with path.open("rb") as stream:
        content = stream.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ConfigError(f"{path}: longer than {LONGEST:,} bytes; that is no recipe")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the file in that encoding") from None
    values = parsed(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(values).__name__}")
    _check_keys(path, values)
    return values


def shaped(kind: type[Shape], values: Any, where: object) -> Shape:
    """Keys and values as a model. Raises ConfigError for the first that does not fit, with its key in `where`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None


def parsed(text: str, source: str) -> Any:
    """The value of a YAML text. Raises ConfigError, with the line in `source`, for malformed text and for aliases."""
    try:
        return yaml.load(text, Loader=_plain_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        said = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{source}:{line}: not YAML: {said}") from None
    except (ValueError, TypeError, RecursionError) as error:  # a number or date out of range, a list as key, nesting
        raise ConfigError(f"{source}: cannot be read: {type(error).__name__}: {str(error)[:200]}") from None


def _check_keys(path: Path, values: dict[Any, Any]) -> None:
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"{path}: the key {quoted(key)} is no text; write it in quotes, or mend it")
        if isinstance(value, dict):
            _check_keys(path, value)
