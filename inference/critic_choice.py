"""The step critic of a run: found and checked before anything is paid for."""

from __future__ import annotations

from inference.config import InferConfig
from steprag.agent.critic import CriticFiles, find_critic
from steprag.agent.profiles import PromptProfile
from steprag.errors import ConfigError


def critic_of(config: InferConfig, profile: PromptProfile) -> CriticFiles | None:
    """The critic that the configuration names, None where it names none. Raises ConfigError where it cannot choose."""
    if config.critic is None:
        if config.candidates > 1:
            raise ConfigError("candidates: nothing chooses among them; give a step critic with --critic")
        return None
    if config.candidates == config.best_of == 1:
        raise ConfigError("critic: one completion of one episode is no choice; give --candidates 4 or --best_of 4")
    if config.candidates > 1 and config.policy.temperature == 0:
        raise ConfigError("candidates: at temperature 0 all are the same; give --policy.temperature 0.8")
    return find_critic(config.critic, profile, unchecked=config.prompt.unchecked)
