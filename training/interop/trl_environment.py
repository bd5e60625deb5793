"""The agent's world for TRL: `GRPOTrainer(environment_factory=trl_environment(world), train_dataset=trl_rows(world))`,
with `world` of `open_step_world`. Each action of the grammar is a tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from steprag.agent.stack import Action
from steprag.errors import ConfigError
from training.interop.stepwise import StepwiseEpisode, StepWorld

TASK = "Answer the question. Call one tool at a time."
OVER = "The episode is over."
DOES = {"call": "Searches, and returns passages.", "end": "Gives the answer.", "pop": "Takes the last search back."}


def trl_rows(world: StepWorld) -> list[dict[str, Any]]:
    """Rows of a dataset: a prompt, and the question's id, which `reset` is given."""
    return [
        {"prompt": [{"role": "system", "content": TASK}, {"role": "user", "content": one.question}], "question": name}
        for name, one in world.questions.items()
    ]


def trl_environment(world: StepWorld) -> type:
    """The class of environments. Raises ConfigError for a profile that searches first: TRL could not show what it
    found.
    """
    if world.environment.profile.words.search_first:
        raise ConfigError("this prompt profile searches with the question itself; take one that does not")
    tools = {action.name: _tool(action) for action in world.environment.profile.grammar.actions}
    return type("StepragEnvironment", (_TrlEpisode,), {"_world": world, **tools})


class _TrlEpisode:
    """TRL calls `reset`, then on a loop of its own the tools and `get_reward`."""

    _world: StepWorld
    _playing: StepwiseEpisode | None

    def reset(self, question: str, **_: Any) -> None:
        self._question, self._playing = question, None

    async def get_reward(self) -> float:
        playing = await self._begun()
        if playing.seen:  # what it said last was no call of a tool, and so no step
            await playing.step("")
        return playing.total

    async def _begun(self) -> StepwiseEpisode:
        self._playing = self._playing or await StepwiseEpisode(self._world, self._question).begin()
        return self._playing

    async def _take(self, action: Action, content: str) -> str:
        playing = await self._begun()
        before = len(playing.found)
        if playing.seen is not None:
            await playing.step(action.head + action.tail(content))
        if playing.seen is None:
            return OVER
        told = [f"{passage.title}: {passage.text}" for search in playing.found[before:] for passage in search]
        return "\n".join([*told, f"Next: {' or '.join(playing.seen.allowed)}."])


def _tool(action: Action) -> Callable[..., Awaitable[str]]:
    """A method that takes the action; TRL reads its name, types and docstring."""

    async def take(self: _TrlEpisode, content: str) -> str:
        return await self._take(action, content)

    take.__name__, take.__annotations__ = action.name, {"content": str, "return": str}
    take.__doc__ = f"{DOES.get(action.effect, 'Notes a step.')}\n\nArgs:\n    content: What the step says."
    return take
