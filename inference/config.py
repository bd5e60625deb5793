"""The keys of `steprag infer`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from steprag.agent.open import SERVED
from steprag.config.load import StageConfig, add_options, environment, load_config, options_from
from steprag.config.sections import EpisodeConfig, JournalConfig, PolicyConfig, Positive, PromptConfig, RetrieverConfig
from steprag.engines.models import shipped_adapters
from steprag.policy.budget import BudgetConfig
from steprag.records.yaml_files import read_yaml

Config = TypeVar("Config", bound=StageConfig)
DEMO_INDEX = "runs/demo/index"
"""What quickstart.sh builds: the index that `ask` and `serve` answer from where none is named."""


class GreedyConfig(PolicyConfig):
    """The policy of inference: greedy unless a temperature is given."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")


class InferConfig(StageConfig):
    """`steprag infer` and `steprag ask`."""

    names_index: ClassVar[bool] = True

    policy: GreedyConfig = GreedyConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    prompt: PromptConfig = PromptConfig()
    episode: EpisodeConfig = EpisodeConfig()
    critic: str | None = Field(
        default=None, description="checkpoint of a step critic: it chooses among candidates and best_of"
    )
    candidates: Positive = Field(default=1, description="completions sampled for each step; the critic takes the best")
    uncertainty: float | None = Field(
        default=None, gt=0, description="nats a token beyond which an answer is not taken while another step may follow"
    )
    sample: Positive | None = Field(
        default=None, description="use so many questions only, drawn by the seed; limit counts among them"
    )
    limit: Positive | None = Field(default=None, description="use the first so many questions only")
    budget: BudgetConfig = BudgetConfig()
    journal: JournalConfig = JournalConfig()
    best_of: Positive = Field(
        default=1, description="episodes a question, with seeds of their own; the answer that most of them give counts"
    )
    seed: int = Field(default=0, description="seeds the sampling where temperature is above 0, and draws the sample")


def add_infer_options(parser: argparse.ArgumentParser) -> None:
    """Every key, and short names for those that say which model answers."""
    parser.add_argument("--model", metavar="M", help="short for --policy.model: name, path, checkpoint or adapter")
    parser.add_argument("--adapter", metavar="A", help="short for --policy.adapter")
    parser.add_argument("--base_url", metavar="URL", help="short for --policy.base_url")
    add_options(parser, InferConfig)


def config_of(
    cls: type[Config],
    given: argparse.Namespace,
    *,
    shipped: bool = False,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """The configuration that parsed options describe, `--model`, `--adapter` and `--base_url` among them.

    If no option names a model, the embedded one answers: with the best shipped adapter if `shipped`, else bare.
    `beside`: values of sections that are then not set otherwise.
    """
    short = {"policy.model": given.model, "policy.adapter": given.adapter, "policy.base_url": given.base_url}
    overrides = {**options_from(given), **{key: value for key, value in short.items() if value is not None}}
    recipe = read_yaml(Path(given.config)) if given.config is not None else {}
    keys = {f"{name}.{key}" for name, section in recipe.items() if isinstance(section, dict) for key in section}
    said, base = {*overrides, *environment(cls), *keys}, None
    if shipped and not {f"policy.{key}" for key in SERVED} & said:
        sections = {key.partition(".")[0] for key in said}
        silent = {name: values for name, values in (beside or {}).items() if name not in sections}
        base = {"policy": {"adapter": next(iter(shipped_adapters()))}, **silent}
    return load_config(cls, given.config, overrides, base)
