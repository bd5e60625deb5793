"""The protocol of a policy, and the protocols of what only some policies can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from steprag.types import Message, Sample, State

Listener = Callable[[str], None]
"""Told each piece of a completion as it comes. Joined, the pieces begin the completion: its closing tag may be
missing, where the engine stops at it.
"""


class Policy(Protocol):
    """Something that writes steps."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """`n` completions of one prompt. `allowed` names the actions that constrained output may take.

        The same arguments give the same completions as far as the engine can promise it. Raises PolicyError.
        """
        ...


@runtime_checkable
class StateReading(Policy, Protocol):
    """A policy that reads the state instead of its prompt, and asks no model: none of its steps is journalled."""

    async def read(self, state: State, allowed: tuple[str, ...]) -> Sample:
        """One completion. Raises RetrieverError."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A model that gives the log-probabilities of a given text."""

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """One completion, `text`, with the log-probability of each of its tokens after `messages`.

        The same arguments give the same numbers as far as the engine can promise it. Raises PolicyError, and
        ConfigError where the endpoint cannot score.
        """
        ...


@runtime_checkable
class Sessions(Protocol):
    """A policy that can tell its endpoint which requests belong together."""

    def in_session(self, name: str) -> Policy:
        """The same policy, whose requests are of that session."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """A policy that knows when it would only repeat itself."""

    def repeats(self, messages: tuple[Message, ...], allowed: tuple[str, ...]) -> bool:
        """Whether a repeated request gives the same reply, whatever its seed."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """A policy whose completions can be heard while they are written."""

    async def stream(
        self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, seed: int, listener: Listener
    ) -> Sample:
        """One completion, as `Policy.sample` gives it. Cancelling closes the request. Raises PolicyError."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """A policy behind an endpoint. `served`: what that reports of its model; `learnt`: as of `OpenAIPolicy`."""

    served: dict[str, str]

    @property
    def learnt(self) -> dict[str, str | None]:
        """The fields that the endpoint refused."""
        ...
