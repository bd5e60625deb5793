"""The keys of `steprag pairs`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steprag.config import Positive, Section, StageConfig


class RewardConfig(Section):
    name: Literal["spre"] = Field(default="spre", description="spre: mean over the answers below of F1 × alpha^steps")
    alpha: float = Field(default=0.9, gt=0, le=1, description="discount a step")


class PairsConfig(Section):
    margin: float = Field(default=0.1, gt=0, le=1, description="least gap between the rewards of chosen and rejected")
    cross_action: bool = Field(
        default=True, description="pair siblings of different actions too (query against answer)"
    )
    per_node: Positive = Field(default=4, description="pairs from one prompt at most, widest margin first")


class SftConfig(Section):
    paths: Literal["shortest", "all"] = Field(default="shortest", description="right episodes kept from each tree")
    min_f1: float = Field(default=1.0, ge=0, le=1, description="answer F1 from which an episode counts as right")


class PairsStageConfig(StageConfig):
    reward: RewardConfig = RewardConfig()
    pairs: PairsConfig = PairsConfig()
    sft: SftConfig = SftConfig()
    validation: float = Field(default=0.1, ge=0, lt=1, description="share of questions kept for validation")
    seed: int = Field(default=0, description="decides which questions are kept for validation")
