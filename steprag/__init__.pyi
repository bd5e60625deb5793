# ruff: noqa: I001 - one line a module
"""What `import steprag` offers; `__init__.py` imports each name on first use."""

import typing

from .agent.environment import Environment as Environment
from .agent.open import OpenAgent as OpenAgent, make_environment as make_environment, open_agent as open_agent
from .agent.profiles import PromptProfile as PromptProfile, load_profile as load_profile
from .agent.retriever import Retriever as Retriever
from .agent.rollout import episode_of as episode_of, rollout as rollout
from .errors import StepragError as StepragError
from apps.library.agent import Agent as Agent, Estimate as Estimate
from apps.library.index import Index as Index
from apps.library.shown import Answer as Answer
from .records.jsonl import read_records as read_records, write_records as write_records
from .records.inputs import read_passages as read_passages, read_questions as read_questions
from .policy.open import open_policy as open_policy
from .policy.protocols import Policy as Policy
from .config.sections import (
    EpisodeConfig as EpisodeConfig,
    PolicyConfig as PolicyConfig,
    PromptConfig as PromptConfig,
    RetrieverConfig as RetrieverConfig,
)
from .records.training_rows import Pair as Pair
from .tree import Failure as Failure, Node as Node, Tree as Tree
from .types import (
    Completion as Completion,
    Episode as Episode,
    Message as Message,
    Passage as Passage,
    Prediction as Prediction,
    Question as Question,
    State as State,
    Step as Step,
    Usage as Usage,
)

__version__: str

def lazily(
    module: str, file: str
) -> tuple[typing.Callable[[str], object], typing.Callable[[], list[str]], list[str]]: ...

__all__: list[str]
