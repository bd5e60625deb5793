"""Configuration: one way to fill the typed sections of a command (`steprag.config.sections`).

Precedence: command line over environment (`STEPRAG_SEARCH__ROLLOUTS=32`) over file (`--config`) over default. Each
command lists its sections in a `StageConfig` of its own, and a section means one thing in all of them. An unknown key
is a ConfigError that names the nearest known one; a variable of the environment may be meant for another command.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from steprag.config.bare import parse_known, parser_of
from steprag.config.env_file import without_env
from steprag.config.recipes import INDEX, KIND, fit_recipe, recipe_named, recipe_of_model, warn_of_key
from steprag.config.sections import Section
from steprag.config.words import (
    OPTION,
    SEVERAL,
    resolve_options,
    shape_of,
    short_usage,
    show_help,
    unknown_option,
)
from steprag.console.progress import say
from steprag.errors import ConfigError, nearest, quoted
from steprag.records.jsonl import plain
from steprag.records.yaml_files import parsed, read_yaml

PREFIX = "STEPRAG_"


class StageConfig(Section):
    """Base of a command's configuration; `load_config` fills it.

    `names_index`: a recipe may also say `index`, which stands in for `--index` (`index_of`) and is no key beside it.
    """

    names_index: ClassVar[bool] = False


Config = TypeVar("Config", bound=StageConfig)
Values = dict[str, Any]
"""Sections and keys, nested as in a recipe."""


def load_config(
    cls: type[Config], file: str | None = None, overrides: Mapping[str, Any] | None = None, base: Values | None = None
) -> Config:
    """The configuration of a command.

    `overrides` maps dotted keys to values (text as a command line gives it, or typed); `base` holds sections that
    stand in for the defaults. Raises ConfigError for an unknown key, naming the nearest known one, or a bad value.
    """
    recipe = read_yaml(Path(file)) if file is not None else {}
    if cls.names_index:
        recipe = {key: value for key, value in recipe.items() if key != INDEX}
    values: Values = {}
    shapes = {key: shape_of(field.annotation) for key, field in leaves(cls)}
    for layer in (base or {}, recipe, _nested(environment(cls), shapes), _nested(overrides or {}, shapes)):
        values = merge(cls, values, layer)
    try:
        config = cls.model_validate(values)
    except ValidationError as error:
        message = _explain(cls, error)
        raise ConfigError(f"{file}: {message}" if error_in_recipe(error, recipe) else message) from None
    for name, said in recipe.items():
        section = getattr(config, name)
        url = said.get("base_url") if isinstance(said, dict) else None
        if said is not None and isinstance(section, Section) and url == vars(section).get("base_url"):
            warn_of_key(file, url, section.key_variable, named=section.key_variable in said.values())
    return config


def environment(cls: type[StageConfig]) -> dict[str, str]:
    """The dotted keys of `cls` that variables STEPRAG_SECTION__KEY set, as text.

    Variables of other commands' keys are ignored. Raises ConfigError for a key that no command has. Names without "__"
    set keys outside sections; the other such names are no keys (STEPRAG_CACHE, a token's name).
    """
    own, given, foreign = {key for key, _ in leaves(cls)}, {}, {}
    for name, value in os.environ.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        if key in own:
            given[key] = value
        elif "." in key:
            foreign[key] = name
    if foreign and (unknown := sorted(foreign.keys() - (known := _every_key()))):
        raise ConfigError(f"${foreign[unknown[0]]}: {_unknown(unknown[0], sorted(known))}")
    return given


def _every_key() -> set[str]:
    """The dotted keys of all commands. Loads their configurations, which need no extra.

    The table of them stands on the top floor; the entry point `configurations` of the group `steprag` names it.
    """
    found = importlib.metadata.entry_points(group="steprag", name="configurations")
    if not found:
        raise ConfigError(
            "steprag is not installed whole: its entry point `configurations` is missing; install it again"
        )
    return {key for point in found for cls in point.load()() for key, _ in leaves(cls)}


def _nested(dotted: Mapping[str, Any], shapes: Mapping[str, str]) -> Values:
    """{"a.b": "1"} as {"a": {"b": 1}}; later keys win. `shapes` (`shape_of`): a list's text may be "a" or "a,b", and
    `none` is a word where it is one of a key's choices.
    """
    values: Values = {}
    for key, value in dotted.items():
        *sections, leaf = key.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        shape = shapes.get(key, "")
        said = value if value == "none" and value in shape.split("|") else _scalar(value)
        if shape == SEVERAL and isinstance(said, str):
            said = [part for part in re.split(r",(?! )", said) if part]
        section[leaf] = said
    return values


def merge(cls: type[BaseModel], below: Values, above: Values) -> Values:
    """`below` updated by `above`, section by section of `cls`; a value is replaced whole, also a mapping."""
    both = dict(below)
    for key, value in above.items():
        old, section = both.get(key), _section(cls, key)
        if section is not None and value is None:  # all its keys are comments
            continue
        both[key] = value
        if section is not None and isinstance(value, dict):
            both[key] = merge(section, old if isinstance(old, dict) else {}, value)
    return both


def _section(cls: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The class of the section of that name; None where the name is a key's, or unknown."""
    kind = cls.model_fields[name].annotation if name in cls.model_fields else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def with_preset(cls: type[BaseModel], given: Values, presets: Mapping[str, Values], name: object) -> Values:
    """The given values over the preset of that name, or alone: validation refuses unknown names."""
    preset = presets.get(name) if isinstance(name, str) else None
    return merge(cls, preset or {}, given)


def error_in_recipe(error: ValidationError, recipe: Values) -> bool:
    """Whether the first complaint is about something that the recipe says."""
    value: Any = recipe
    for part in error.errors()[0]["loc"]:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return bool(recipe)


def leaves(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every dotted key of a configuration with its field."""
    for name, field in cls.model_fields.items():
        if section := _section(cls, name):
            yield from leaves(section, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def add_options(parser: argparse.ArgumentParser, cls: type[StageConfig]) -> None:
    """`--config FILE` and one `--dotted.key` for every leaf, with its description and default in the help."""
    parser.add_argument("--config", metavar="FILE", help="YAML recipe; options below override it")
    group = parser.add_argument_group("configuration")
    for key, field in leaves(cls):
        default = field.get_default(call_default_factory=True)
        text = f"{field.description or ''} [{'none' if default is None else default}]".replace("%", "%%")
        shape = shape_of(field.annotation)
        group.add_argument(f"--{key}", dest=f"{OPTION}{key}", default=argparse.SUPPRESS, metavar=shape, help=text)


def config_from(cls: type[Config], arguments: argparse.Namespace, **shortcuts: Any) -> Config:
    """The configuration that parsed arguments describe. `shortcuts` are dotted keys ("__" for ".") set by other
    options.
    """
    given = options_from(arguments)
    short = {key.replace("__", "."): value for key, value in shortcuts.items() if value is not None}
    return load_config(cls, arguments.config, {**given, **short})


def options_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The dotted options that were given, as text."""
    return {key.removeprefix(OPTION): value for key, value in vars(arguments).items() if key.startswith(OPTION)}


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Like `parser.parse_args`, but an unknown option is a ConfigError that names the nearest known one.

    An option may be typed with dashes for underlines, and a key without its section where that leaves no doubt;
    `--config` takes a recipe's name for its file. What the command is about may stand bare (`steprag.config.bare`).
    Ends behind the help that is asked for (`show_help`).
    """
    argv = without_env(argv)
    parser.allow_abbrev = False  # a shortened option would hide a misspelt one
    known, chosen = [*_options(parser)], parser_of(parser, argv)
    chosen.usage = short_usage(chosen)
    show_help(chosen, argv)
    arguments, unknown = parse_known(parser, chosen, resolve_options(argv, known))
    if unknown:
        raise unknown_option(chosen, unknown[0].split("=")[0], known)
    words = parser.prog.split()[1:]
    word = words[-1] if words and words[-1] in KIND else next(iter(words), "")  # "plan infer" is of infer
    if getattr(arguments, "config", None):
        arguments.config = recipe_named(arguments.config, word)
    elif word in KIND and (found := recipe_of_model(options_from(arguments), KIND[word])):
        say(f"recipe: {found}, which is that of --model; --config names another")
        arguments.config = str(found)
        fit_recipe(vars(arguments), found)
    return arguments


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every option of a parser and of its subcommands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from _options(subcommand)


def _scalar(value: Any) -> Any:
    """Text from the command line as YAML would read it, so that `none`, `true` and numbers mean what they say."""
    if not isinstance(value, str):
        return value
    if value.lower() == "none":
        return None
    return parsed(value, "an option") if value.startswith(("[", "{")) else value


def _explain(cls: type[StageConfig], error: ValidationError) -> str:
    """One line for the first complaint: the dotted key, what is wrong with it, and the nearest known key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":  # a validator of ours, whose message says it all
        return f"{f'{key}: ' if key else ''}{first['msg'].removeprefix('Value error, ')}"
    if first["type"] != "extra_forbidden":
        return f"{key}: {plain(first['msg'])}, not {quoted(first['input'])}"
    known = [name for name, _ in leaves(cls)]
    return _unknown(key, known + sorted({name.rsplit(".", 1)[0] for name in known if "." in name}))


def _unknown(key: str, known: Sequence[str]) -> str:
    *sections, leaf = key.split(".")
    nested = ": {".join([*sections, f"{leaf}: …"]) + "}" * len(sections)
    hint = f"; in a file a section holds it: {nested}" if key in known else nearest(key, known)
    return f"unknown key {quoted(key)}{hint}"
