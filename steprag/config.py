"""Configuration: typed sections, and one way to fill them.

Precedence: command line over environment (`STEPRAG_SEARCH__ROLLOUTS=32`) over file (`--config`) over default. An
unknown key is a ConfigError that names the nearest known one. Each stage lists its sections in a `StageConfig` of its
own.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from steprag.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
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
    requests: Positive | None = Field(default=None, description="requests a minute at most")
    tokens: Positive | None = Field(default=None, description="prompt and completion tokens a minute at most")


class PolicyConfig(Section):
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


class RetrieverConfig(Section):
    top_k: Positive = Field(default=3, description="passages a query brings")
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
    profile: str = Field(default="transcript", description="prompt profile: a name in configs/prompts or a YAML file")
    examples: int = Field(default=0, ge=0, description="worked examples in the system prompt")
    unchecked: bool = Field(default=False, description="use a checkpoint with prompts that it was not trained on")


class StageConfig(BaseSettings):
    """Base of a stage's configuration. `--config FILE`, the environment and dotted options fill it; see
    `load_config`.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="STEPRAG_", env_nested_delimiter="__")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options, environment, the YAML file whose path `load_config` passes as `__file__`, and its `__base__`."""
        options = dict(init_settings.init_kwargs) if isinstance(init_settings, InitSettingsSource) else {}
        path, base = options.pop("__file__", None), InitSettingsSource(settings_cls, options.pop("__base__", {}))
        above = InitSettingsSource(settings_cls, options), env_settings
        return (*above, YamlConfigSettingsSource(settings_cls, yaml_file=path), base) if path else (*above, base)


Config = TypeVar("Config", bound=StageConfig)


def load_config(
    cls: type[Config],
    file: str | None = None,
    overrides: dict[str, Any] | None = None,
    base: dict[str, Any] | None = None,
) -> Config:
    """The stage's configuration. `overrides` maps dotted keys to values (text as a command line gives it, or typed);
    `base` holds sections that stand in for the defaults.
    """
    values: dict[str, Any] = {"__base__": base or {}}
    for key, value in (overrides or {}).items():
        section = values
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = _scalar(value)
    if file is not None:
        _check_yaml(Path(file))
        values["__file__"] = file
    try:
        return cls(**values)
    except ValidationError as error:
        raise ConfigError(_explain(cls, error, file)) from None


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
        group.add_argument(f"--{key}", dest=f"config:{key}", default=argparse.SUPPRESS, metavar="X", help=text)


def config_from(cls: type[Config], arguments: argparse.Namespace, **shortcuts: Any) -> Config:
    """The configuration that parsed arguments describe. `shortcuts` are dotted keys ("__" for ".") set by other
    options.
    """
    given = options_from(arguments)
    short = {key.replace("__", "."): value for key, value in shortcuts.items() if value is not None}
    return load_config(cls, arguments.config, {**given, **short})


def options_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The dotted options that were given, as text."""
    return {key[7:]: value for key, value in vars(arguments).items() if key.startswith("config:")}


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Like `parser.parse_args`, but an unknown option is a ConfigError that names the nearest known one."""
    parser.allow_abbrev = False  # a shortened option would hide a misspelt one
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        options = [option for action in parser._actions for option in action.option_strings]
        name = rest[0].split("=")[0]
        raise ConfigError(f"{parser.prog}: unknown option {name!r}{nearest(name, options)}")
    return arguments


def _scalar(value: Any) -> Any:
    """Text from the command line as YAML would read it, so that `none`, `true` and numbers mean what they say."""
    if not isinstance(value, str):
        return value
    if value.lower() == "none":
        return None
    return yaml.safe_load(value) if value.startswith(("[", "{")) else value


def _check_yaml(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"configuration file not found: {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            f"{path}:{mark.line + 1 if mark else 1}: not YAML: {getattr(error, 'problem', error)}"
        ) from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(content).__name__}")


def _explain(cls: type[StageConfig], error: ValidationError, file: str | None) -> str:
    """One line for the first complaint: the dotted key, what is wrong with it, and the nearest known key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    where = f"{file}: " if file else ""
    if first["type"] == "value_error":  # a validator of ours, whose message says it all
        return f"{where}{f'{key}: ' if key else ''}{first['msg'].removeprefix('Value error, ')}"
    if first["type"] != "extra_forbidden":
        return f"{where}{key}: {first['msg'].lower()}, not {first['input']!r}"
    known = [name for name, _ in leaves(cls)]
    sections = sorted({name.rsplit(".", 1)[0] for name in known if "." in name})
    return f"{where}unknown key {key!r}{nearest(key, known + sections)}"


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the known one that is meant, or what is known."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known)[:40])}"
