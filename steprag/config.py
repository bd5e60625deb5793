"""Configuration: typed sections, and one way to fill them.

Precedence: command line over environment (`STEPRAG_SEARCH__ROLLOUTS=32`) over file (`--config`) over default. Each
command lists its sections in a `StageConfig` of its own, and a section means one thing in all of them. An unknown key
is a ConfigError that names the nearest known one; a variable of the environment may be meant for another command.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from steprag.errors import ConfigError
from steprag.yaml_files import read_yaml

Positive = Annotated[int, Field(ge=1)]
PREFIX = "STEPRAG_"
OPTION = "config:"
"""Before the dotted key, where argparse keeps the value of an option that sets one."""
RENAMED = {
    **{f"search.{key}": f"ann.{key}" for key in ("recall", "nlist", "nprobe", "code_bytes", "bits", "links", "ef")},
    "search.rescore": "ann.rescore",
    "search.depth": "episode.depth",
    "grpo.depth": "episode.depth",
    "retriever.top_k": "episode.top_k",
}
"""Keys that had another name: the old one is refused with the new one."""
REMOTE = ("openai", "sglang")
"""Engines that are never started here, only asked."""


class Section(BaseModel):
    """A group of keys; unknown ones are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PriceConfig(Section):
    """Dollars a million tokens."""

    prompt: float = Field(default=0.0, ge=0, description="dollars a million prompt tokens")
    cached: float | None = Field(default=None, ge=0, description="the same, for cached prompt tokens; none: as prompt")
    completion: float = Field(default=0.0, ge=0, description="dollars a million completion tokens")


class RateConfig(Section):
    """How fast requests may leave; more wait."""

    requests: Positive | None = Field(default=None, description="requests a minute at most")
    tokens: Positive | None = Field(default=None, description="prompt and completion tokens a minute at most")


class PolicyConfig(Section):
    """The model that writes steps: what serves it, how it samples, what it costs."""

    engine: Literal["openai", "vllm", "sglang", "llamacpp", "transformers"] = Field(
        default="llamacpp", description="what serves the model; openai stands for any compatible endpoint"
    )
    model: str = Field(default="smollm2-135m-instruct", description="embedded name, path, hub id, or the served name")
    adapter: str | None = Field(
        default=None, description="LoRA adapter on a model that is started here: a folder, or atlas-warmstart"
    )
    base_url: str | None = Field(
        default=None, description="endpoint that runs already; without it the engine is started"
    )
    api_key_env: str = Field(default="OPENAI_API_KEY", description="environment variable that holds the key")
    concurrency: Positive = Field(
        default=4, description="requests in flight at once (slots, where the engine is started)"
    )
    context: Positive = Field(
        default=2048, description="tokens a request may have, answer included, where llamacpp or vllm is started"
    )
    temperature: float = Field(default=0.8, ge=0, le=5, description="sampling temperature; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling's share of probability")
    top_k: int = Field(default=0, ge=0, description="tokens that may be sampled, the likeliest ones; 0: all")
    min_p: float = Field(
        default=0.0, ge=0, lt=1, description="probability a sampled token needs, as a share of the likeliest's; 0: any"
    )
    max_tokens: Positive = Field(default=128, description="longest completion, in tokens")
    constrained: bool = Field(default=True, description="have the engine force the step grammar, where it can")
    timeout: float = Field(default=300.0, gt=0, description="seconds until a request counts as lost")
    retries: int = Field(default=4, ge=0, description="tries again after 429, 5xx and lost connections")
    rate: RateConfig = RateConfig()
    price: PriceConfig = PriceConfig()

    @model_validator(mode="after")
    def _sampling_is_known(self) -> Self:
        if (self.top_k or self.min_p) and self.engine in ("openai", "transformers"):
            raise ValueError(f"top_k and min_p are for llamacpp, vllm and sglang; engine {self.engine} takes neither")
        return self

    @model_validator(mode="after")
    def _adapter_is_used(self) -> Self:
        if self.adapter is not None and self.remote:  # it would be left out, and the base scored in its name
            raise ValueError(
                f"adapter {self.adapter!r} cannot be put on a model behind an endpoint (base_url, or engine openai or "
                "sglang); serve it there, give its served name as model, and adapter none"
            )
        return self

    @model_validator(mode="after")
    def _endpoint_is_known(self) -> Self:
        if self.engine == "sglang" and self.base_url is None:  # its requests would go to OpenAI
            raise ValueError("engine sglang is not started here; give the base_url of one that runs")
        return self

    @property
    def remote(self) -> bool:
        """Whether an endpoint that runs already serves the model; `model` is then a name there, and no file here."""
        return self.base_url is not None or self.engine in REMOTE


