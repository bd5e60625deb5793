"""The events of a turn: JSON objects in an order that `next_state` defines; and the listeners of a turn.

    started question (step.started delta* step.finished passages?)* answer? (finished | failed | cancelled)

A turn whose profile searches with the question itself begins with `passages` of step -1. The last step has no
`step.finished` where its completion was refused. A failed or cancelled turn may stop behind any event.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.chat.turns.store import TurnRequest
from steprag.agent.citations import Grounds
from steprag.agent.retriever import url_of
from steprag.records.turns import Route, Turn
from steprag.types import Passage, Step, Usage

Event = dict[str, Any]
PING = 15.0
"""Seconds without an event after which listeners get a sign of life, so that their connections stay open."""

ENDS = ("turn.finished", "turn.failed", "turn.cancelled")
_AFTER: dict[str, tuple[str, ...]] = {
    "": ("turn.started",),
    "turn.started": ("question",),
    "question": ("passages", "step.started", "step.finished", "turn.finished"),
    "step.started": ("step.delta", "step.finished", "turn.finished"),
    "step.delta": ("step.delta", "step.finished", "turn.finished"),
    "step.finished": ("passages", "step.started", "step.finished", "answer"),
    "passages": ("step.started", "step.finished"),
    "answer": ("turn.finished",),
}
"""Which events may follow which. `step.finished` may follow another: steps that a person gave are not begun."""


def next_state(state: str, event: Event) -> str:
    """The state of the grammar after `event`; "" before the first. Raises ValueError where it may not stand there."""
    kind = event.get("type", "")
    if state in ENDS:
        raise ValueError(f"{kind} after the turn's end")
    if kind not in _AFTER.get(state, ()) and not (state and kind in ENDS[1:]):
        raise ValueError(f"{kind} after {state or 'nothing'}")
    return kind


def started(conversation: str, mode: str, parent: str | None, queued: int) -> Event:
    """The turn is accepted; `queued` others wait before it."""
    return {"type": "turn.started", "conversation": conversation, "mode": mode, "parent": parent, "queued": queued}


def question(asked: str, seen: str, route: Route | None = None) -> Event:
    """The words as typed, and those that the agent sees. `route`: of a turn in mode auto."""
    told = {"route": route.kind, "why": route.why} if route else {}
    return {"type": "question", "asked": asked, "question": seen, **told}


def step_started(step: int, allowed: Sequence[str]) -> Event:
    """A step is asked for."""
    return {"type": "step.started", "step": step, "allowed": list(allowed)}


def step_delta(step: int, text: str) -> Event:
    """A piece of the step's text; the pieces of a step, joined, are its text."""
    return {"type": "step.delta", "step": step, "text": text}


def step_finished(
    place: int, step: Step, usage: Usage | None = None, seconds: float | None = None, *, given: bool = False
) -> Event:
    """A step is taken. `given`: a person wrote it, or it was taken over from the turn that this one forks. Usage and
    seconds are there where they were measured in this telling.
    """
    measured = {} if usage is None or seconds is None else {"usage": usage.shown, "seconds": round(seconds, 3)}
    return {"type": "step.finished", "step": place, "action": step.action, "content": step.content, "text": step.text,
            "given": given, **measured}  # fmt: skip


def passages(
    step: int,
    source: str,
    found: Sequence[Passage],
    numbers: dict[str, int],
    why: str | None,
    files: Mapping[str, tuple[str, int | None]],
) -> Event:
    """What a step's search found. `source`: local, web or both, with "files+" before it where files of the
    conversation were found too, or files alone; `why`: how the source was chosen, where it was. `files`: by passage,
    name and page of a document that can be opened.
    """
    items = [
        {"n": numbers[passage.id], "id": passage.id, "title": passage.title, "url": url_of(passage.id),
         "score": passage.score, "text": passage.text,
         **({"file": dict(zip(("name", "page"), files[passage.id], strict=True))} if passage.id in files else {})}
        for passage in found
    ]  # fmt: skip
    return {"type": "passages", "step": step, "source": source, "items": items, **({"why": why} if why else {})}


def answer(content: str, grounds: Grounds, *, extractive: bool = False) -> Event:
    """The answer and what it rests on. `extractive`: it is a sentence of a document, which no language model chose."""
    listed = [
        {"n": one.n, "cited": one.cited, "evidence": one.evidence, "spans": [list(span) for span in one.spans]}
        for one in grounds.found
    ]
    marked = {"extractive": True} if extractive else {}
    return {"type": "answer", "content": content, "sources": listed, **grounds.told, **marked}


def judged(answer: Event) -> dict[str, Any]:
    """The field `lacks` of an answer's event (`Grounds.told`); nothing where it has none."""
    return {"lacks": answer["lacks"]} if "lacks" in answer else {}


def finished(finish: str, usage: Usage, seconds: float, refused: str | None = None) -> Event:
    """The episode is over: `finish` is "answer", or why its last completion was refused."""
    said = {"type": "turn.finished", "finish": finish, "usage": usage.shown, "seconds": round(seconds, 3)}
    return said if refused is None else {**said, "refused": refused}


def failed(message: str, code: str) -> Event:
    """The turn could not be played to its end."""
    return {"type": "turn.failed", "message": message, "code": code}


def end_of(turn: Turn) -> Event:
    """The last event of a turn that ended."""
    if turn.finish == "cancelled":
        return {"type": "turn.cancelled"}
    if turn.finish == "failed":
        return failed(turn.error or "", "failed")
    return finished(turn.finish, turn.usage, turn.seconds, turn.refused)


@dataclass
class LiveTurn:
    """A turn while it is played. Its events are one list that every listener reads at its own pace, so a slow one costs
    no memory.

    `abandon` is called where nobody has listened for `abandon_after` seconds since the last listener left and the turn
    is not over. `ending`: its record is being written. `mark` names this telling: a restarted service sends a
    turn from its start, in other pieces.
    """

    request: TurnRequest
    abandon: Callable[[str], None]
    abandon_after: float
    events: list[Event] = field(default_factory=list)
    begun: float | None = None
    cancelled: bool = False
    ending: bool = False
    listeners: int = 0
    task: asyncio.Task[None] | None = None
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    _state: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _abandoning: asyncio.TimerHandle | None = None

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
        """Adds an event. Raises ValueError if it may not follow (`next_state`)."""
        self._state = next_state(self._state, event)
        self.events.append({"turn": self.id, **event})
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int = 0) -> AsyncIterator[list[Event]]:
        """The events from place `after` on until the turn is over, as many at once as there are. An empty list says
        that PING seconds passed without one.
        """
        self.listeners += 1
        if self._abandoning:
            self._abandoning.cancel()
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
                loop = asyncio.get_running_loop()
                self._abandoning = loop.call_later(self.abandon_after, self.abandon, self.id)
