"""The keys of `steprag serve`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from inference.config import GreedyConfig
from steprag.agent.open import SERVED as SERVED_KEYS
from steprag.config.load import StageConfig
from steprag.config.sections import EpisodeConfig, Names, PolicyConfig, Positive, PromptConfig, RetrieverConfig, Section
from steprag.policy.requests import STEPS_FORCED

SERVED = frozenset(SERVED_KEYS)


class ChatServiceConfig(Section):
    """Where the service listens, and what it lets people do."""

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond this machine only with a token")
    port: int = Field(default=8100, ge=0, le=65535, description="0 takes a free one")
    token_env: str = Field(default="STEPRAG_TOKEN", description="environment variable that holds the token; empty: "
                           "on this machine one is made up at each start")  # fmt: skip
    mode: str | None = Field(default="auto", description="what it does if nobody says: auto (talk, or search), "
                             "direct (talk), reasoning, local; with a web file web, and with its index search and "
                             "both")  # fmt: skip
    talk: bool = Field(
        default=True, description="mode auto answers small talk as direct does; false: it searches for all"
    )
    waiting: Positive = Field(default=64, description="turns accepted and not yet begun; more is 429")
    seconds: float = Field(default=120.0, gt=0, description="time for a turn from when it begins; more ends it")
    leave: float = Field(default=10.0, ge=0, description="seconds after the last listener left until a turn is ended")
    history: int = Field(default=10, ge=0, description="earlier turns that the rewriter reads")
    question_chars: Positive = Field(default=8192, description="characters in a question; more is 422")
    body_bytes: Positive = Field(default=2**20, description="longest request body; more is 413")
    examples: tuple[str, ...] = Field(default=(), description="questions that the page offers; of the demo's index, "
                                      "where none are given, three that it can answer")  # fmt: skip
    support: bool = Field(default=True, description="say so where nothing that was found supports an answer: none of "
                          "its words stands in a passage that was read, or least_score says so")  # fmt: skip
    least_score: float | None = Field(default=None, description="score that the best passage of the first search must "
                                      "have; scores mean something else in every index; none: not looked at, of "
                                      "the demo's index 0.42")  # fmt: skip
    hosts: Names = Field(default=(), description="further names, with commas between them, that the service answers "
                         "to, as a proxy's; this machine's own need not be named")  # fmt: skip
    files: int = Field(default=20, ge=0, description="files that people may add to a conversation; 0: none, anywhere")
    file_megabytes: Positive = Field(default=32, description="size of such a file; more is 413")
    file_passages: Positive = Field(default=10_000, description="passages of a conversation's files; more is 422")
    keep: bool = Field(default=True, description="write turns into the run folder; false: memory only")


class RewriterConfig(PolicyConfig):
    """The model that makes a question stand alone, given the turns before it."""

    on: bool | None = Field(default=None, description="rewrite questions that follow others; none: where the engine "
                            "can be held to a choice (llamacpp, vllm, sglang)")  # fmt: skip
    way: Literal["write", "choose"] | None = Field(
        default=None, description="write: the model writes the question; choose: it chooses which name a pronoun is "
                                  "for, as small models can; none: write where on is true, else choose")  # fmt: skip
    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")
    max_tokens: Positive = Field(default=96, description="longest rewritten question, in tokens")

    @property
    def enabled(self) -> bool:
        """Whether questions are rewritten."""
        return self.engine in STEPS_FORCED if self.on is None else self.on

    @property
    def chooses(self) -> bool:
        """Whether it chooses a name, rather than writing the question."""
        return self.way == "choose" or (self.way is None and not self.on)


class ModeConfig(Section):
    """A mode that does not search: its prompts, and the adapter that answers in it."""

    adapter: str | None = Field(default=None, description="LoRA adapter of the mode: a folder, a shipped one, or the "
                                "name that an endpoint serves it by (llama.cpp's: its file's); none: the model "
                                "without any, where the engine can")  # fmt: skip
    profile: str | None = Field(default=None, description="prompt profile, a name or a YAML file; none: talk for "
                                "direct, cot for reasoning")  # fmt: skip
    temperature: float = Field(default=0.7, ge=0, le=5, description="sampling temperature; 0 is greedy")
    max_tokens: Positive = Field(default=512, description="longest reply, in tokens")


class ModesConfig(Section):
    """The modes that do not search. In the others `policy.adapter` answers."""

    direct: ModeConfig = Field(default_factory=ModeConfig)
    reasoning: ModeConfig = Field(default_factory=ModeConfig)


class ChatConfig(StageConfig):
    """`steprag serve`. Unless `rewriter` names a model, the policy's model rewrites."""

    names_index: ClassVar[bool] = True

    policy: GreedyConfig = Field(default_factory=GreedyConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    rewriter: RewriterConfig = Field(default_factory=RewriterConfig)
    modes: ModesConfig = Field(default_factory=ModesConfig)
    serve: ChatServiceConfig = Field(default_factory=ChatServiceConfig)
    seed: int = Field(default=0, description="seeds the sampling where temperature is above 0")

    @model_validator(mode="before")
    @classmethod
    def _rewriter_is_served_as_the_policy(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(policy := values.get("policy", {}), dict):
            return values
        rewriter = values.get("rewriter", {})
        if not isinstance(rewriter, dict) or SERVED & rewriter.keys():
            return values
        return {**values, "rewriter": {**{key: policy[key] for key in SERVED & policy.keys()}, **rewriter}}
