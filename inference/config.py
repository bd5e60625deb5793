"""The keys of `steprag infer`."""

from __future__ import annotations

from pydantic import Field

from steprag.budget import BudgetConfig
from steprag.config import PolicyConfig, Positive, PromptConfig, RetrieverConfig, Section, StageConfig


class EpisodeConfig(Section):
    depth: Positive = Field(default=7, description="steps in an episode at most; the last can only be an answer")


class InferConfig(StageConfig):
    policy: PolicyConfig = PolicyConfig(temperature=0.0)
    retriever: RetrieverConfig = RetrieverConfig()
    prompt: PromptConfig = PromptConfig()
    search: EpisodeConfig = EpisodeConfig()
    critic: str | None = Field(default=None, description="checkpoint of a step critic that chooses among candidates")
    candidates: Positive = Field(default=1, description="completions sampled for each step; the critic takes the best")
    limit: Positive | None = Field(default=None, description="use the first so many questions only")
    budget: BudgetConfig = BudgetConfig()
    seed: int = Field(default=0, description="seeds the sampling where temperature is above 0")
