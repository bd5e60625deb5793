"""A turn while it is played: the events so far, and those who listen."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from inference.chat.events import ENDS, Event, next_state
from inference.chat.store import TurnRequest

Left = Callable[["LiveTurn"], None]
PING = 15.0
"""Seconds without an event after which listeners are told so: their connections must be seen to live."""


@dataclass
class LiveTurn:
    """Events are kept in one list that every listener reads at its own pace, so a slow one costs no memory.

    `left` is told when the last of its listeners has gone and the turn is not over. `mark` names this telling: a
    service that started again tells a turn anew, in other pieces.
    """

    request: TurnRequest
    left: Left
    events: list[Event] = field(default_factory=list)
    begun: float | None = None
    cancelled: bool = False
    listeners: int = 0
    task: asyncio.Task[None] | None = None
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    _state: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.request.id

    @property
    def over(self) -> bool:
        """Whether its last event is there."""
        return self._state in ENDS

    @property
    def seconds(self) -> float:
        """Since the play began."""
        return 0.0 if self.begun is None else time.monotonic() - self.begun

    def publish(self, event: Event) -> None:
        """Adds an event. Raises ValueError where it may not stand there (`next_state`)."""
        self._state = next_state(self._state, event)
        self.events.append({"turn": self.id, **event})
        self.wake()

    def wake(self) -> None:
        """Lets every listener look again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int = 0) -> AsyncIterator[list[Event]]:
        """The events from place `after` on until the turn is over, as many at once as there are. An empty list says
        that PING seconds passed without one.
        """
        self.listeners += 1
        try:
            place = after
            while True:
                if place < len(self.events):
                    news, place = self.events[place:], len(self.events)
                    yield news
                elif self.over:
                    return
                else:
                    try:
                        async with asyncio.timeout(PING):
                            await self._news.wait()
                    except TimeoutError:
                        yield []
        finally:
            self.listeners -= 1
            if not self.listeners and not self.over:
                self.left(self)
