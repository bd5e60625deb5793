"""The keys of `steprag infer`."""

from __future__ import annotations

import argparse

from pydantic import Field

from steprag.config import StageConfig, add_options, config_from
from steprag.policy.budget import BudgetConfig
from steprag.sections import EpisodeConfig, JournalConfig, PolicyConfig, Positive, PromptConfig, RetrieverConfig


class GreedyConfig(PolicyConfig):
    """The policy of inference: greedy unless a temperature is given."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")


class InferConfig(StageConfig):
    """`steprag infer` and `steprag ask`."""

    policy: GreedyConfig = GreedyConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    prompt: PromptConfig = PromptConfig()
    episode: EpisodeConfig = EpisodeConfig()
    critic: str | None = Field(
        default=None, description="checkpoint of a step critic: it chooses among candidates and best_of"
    )
    candidates: Positive = Field(default=1, description="completions sampled for each step; the critic takes the best")
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


def infer_config(given: argparse.Namespace) -> InferConfig:
    """The configuration that the parsed options of `add_infer_options` describe."""
    short = {"policy__model": given.model, "policy__adapter": given.adapter, "policy__base_url": given.base_url}
    return config_from(InferConfig, given, **short)
