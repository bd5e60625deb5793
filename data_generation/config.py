"""The keys of `steprag generate`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steprag.config import PolicyConfig, Positive, PromptConfig, RetrieverConfig, Section, StageConfig


class SearchConfig(Section):
    rollouts: Positive = Field(default=8, description="iterations a tree: select, expand, play to an answer, back up")
    children: Positive = Field(default=3, description="siblings sampled where a node is expanded")
    depth: Positive = Field(default=7, description="steps in an episode at most; the last can only be an answer")
    exploration: float = Field(default=1.414, ge=0, description="UCT's constant c; greater visits the less known more")


class RewardConfig(Section):
    name: Literal["spre"] = Field(default="spre", description="spre: the answer's F1 × alpha^steps")
    alpha: float = Field(default=0.9, gt=0, le=1, description="discount a step")


class GenerateConfig(StageConfig):
    policy: PolicyConfig = PolicyConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    prompt: PromptConfig = PromptConfig()
    search: SearchConfig = SearchConfig()
    reward: RewardConfig = RewardConfig()
    limit: Positive | None = Field(default=None, description="use the first so many questions only")
    seed: int = Field(default=0, description="seeds every sample, together with question and node")
