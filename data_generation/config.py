"""The keys of `steprag generate`, and its presets."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from steprag.config.load import StageConfig, with_preset
from steprag.config.sections import (
    EpisodeConfig,
    JournalConfig,
    JudgeConfig,
    PolicyConfig,
    Positive,
    PromptConfig,
    RetrieverConfig,
    Section,
)
from steprag.policy.budget import BudgetConfig
from steprag.policy.scoring import refusal

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "fast": {"search": {"rollouts": 4, "extra": 0, "children": 2, "contrast": 2, "hopeless": 3}},
    # The published loop (arXiv 2505.14069 and its code): one child and one judge call an iteration, the judge sees the
    # golden answer, nothing is played to its end, finished leaves are visited and judged again. Its `max_iter` of 7
    # does not count the forced answer.
    "reasonrag": {
        "search": {
            "rollouts": 64, "extra": 0, "children": 2, "siblings": 1, "exploration": 1.414, "wave": 1,
            "play": False, "revisit": True, "contrast": None, "hopeless": None,
        },
        "reward": {"name": "judge", "gold": True},
        "episode": {"depth": 8, "top_k": 3},
    },
}  # fmt: skip
"""What each preset sets; keys that the user gives win."""


class SearchConfig(Section):
    """How a tree grows: iterations, children, when it stops. Depth and top_k are the episode's."""

    preset: Literal["default", "reasonrag", "fast"] = Field(
        default="default", description="a set of search and reward keys; keys given beside it win"
    )
    rollouts: Positive = Field(default=16, description="iterations a tree: select, expand, play to an answer, back up")
    extra: int = Field(default=8, ge=0, description="more iterations for a tree with right and wrong answers by then")
    contrast: Positive | None = Field(
        default=4, description="stop a tree once it has this many right and this many wrong answers; none: never"
    )
    hopeless: Positive | None = Field(
        default=8, description="stop a tree without a right answer after this many iterations; none: never"
    )
    children: Positive = Field(default=3, description="children of a node")
    siblings: Positive | None = Field(default=None, description="children sampled in one request; none: all")
    play: bool = Field(default=True, description="play from a new child to an answer, step by step")
    revisit: bool = Field(default=False, description="visit finished leaves again (what the published loop does)")
    exploration: float = Field(default=1.414, ge=0, description="UCT's constant c; greater visits the less known more")
    wave: Positive = Field(default=2, description="leaves of one tree in flight at once")
    score: bool = Field(default=False, description="ask at each state for the belief in the golden answer; not openai")
    score_found: bool = Field(
        default=True, description="ask also at states with passages (long prompts); else what it found judges a search"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_drills(cls, given: Any) -> Any:
        """Manifests of earlier runs name `drill`; where it was not set, it says nothing."""
        if not isinstance(given, dict) or "drill" not in given:
            return given
        if given["drill"] not in (None, "none"):
            raise ValueError("search.drill is gone: take it out, and search more rollouts or children instead")
        return {key: value for key, value in given.items() if key != "drill"}


class RewardConfig(Section):
    """What a finished leaf is worth while its tree grows, from 0 to 1."""

    name: Literal["spre", "judge", "mixed", "gain"] = Field(
        default="spre",
        description="spre: the answer's F1 × alpha^steps; judge: a model's score; mixed: both; gain: the answers, "
        "and after steps that keep evidence the policy's belief in the golden answer (needs search.score)",
    )
    alpha: float = Field(default=0.9, gt=0, le=1, description="discount a step")
    weight: float = Field(default=0.5, ge=0, le=1, description="the judge's share, where mixed")
    gold: bool = Field(default=True, description="show the judge the golden answers")

    @property
    def judged(self) -> bool:
        """Whether a judge is asked, which costs requests."""
        return self.name in ("judge", "mixed")


class TreeLimits(Section):
    """Part of the recipe, unlike the run's budget: a tree that reaches one ends there, whatever the timing."""

    calls: Positive | None = Field(default=None, description="requests a tree may make before its next wave")
    tokens: Positive | None = Field(default=None, description="tokens a tree may use before its next wave")


class GenerateConfig(StageConfig):
    """`steprag generate`. A preset's keys stand below those that are given."""

    names_index: ClassVar[bool] = True

    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    tree: TreeLimits = Field(default_factory=TreeLimits)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    journal: JournalConfig = Field(default_factory=JournalConfig)
    trees_at_once: Positive | None = Field(default=None, description="trees at once; none: twice policy.concurrency")
    limit: Positive | None = Field(default=None, description="use the first so many questions only")
    seed: int = Field(default=0, description="seeds every sample, together with question and state")

    @model_validator(mode="after")
    def _can_score(self) -> Self:
        if self.reward.name == "gain" and not self.search.score:
            raise ValueError("reward.name gain needs search.score true")
        if self.search.score and (why := refusal(self.policy.engine)):
            raise ValueError(f"search.score: {why}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, given: dict[str, Any]) -> dict[str, Any]:
        search = given.get("search")
        name = search.get("preset") if isinstance(search, dict) else getattr(search, "preset", None)
        return with_preset(cls, given, PRESETS, name)
