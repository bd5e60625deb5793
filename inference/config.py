"""The keys of `steprag infer`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from steprag import atlas
from steprag.agent.citations import Support
from steprag.agent.open import SERVED
from steprag.config.load import StageConfig, environment, load_config, options_from
from steprag.config.sections import (
    EXTRACTIVE,
    EpisodeConfig,
    JournalConfig,
    PolicyConfig,
    Positive,
    PromptConfig,
    RetrieverConfig,
)
from steprag.console.progress import say
from steprag.engines.models import shipped_adapters
from steprag.policy.budget import BudgetConfig
from steprag.records.jsonl import files_hash, read_json
from steprag.records.yaml_files import read_yaml

Config = TypeVar("Config", bound=StageConfig)
READS = 8
"""Passages that a search brings the extractive reader."""
ASKS = {"policy": {"model": EXTRACTIVE}, "episode": {"top_k": READS}}
"""Of an index that the shipped model was not trained on: what answers from it, where nothing else is said."""
BETTER = (
    "answers are sentences of the documents as they stand. For written ones name a model: --base_url URL --model NAME"
)
"""What the extractive reader does, and what gives a better answer."""
DEMO_INDEX = "runs/demo/index"
"""What quickstart.sh builds; the page offers questions that it can answer."""
LEAST_SCORE = 0.42
"""In the demo's index the first search of 53 questions that it can answer found passages of 0.50 and more; of four that
it cannot answer ("Who wrote Hamlet?"), 0.24 to 0.33.
"""


class GreedyConfig(PolicyConfig):
    """The policy of inference: greedy unless a temperature is given."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")


class InferConfig(StageConfig):
    """`steprag infer` and `steprag ask`."""

    names_index: ClassVar[bool] = True

    policy: GreedyConfig = Field(default_factory=GreedyConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    critic: str | None = Field(
        default=None, description="checkpoint of a step critic: it chooses among candidates and best_of"
    )
    candidates: Positive = Field(default=1, description="completions sampled for each step; the critic takes the best")
    sample: Positive | None = Field(
        default=None, description="use so many questions only, drawn by the seed; limit counts among them"
    )
    limit: Positive | None = Field(default=None, description="use the first so many questions only")
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    journal: JournalConfig = Field(default_factory=JournalConfig)
    best_of: Positive = Field(
        default=1, description="episodes a question, with seeds of their own; the answer that most of them give counts"
    )
    seed: int = Field(default=0, description="seeds the sampling where temperature is above 0, and draws the sample")


def support_for(index: str, least: float | None = None, *, on: bool = True) -> Support:
    """When an answer from an index counts as found. `least`: the score that is asked of the first search."""
    return Support(on, LEAST_SCORE if least is None and index == DEMO_INDEX else least)


def config_of(
    cls: type[Config],
    given: argparse.Namespace,
    *,
    index: str | None = None,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
    tell: bool = True,
) -> Config:
    """The configuration that parsed options describe; says which model answers, unless `tell` is off.

    Where nothing names a model, nor other prompts than it was trained on, the embedded one answers with the best
    shipped adapter; from an `index` of anything but Atlas, which it was trained on, the extractive reader does.
    `beside`: values of sections that are then not set otherwise.
    """
    overrides = options_from(given)
    said = {*overrides, *environment(cls), *_keys_of(given.config)}
    base = None
    if not {"prompt.profile", "prompt.examples", *(f"policy.{key}" for key in SERVED)} & said:
        silent = {name for name in beside or {} if not any(key.startswith(f"{name}.") for key in said)}
        chosen = {"policy": {"adapter": next(iter(shipped_adapters()))}} if index is None or of_atlas(index) else ASKS
        base = {**chosen, **{name: (beside or {})[name] for name in silent}}
    config = load_config(cls, given.config, overrides, base)
    if tell:
        _tell(vars(config)["policy"], chosen=base is not None)
    return config


def of_atlas(index: str) -> bool:
    """Whether an index is one of Atlas' passages, or of tools, which only a model can call."""
    if index.endswith((".yaml", ".yml")):
        return "web" not in read_yaml(Path(index))
    manifest = Path(index) / "manifest.json"
    identity = read_json(manifest).get("identity") if manifest.is_file() else None
    return isinstance(identity, dict) and identity.get("corpus") == files_hash([atlas.path("corpus")])


def _tell(policy: PolicyConfig, *, chosen: bool) -> None:
    """Says which model answers. `chosen`: nobody named it."""
    if policy.engine == EXTRACTIVE:
        say(f"model: none; {BETTER}")
        return
    name = f"{policy.model} with adapter {policy.adapter}" if policy.adapter else policy.model
    where = (
        f" at {policy.base_url[:200]}" if policy.base_url else f" by {policy.engine}" * (policy.engine != "llamacpp")
    )
    say(f"model: {name}{where}{', as none is named; --model names another, --adapter none leaves it' * chosen}")


def _keys_of(file: str | None) -> set[str]:
    """The dotted keys of a recipe."""
    recipe = read_yaml(Path(file)) if file is not None else {}
    return {f"{name}.{key}" for name, section in recipe.items() if isinstance(section, dict) for key in section}