class JudgeConfig(PolicyConfig):
    """The judge is a policy of its own; its replies are short and not sampled."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")
    max_tokens: Positive = Field(default=16, description="longest reply, in tokens")


class EpisodeConfig(Section):
    """What every episode is bound to, whoever plays it: a search, inference, a conversation, training."""

    depth: Positive = Field(default=7, description="steps in an episode at most; the last can only be an answer")
    top_k: Positive = Field(default=3, description="passages a query brings")


class RetrieverConfig(Section):
    """How passages are found in an index, or asked for at a service."""

    mode: Literal["auto", "dense", "sparse", "hybrid"] = Field(
        default="auto", description="how passages are ranked; auto: hybrid where the index has both, else the one"
    )
    fusion: Literal["scores", "rrf"] = Field(
        default="scores", description="how hybrid fuses: weighted scores, or reciprocal ranks"
    )
    dense_weight: float = Field(
        default=0.4, ge=0, le=1, description="what the vectors count in hybrid; the sparse ranking the rest"
    )
    links: float = Field(
        default=0.0, ge=0, description="what a passage gains whose title the best ones mention; 0: nothing, 0.6 is good"
    )
    reranker: str | None = Field(default=None, description="cross-encoder that orders anew: a folder or a hub id")
    candidates: Positive = Field(default=50, description="passages that the cross-encoder reads for a query")
    cache: str | None = Field(default=None, description="file that keeps searches for other runs; none: memory only")
    preload: bool = Field(default=True, description="load the weights at opening; false: at the first search")
    timeout: float = Field(default=30.0, gt=0, description="seconds until a request to a service counts as lost")
    retries: int = Field(default=4, ge=0, description="tries again after 429, 5xx and lost connections")
    token_env: str = Field(
        default="STEPRAG_RETRIEVER_TOKEN", description="environment variable that holds a service's token"
    )


class PromptConfig(Section):
    """The prompt profile and its worked examples."""

    profile: str = Field(default="transcript", description="prompt profile: a name in configs/prompts or a YAML file")
    examples: int = Field(default=0, ge=0, description="worked examples in the system prompt")
    unchecked: bool = Field(default=False, description="use a checkpoint with prompts that it was not trained on")


class StageConfig(Section):
    """Base of a command's configuration; `load_config` fills it."""


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
    values: Values = {}
    for layer in (base or {}, recipe, _nested(environment(cls)), _nested(overrides or {})):
        values = _over(values, layer)
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        told = _explain(cls, error)
        raise ConfigError(f"{file}: {told}" if _stands_in(error, recipe) else told) from None


def environment(cls: type[StageConfig]) -> dict[str, str]:
    """The dotted keys of `cls` that variables STEPRAG_SECTION__KEY set, as text.

    A variable of a key that another command has is left to it. Raises ConfigError for one that no command has. Names
    without "__" set the keys that stand in no section; others of them are no keys (STEPRAG_CACHE, a token's name).
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
    """The dotted keys of all commands. Loads their configurations, which need no extra."""
    from steprag.cli import CONFIGS

    places = [each.split(":") for each in CONFIGS]
    return {key for module, name in places for key, _ in leaves(getattr(importlib.import_module(module), name))}


def _nested(dotted: Mapping[str, Any]) -> Values:
    """{"a.b": "1"} as {"a": {"b": 1}}; later keys win."""
    values: Values = {}
    for key, value in dotted.items():
        *sections, leaf = key.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[leaf] = _scalar(value)
    return values


def _over(below: Values, above: Values) -> Values:
    """Both, section by section; where both have a key, `above` wins."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def with_preset(given: Values, presets: Mapping[str, Values], name: object) -> Values:
    """What is given over the preset of that name, or alone where there is none: validation refuses unknown names."""
    preset = presets.get(name) if isinstance(name, str) else None
    return _over(preset or {}, given)


def _stands_in(error: ValidationError, recipe: Values) -> bool:
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
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def add_options(parser: argparse.ArgumentParser, cls: type[StageConfig]) -> None:
    """`--config FILE` and one `--dotted.key` for every leaf, with its description and default in the help."""
    parser.add_argument("--config", metavar="FILE", help="YAML recipe; options below override it")
    group = parser.add_argument_group("configuration")
    for key, field in leaves(cls):
        default = field.get_default(call_default_factory=True)
        text = f"{field.description or ''} [{'none' if default is None else default}]".replace("%", "%%")
        group.add_argument(f"--{key}", dest=f"{OPTION}{key}", default=argparse.SUPPRESS, metavar="X", help=text)


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
    """Like `parser.parse_args`, but an unknown option is a ConfigError that names the nearest known one."""
    parser.allow_abbrev = False  # a shortened option would hide a misspelt one
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        name = rest[0].split("=")[0]
        raise ConfigError(f"{parser.prog}: unknown option {name!r}{nearest(name, [*_options(parser)])}")
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
    return yaml.safe_load(value) if value.startswith(("[", "{")) else value


def _explain(cls: type[StageConfig], error: ValidationError) -> str:
    """One line for the first complaint: the dotted key, what is wrong with it, and the nearest known key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":  # a validator of ours, whose message says it all
        return f"{f'{key}: ' if key else ''}{first['msg'].removeprefix('Value error, ')}"
    if first["type"] != "extra_forbidden":
        return f"{key}: {first['msg'].lower()}, not {repr(first['input'])[:80]}"
    known = [name for name, _ in leaves(cls)]
    return _unknown(key, known + sorted({name.rsplit(".", 1)[0] for name in known if "." in name}))


def _unknown(key: str, known: Sequence[str]) -> str:
    if key in RENAMED:
        return f"{key} is now {RENAMED[key]}"
    return f"unknown key {key!r}{nearest(key, known)}"


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the known one that is meant, or what is known."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known)[:40])}"
