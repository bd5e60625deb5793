"""The shared core of StepRAG: the agent, its records and its files.

The names below are what a program that uses StepRAG as a library starts from; docs/tour.md shows them at work. Each is
imported on first use, so `import steprag` loads nothing, and none of them needs torch, faiss or transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steprag.agent.environment import Environment
    from steprag.agent.open import Agent, make_environment, open_agent
    from steprag.agent.profiles import PromptProfile, load_profile
    from steprag.agent.retriever import Retriever
    from steprag.agent.rollout import episode_of, rollout
    from steprag.errors import StepragError
    from steprag.files import read_records, write_records
    from steprag.inputs import read_passages, read_questions
    from steprag.policy.client import open_policy
    from steprag.policy.protocols import Policy
    from steprag.sections import EpisodeConfig, PolicyConfig, PromptConfig, RetrieverConfig
    from steprag.training_rows import Pair
    from steprag.types import (
        Completion,
        Episode,
        Failure,
        Message,
        Node,
        Passage,
        Prediction,
        Question,
        State,
        Step,
        Tree,
        Usage,
    )

__version__ = "0.1.0"

_HOMES = {
    "steprag.agent.environment": ("Environment",),
    "steprag.agent.open": ("Agent", "make_environment", "open_agent"),
    "steprag.agent.profiles": ("PromptProfile", "load_profile"),
    "steprag.agent.retriever": ("Retriever",),
    "steprag.agent.rollout": ("episode_of", "rollout"),
    "steprag.sections": ("EpisodeConfig", "PolicyConfig", "PromptConfig", "RetrieverConfig"),
    "steprag.errors": ("StepragError",),
    "steprag.files": ("read_records", "write_records"),
    "steprag.inputs": ("read_passages", "read_questions"),
    "steprag.policy.client": ("open_policy",),
    "steprag.policy.protocols": ("Policy",),
    "steprag.training_rows": ("Pair",),
    "steprag.types": (
        *("Completion", "Episode", "Failure", "Message", "Node", "Passage", "Prediction", "Question"),
        *("State", "Step", "Tree", "Usage"),
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "Completion",
    "Environment",
    "Episode",
    "EpisodeConfig",
    "Failure",
    "Message",
    "Node",
    "Pair",
    "Passage",
    "Policy",
    "PolicyConfig",
    "Prediction",
    "PromptConfig",
    "PromptProfile",
    "Question",
    "Retriever",
    "RetrieverConfig",
    "State",
    "Step",
    "StepragError",
    "Tree",
    "Usage",
    "episode_of",
    "load_profile",
    "make_environment",
    "open_agent",
    "open_policy",
    "read_passages",
    "read_questions",
    "read_records",
    "rollout",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'steprag' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
