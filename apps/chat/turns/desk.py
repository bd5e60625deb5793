"""Takes questions in, plays so many at once, and lets conversations take turns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from apps.chat.config import ChatServiceConfig
from apps.chat.turns import events
from apps.chat.turns.events import LiveTurn, end_of
from apps.chat.turns.player import ChatAgent, play, turn_of
from apps.chat.turns.store import TurnRequest
from steprag.errors import StepragError
from steprag.policy.traces import traced
from steprag.records.turns import Turn
from steprag.types import Passage, Step, Usage

log = logging.getLogger(__name__)
REMEMBERED = 256
"""Turns that ended whose events are still in memory, deltas and all."""
DEADLY_STARTS = 2
"""Starts of the service that died while a turn was under way, after which it is not played again."""
DEADLY = "set aside: the service died twice while it played this turn; ask in other words"
BROKE = "a fault of the service; its log says more"


class Full(Exception):
    """The queue is full: no other turn is accepted."""


def so_far(live: LiveTurn) -> dict[str, Any]:
    """What an unfinished turn has, as fields of its record: the question, steps, passages, what the steps cost."""
    told: dict[str, list[dict[str, Any]]] = {"question": [], "step.finished": [], "passages": []}
    for event in live.events:
        told.get(event["type"], []).append(event)
    if not told["question"]:
        return {}
    steps = tuple(Step(event["action"], event["text"], event["content"]) for event in told["step.finished"])
    usage = sum((Usage(**event["usage"]) for event in told["step.finished"] if "usage" in event), Usage())
    passages = tuple(tuple(Passage(item["id"], item["title"], item["text"], item["score"]) for item in event["items"])
                     for event in told["passages"])  # fmt: skip
    return {"question": told["question"][0]["question"], "steps": steps, "usage": usage, "passages": passages}


class Desk:
    """The queue of a service. One turn of a conversation at a time; conversations take turns. `metrics`: Prometheus'
    registry of what it has done.
    """

    def __init__(self, chat: ChatAgent, limits: ChatServiceConfig, at_once: int) -> None:
        self.chat, self._limits, self._at_once = chat, limits, at_once
        self._live: OrderedDict[str, LiveTurn] = OrderedDict()
        self._accepting: dict[str, str] = {}
        self._waiting: OrderedDict[str, deque[LiveTurn]] = OrderedDict()
        self._playing: dict[str, LiveTurn] = {}
        self._closing = False
        self.metrics = metrics = CollectorRegistry()
        Gauge("steprag_turns_waiting", "Turns accepted and not begun", registry=metrics).set_function(
            lambda: self.waiting
        )
        Gauge("steprag_turns_playing", "Turns that are played now", registry=metrics).set_function(lambda: self.playing)
        self._refused = Counter("steprag_turns_refused", "Questions refused because too many wait", registry=metrics)
        by = {"labelnames": ["finish"], "registry": metrics}
        self._ended = Counter("steprag_turns", "Turns that ended since the start, by how", **by)
        self._seconds = Counter("steprag_turn_seconds", "What their play took", **by)
        for request in chat.store.pending:  # a service that was killed resumes
            self._queue(request)

    @property
    def waiting(self) -> int:
        """Turns that were accepted and are not begun."""
        return len(self._accepting) + sum(map(len, self._waiting.values()))

    @property
    def playing(self) -> int:
        """Turns that are played now."""
        return len(self._playing)

    async def accept(self, request: TurnRequest) -> LiveTurn:
        """Takes a turn; it is kept when this returns. Raises Full."""
        if self.waiting >= self._limits.waiting:
            self._refused.inc()
            raise Full
        self._accepting[request.id] = request.conversation
        try:
            await self.chat.store.accept(request)
        finally:
            del self._accepting[request.id]
        return self._queue(request)

    def live(self, turn_id: str) -> LiveTurn | None:
        """A turn whose events are in memory."""
        return self._live.get(turn_id)

    def busy(self, conversation: str) -> bool:
        """Whether a turn of the conversation has not ended yet."""
        return bool(self._of(conversation)) or conversation in self._accepting.values()

    def cancel(self, turn_id: str) -> None:
        """Ends a turn that waits or plays; the request to the engine is closed."""
        live = self._live.get(turn_id)
        if live is None or live.over or live.cancelled or live.ending:
            return
        live.cancelled = True
        if live.task is not None:
            live.task.cancel()
            return
        self._waiting[live.request.conversation].remove(live)
        self._start(live, self._end(live, self._stopped(live)))

    async def forget(self, conversation: str) -> None:
        """Ends and deletes a conversation: its turns, and their calls in the journal."""
        while tasks := self._stopping(conversation):  # one may be accepted while others come to their end
            await asyncio.wait(tasks)
        turns = [*self.chat.store.conversations.get(conversation, ())]
        self.chat.journal.forget(turns)
        await self.chat.store.forget(conversation)
        if self.chat.files:
            await self.chat.files.forget(conversation)
        for turn_id in turns:
            self._live.pop(turn_id, None)

    async def close(self) -> None:
        """Stops playing. What was accepted and not answered is played at the next start."""
        self._closing = True
        while tasks := [live.task for live in self._live.values() if live.task and not live.task.done()]:
            for live in self._playing.values():
                if live.task and not live.ending:
                    live.task.cancel()
            await asyncio.wait(tasks)

    def _stopping(self, conversation: str) -> list[asyncio.Task[None]]:
        for live in (under_way := self._of(conversation)):
            self.cancel(live.id)
        return [live.task for live in under_way if live.task and not live.task.done()]

    def _of(self, conversation: str) -> list[LiveTurn]:
        turns = self.chat.store.conversations.get(conversation, ())
        return [live for turn_id in turns if (live := self._live.get(turn_id)) and not live.over]

    def _queue(self, request: TurnRequest) -> LiveTurn:
        live = LiveTurn(request, self._abandon, self._limits.leave)
        self._live[live.id] = live
        live.publish(events.started(request.conversation, request.mode, request.parent, self.waiting))
        self._waiting.setdefault(request.conversation, deque()).append(live)
        self._begin()
        return live

    def _begin(self) -> None:
        """Begins as many turns as there is room for: the next one of each conversation that has none under way."""
        for conversation in [*self._waiting]:
            if len(self._playing) >= self._at_once or self._closing:
                return
            turns = self._waiting[conversation]
            if not turns:
                del self._waiting[conversation]
            elif conversation not in self._playing:
                live = turns.popleft()
                self._waiting.move_to_end(conversation)
                self._playing[conversation] = live
                deadly = self.chat.store.starts(live.id) >= DEADLY_STARTS
                self._start(live, self._set_aside(live) if deadly else self._play(live))

    def _start(self, live: LiveTurn, work: Coroutine[Any, Any, None]) -> None:
        live.task = asyncio.create_task(work)
        live.task.add_done_callback(lambda task: self._done(live, task))

    def _done(self, live: LiveTurn, task: asyncio.Task[None]) -> None:
        """Frees the turn's place, whatever ended the task: one that is cancelled before its first step runs no line of
        its own. A fault of this program must not leave anyone waiting: it is logged, and the turn fails.
        """
        if self._playing.get(live.request.conversation) is live:
            del self._playing[live.request.conversation]
        error = None if task.cancelled() else task.exception()
        if error:
            log.error("turn %s broke", live.id, exc_info=error)
        if error and live.ending and not live.over:
            live.publish(events.failed(BROKE, "failed"))
        elif error and not live.over:
            self._start(live, self._end(live, turn_of(live.request, finish="failed", error=BROKE)))
        elif task.cancelled() and live.cancelled and not live.over:
            self._start(live, self._end(live, self._stopped(live)))
        self._begin()

    async def _play(self, live: LiveTurn) -> None:
        live.begun = time.monotonic()
        try:
            await self.chat.store.count_start(live.id)
            session = {"session.id": live.request.conversation}
            turn = await traced(self._played(live), "agent", "turn", live.request.asked, **session)
        except asyncio.CancelledError:
            if not live.cancelled:  # the service ends: the turn is played again at its next start
                await self.chat.store.count_start(live.id, -1)
                raise
            turn = self._stopped(live)
        await self._end(live, turn)

    async def _set_aside(self, live: LiveTurn) -> None:
        turn = turn_of(live.request, finish="failed", error=DEADLY)
        log.warning("turn %s is %s", live.id, DEADLY)
        await self.chat.store.note_failure(turn, "set aside")
        await self._end(live, turn)

    async def _played(self, live: LiveTurn) -> Turn:
        """The turn as it ended, whatever ended it."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await play(self.chat, live)
        except TimeoutError:
            error = f"not answered within {self._limits.seconds:g} s (serve.seconds)"
        except StepragError as problem:
            log.warning("turn %s failed: %s", live.id, problem)
            error = str(problem)
        return turn_of(live.request, finish="failed", error=error, seconds=live.seconds, **so_far(live))

    def _stopped(self, live: LiveTurn) -> Turn:
        return turn_of(live.request, finish="cancelled", seconds=live.seconds, **so_far(live))

    async def _end(self, live: LiveTurn, turn: Turn) -> None:
        """Keeps the turn, then publishes its last event."""
        live.ending, last = True, end_of(turn)
        try:
            if self.chat.store.waits(turn.id):  # else its conversation was deleted meanwhile
                await self.chat.store.end(turn)
        except (OSError, StepragError) as problem:
            log.warning("turn %s is not kept: %s", live.id, problem)
            last = events.failed(f"the turn cannot be kept: {problem}", "not_kept")
        live.publish(last)
        self._ended.labels(turn.finish).inc()
        self._seconds.labels(turn.finish).inc(turn.seconds)
        ended = [one for one in self._live.values() if one.over and not one.listeners]
        for old in ended[: max(0, len(ended) - REMEMBERED)]:
            del self._live[old.id]

    def _abandon(self, turn_id: str) -> None:
        if not self._closing:
            self.cancel(turn_id)
