"""The agent's world as an environment of OpenEnv's package.

An observation holds the prompt, an action is the text of a step, its reward what the step adds.
"""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.interfaces import Environment as OpenEnvironment  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.types import Action, Observation, State  # pyright: ignore[reportMissingImports]

from steprag.errors import ConfigError
from steprag.web.guard import Access, Guard
from training.interop.stepwise import StepwiseEpisode, StepWorld


class StepText(Action):
    """A completion: the text of a step, with its tags."""

    text: str


class StepPrompt(Observation):
    """What the policy sees: the prompt, and the actions that may follow. `finish`: how the episode ended."""

    question: str
    messages: list[dict[str, str]] = []
    allowed: list[str] = []
    finish: str | None = None


class StepragOpenEnv(OpenEnvironment[StepText, StepPrompt, State]):
    """One session: episodes one after the other."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, world: StepWorld) -> None:
        super().__init__()
        self._world, self._state = world, State()
        self._playing: StepwiseEpisode | None = None

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, question: str | None = None, **_: Any
    ) -> StepPrompt:
        """Begins the episode of a question by its id, or of the `seed`-th, counted round."""
        self.close()
        names = [*self._world.questions]
        self._state = State(episode_id=episode_id, step_count=0)
        self._playing = await StepwiseEpisode(self._world, question or names[(seed or 0) % len(names)]).begin()
        return self._observed(self._playing, None)

    async def step_async(self, action: StepText, timeout_s: float | None = None, **_: Any) -> StepPrompt:
        """Takes a step. Raises ConfigError before `reset` and behind the end."""
        if self._playing is None:
            raise ConfigError("there is no episode; reset begins one")
        self._state.step_count += 1
        return self._observed(self._playing, await self._playing.step(action.text))

    def _only_async(self, *_: Any, **__: Any) -> StepPrompt:
        raise NotImplementedError("OpenEnv's server asks the methods that end in _async")

    reset = step = _only_async

    @property
    def state(self) -> State:
        """The episode's id and how many steps it has."""
        return self._state

    def close(self) -> None:
        """Ends the play."""
        if self._playing:
            self._playing.close()
        self._playing = None

    def _observed(self, playing: StepwiseEpisode, reward: float | None) -> StepPrompt:
        asked, seen = playing.question.question, playing.seen
        if seen is None:
            return StepPrompt(
                done=True, reward=reward, question=asked, finish=playing.episode and playing.episode.finish
            )
        messages = [{"role": one["role"], "content": one["content"]} for one in seen.messages]
        return StepPrompt(reward=reward, question=asked, messages=messages, allowed=[*seen.allowed])


def openenv_app(world: StepWorld, sessions: int) -> Any:
    """OpenEnv's own application; each session has an environment. Pages of strangers' sites reach nothing."""
    app = create_fastapi_app(lambda: StepragOpenEnv(world), StepText, StepPrompt, max_concurrent_envs=sessions)
    app.add_middleware(Guard, access=Access("", True, ("/", *(route.path for route in app.routes)), 1 << 20, "steprag"))
    return app
