"""The keys of `steprag infer`."""

from __future__ import annotations

from pydantic import Field

from steprag.budget import BudgetConfig
from steprag.config import PolicyConfig, Positive, PromptConfig, RetrieverConfig, Section, StageConfig


class EpisodeConfig(Section):
    depth: Positive = Field(default=7, description="steps in an episode at most; the last can only be an answer")


class GreedyConfig(PolicyConfig):
    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")


class InferConfig(StageConfig):
    policy: GreedyConfig = GreedyConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    prompt: PromptConfig = PromptConfig()
    search: EpisodeConfig = EpisodeConfig()
    critic: str | None = Field(
        default=None, description="checkpoint of a step critic: it chooses among candidates and best_of"
    )
    candidates: Positive = Field(default=1, description="completions sampled for each step; the critic takes the best")
    limit: Positive | None = Field(default=None, description="use the first so many questions only")
    budget: BudgetConfig = BudgetConfig()
    best_of: Positive = Field(
        default=1, description="episodes a question, with seeds of their own; the answer that most of them give counts"
    )
    seed: int = Field(default=0, description="seeds the sampling where temperature is above 0")
