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
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from steprag.config.env_file import without_env
from steprag.config.sections import RetrieverConfig, Section
from steprag.config.words import OPTION, SEVERAL, options_meant, resolve_option, shape_of, short_usage, show_help
from steprag.console.progress import say
from steprag.errors import ConfigError, DataError, nearest, quoted
from steprag.net.hosts import is_local
from steprag.records.jsonl import plain, read_json
from steprag.records.yaml_files import parsed, read_yaml

PREFIX = "STEPRAG_"
INDEX = "index"
"""The key of a recipe, and the option, that name what is searched."""
RUNS = "runs"
"""Where commands make the folders that nobody named, and look for an index."""
INDEXES = "indexes"
"""Where FlashRAG's commands put an index, and those of ours look too."""
PASSAGES = "passages.jsonl"
NEWEST = f"the recipe's, else the newest under {RUNS} or {INDEXES}"
RECIPES = Path(__file__).parents[2] / "configs"


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
    list_keys = {key for key, field in leaves(cls) if shape_of(field.annotation) == SEVERAL}
    for layer in (base or {}, recipe, _nested(environment(cls), list_keys), _nested(overrides or {}, list_keys)):
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
            _tell_of_key(file, url, section.key_variable, named=section.key_variable in said.values())
    return config


def _tell_of_key(file: str | None, url: str | None, variable: str | None, *, named: bool = False) -> None:
    """Warns if a recipe, which may be a stranger's, decides who gets a key. `named`: it names the variable too."""
    if url and variable and (named or (os.environ.get(variable) and not is_local(url))):
        say(f"warning: {file} sends what ${variable} holds to {url[:200]}; is that endpoint yours?")


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


def _nested(dotted: Mapping[str, Any], list_keys: Collection[str] = ()) -> Values:
    """{"a.b": "1"} as {"a": {"b": 1}}; later keys win. `list_keys` hold lists, whose text may be "a" or "a,b"."""
    values: Values = {}
    for key, value in dotted.items():
        *sections, leaf = key.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        said = _scalar(value)
        if key in list_keys and isinstance(said, str):
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


def index_of(arguments: argparse.Namespace, *, newest: bool = True) -> str:
    """What `--index` names, or else the recipe's key `index`, or else the `newest` index, and says so. Raises
    ConfigError where there is none.
    """
    recipe = read_yaml(Path(arguments.config)) if arguments.index is None and arguments.config is not None else {}
    named = recipe.get(INDEX) if arguments.index is None else arguments.index
    if isinstance(named, str) and named:
        if recipe and "://" in named:
            said = recipe.get("retriever")
            token = said.get("token_env") if isinstance(said, dict) else None
            _tell_of_key(arguments.config, named, str(token or RetrieverConfig().token_env))
        return named
    if named is not None:
        where = arguments.config if arguments.index is None else "--index"
        raise ConfigError(f"{where}: index names a folder, a URL or a file, not {quoted(named)}")
    if newest and (found := _newest_index()):
        say(f"index: {found}, the newest under {RUNS} or {INDEXES}; --index names another")
        return found
    raise ConfigError(
        f"there is no index under {RUNS} or {INDEXES}: give --index, or a recipe (--config FILE) with the key index; "
        "scripts/quickstart.sh builds runs/demo/index"
    )


def _newest_index() -> str | None:
    """The index folder in `RUNS` or `INDEXES`, or in a folder of these, that was finished last."""
    places = [Path(top).glob(f"{depth}/manifest.json") for top in (RUNS, INDEXES) for depth in ("*", "*/*")]
    manifests = [file for found in places for file in found]
    for file in sorted(manifests, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            if file.with_name(PASSAGES).is_file() and read_json(file).get("stage") == INDEX:
                return str(file.parent)
        except (DataError, OSError) as error:
            say(f"index: passing over {file.parent}: {error}")
    return None


def options_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The dotted options that were given, as text."""
    return {key.removeprefix(OPTION): value for key, value in vars(arguments).items() if key.startswith(OPTION)}


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Like `parser.parse_args`, but an unknown option is a ConfigError that names the nearest known one.

    An option may be typed with dashes for underlines, and a key without its section where that leaves no doubt;
    `--config` takes a recipe's name for its file. Ends behind the help that is asked for (`show_help`).
    """
    argv = without_env(argv)
    parser.allow_abbrev = False  # a shortened option would hide a misspelt one
    parser.usage, known = short_usage(parser), [*_options(parser)]
    show_help(parser, argv)
    arguments, rest = parser.parse_known_args([resolve_option(word, known) for word in argv])
    if rest not in ([], ["--"]):  # the last word of ReasonRAG's own command line
        name = rest[0].split("=")[0]
        if several := options_meant(name, known) if name.startswith("--") else []:
            raise ConfigError(f"{parser.prog}: {name} may be {' or '.join(several)}; name its section")
        short = [f"--{one.rpartition('.')[2]}" for one in known if one.count(".") == 1]
        raise ConfigError(f"{parser.prog}: unknown option {quoted(name)}{nearest(name, [*known, *short])}")
    words = parser.prog.split()[1:]
    word = words[-1] if words and words[-1] in _KIND else next(iter(words), "")  # "plan infer" is of infer
    if getattr(arguments, "config", None):
        arguments.config = _recipe(arguments.config, word)
    elif word in _KIND and (found := _recipe_of_model(options_from(arguments), _KIND[word])):
        say(f"recipe: {found}, which is that of --model; --config names another")
        arguments.config = str(found)
    return arguments


_KIND = {**dict.fromkeys(("adapt", "generate", "plan", "trees"), "generation"),
         **dict.fromkeys(("infer", "ask", "serve"), "inference")}  # fmt: skip
"""Of the recipes that several stages have by one name: whose a command takes."""


def _recipe(named: str, word: str) -> str:
    """The file that `--config` names, or the recipe of ours of that name; of several that of the stage whose command
    begins with the word. Raises ConfigError where there is neither.
    """
    if Path(named).exists() or "/" in named:
        return named
    kinds = ("generation", "index", "inference", "preference", "training")
    recipes = [file for kind in kinds for file in RECIPES.glob(f"{kind}/*.yaml")]
    found = [file for file in recipes if named in (file.stem, file.name)]
    found = [file for file in found if file.parent.name == _KIND.get(word)] or found
    if len(found) > 1:
        raise ConfigError(f"--config {quoted(named)}: several recipes have that name: {', '.join(map(str, found))}")
    if not found:
        known = nearest(named, [file.stem for file in recipes])
        raise ConfigError(f"--config {quoted(named)}: no such file, and no recipe of that name{known}")
    return str(found[0])


def _recipe_of_model(given: Mapping[str, Any], kind: str) -> Path | None:
    """The stage's recipe that bears the name of the model which options name alone, and that is for it."""
    name = given.get("policy.model")
    file = RECIPES / kind / f"{name}.yaml"
    if not name or {"policy.engine", "policy.base_url"} & {*given} or "/" in name or not os.path.isfile(file):
        return None
    return file if read_yaml(file).get("policy", {}).get("model") == name else None


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
