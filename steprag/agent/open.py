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
from steprag.agent.judge import VerdictFormat
from steprag.agent.profiles import PromptProfile
from steprag.agent.reader import Reader
from steprag.agent.retriever import Retriever, Tooled
from steprag.config.sections import EXTRACTIVE, EpisodeConfig, JudgeConfig, PolicyConfig, PromptConfig
from steprag.engines.launch import vllm_is_for_cpus
from steprag.errors import ConfigError
from steprag.policy.gate import CHARS_A_TOKEN, Gate, chars_of
from steprag.policy.open import Model, open_model, open_policy
from steprag.types import State

PASSAGE_TOKENS = 150
"""Of a passage of 100 words, as Wikipedia is usually cut."""
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
class OpenAgent:
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


def longest_prompt(profile: PromptProfile, depth: int, top_k: int, max_tokens: int, question: str = "") -> int:
    """Tokens of the longest prompt of an episode, about: instructions, steps of `max_tokens` each, and the passages of
    one search or, where the profile keeps them, of all.
    """
    start = profile.render(State(question), profile.grammar.allowed((), depth))
    words = chars_of(start) // CHARS_A_TOKEN
    searches = 1 if profile.words.keep == "last" else depth
    return words + (depth - 1) * max_tokens + searches * top_k * PASSAGE_TOKENS


def roomy(policy: PolicyConfig, environment: Environment) -> PolicyConfig:
    """The policy, with as many tokens a request as the longest episode needs, where a vLLM is started for it and the
    recipe does not say: its memory goes by what is used.
    """
    if policy.engine != "vllm" or policy.remote or "context" in policy.model_fields_set:
        return policy
    most = policy.max_tokens
    needed = longest_prompt(environment.profile, environment.depth, environment.top_k, most) + most
    return policy.model_copy(update={"context": max(policy.context, -(-needed // 1024) * 1024)})


def _check_gpus(policy: PolicyConfig, judge: JudgeConfig) -> None:
    """Raises ConfigError where two vLLMs would each want nearly all memory of the same GPUs."""
    started = [each for each in (policy, judge) if each.engine == "vllm" and not each.remote]
    shares = ["gpu-memory-utilization" in {name.replace("_", "-") for name in each.engine_args} for each in started]
    shared = policy.devices == judge.devices and not all(shares)
    if len(started) == 2 and shared and not vllm_is_for_cpus():
        raise ConfigError(
            "policy and judge would each start a vLLM on the same GPUs; give policy.devices and judge.devices "
            "(such as 0 and 1), or judge.base_url"
        )


@asynccontextmanager
async def open_agent(
    config: AgentConfig,
    retriever: Retriever,
    *,
    environment: Environment | None = None,
    judge: JudgeConfig | None = None,
    more: tuple[str, ...] = (),
) -> AsyncIterator[OpenAgent]:
    """The agent that `config` describes. Engines that do not run yet are started, and stopped with the block.

    `environment`: where a caller has made it already, prompts checked. `more`: adapters to switch to (`open_policy`);
    for an agent without a judge. Waits for the retriever, so that
    nothing is paid for an index that does not load. Raises ConfigError, DataError, PolicyUnavailable, PolicyRefused.
    """
    if environment is None:
        environment = make_environment(checked_profile(config.prompt, config.policy), retriever, config.episode)
    await retriever.ready()
    grammar, asked = environment.profile.grammar, roomy(config.policy, environment)
    if asked.engine == EXTRACTIVE:
        yield OpenAgent(environment, Model(Reader(grammar, retriever), Gate(asked)))
    elif judge is None:
        async with open_model(asked, grammar, more) as policy:
            yield OpenAgent(environment, policy)
    elif any(getattr(asked, key) != getattr(judge, key) for key in SERVED):
        _check_gpus(asked, judge)
        async with open_model(asked, grammar) as policy, open_model(judge, VerdictFormat()) as judging:
            yield OpenAgent(environment, policy, judging)
    else:
        both = asked.model_copy(update={"context": max(asked.context, judge.context)})
        gate = Gate(asked.model_copy(update={"max_tokens": max(asked.max_tokens, judge.max_tokens)}))
        async with open_policy(both, grammar) as policy, policy.beside(judge, VerdictFormat()) as judging:
            yield OpenAgent(environment, Model(policy, gate), Model(judging, gate))
