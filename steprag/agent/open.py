"""Opens the agent: its environment, its models, and how fast they may be asked.

Search, worked episodes, inference, questions on the command line and reinforcement learning all use `open_agent`, so a
model is never trained on a prompt that it will not see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from steprag.agent.checkpoints import checked_profile
from steprag.agent.environment import Environment
from steprag.agent.judge import ScoreFormat
from steprag.agent.profiles import PromptProfile
from steprag.agent.retriever import Retriever, Tooled
from steprag.config.sections import EpisodeConfig, JudgeConfig, PolicyConfig, PromptConfig
from steprag.policy.client import Model, open_model, open_policy
from steprag.policy.gate import Gate

SERVED = ("engine", "model", "adapter", "base_url", "api_key_env")
"""Keys of policy and judge that decide who serves them; where all are equal, one engine and one gate serve both."""


class AgentConfig(Protocol):
    """The sections that decide what the agent is."""

    @property
    def policy(self) -> PolicyConfig:
        """The model that writes steps: who serves it, and how it samples."""
        ...

    @property
    def prompt(self) -> PromptConfig:
        """The prompt profile, and how many worked examples it shows."""
        ...

    @property
    def episode(self) -> EpisodeConfig:
        """Depth in steps, and passages a query."""
        ...


@dataclass(frozen=True)
class Agent:
    """Ready to play: `policy` writes the steps of episodes in `environment`. `judge`: only where one was asked for."""

    environment: Environment
    policy: Model
    judge: Model | None = None


def make_environment(profile: PromptProfile, retriever: Retriever, episode: EpisodeConfig) -> Environment:
    """The agent's world with these prompts and bounds; where the retriever has tools, with their names in grammar and
    prompt. Raises ConfigError where the profile has no place to show them.
    """
    if isinstance(retriever, Tooled):
        profile = profile.with_tools(retriever.tools)
    return Environment(profile, retriever, episode.top_k, episode.depth, episode.chars, episode.screen)


@asynccontextmanager
async def open_agent(
    config: AgentConfig,
    retriever: Retriever,
    *,
    environment: Environment | None = None,
    judge: JudgeConfig | None = None,
) -> AsyncIterator[Agent]:
    """The agent that `config` describes. Engines that do not run yet are started, and stopped with the block.

    `environment`: where a caller has made it already, prompts checked. Waits for the retriever, so that
    nothing is paid for an index that does not load. Raises ConfigError, DataError, PolicyUnavailable, PolicyRefused.
    """
    if environment is None:
        environment = make_environment(checked_profile(config.prompt, config.policy), retriever, config.episode)
    await retriever.ready()
    grammar, asked = environment.profile.grammar, config.policy
    if judge is None:
        async with open_model(asked, grammar) as policy:
            yield Agent(environment, policy)
    elif any(getattr(asked, key) != getattr(judge, key) for key in SERVED):
        async with open_model(asked, grammar) as policy, open_model(judge, ScoreFormat()) as judging:
            yield Agent(environment, policy, judging)
    else:
        both = asked.model_copy(update={"context": max(asked.context, judge.context)})
        gate = Gate(asked)
        async with open_policy(both, grammar) as policy, policy.beside(judge, ScoreFormat()) as judging:
            yield Agent(environment, Model(policy, gate), Model(judging, gate))
