"""Commands side by side, each on cores of its own.

Two processes with a thread each do more on two cores than one with two threads, and far more than two that share both
(docs/engines.md).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from pathlib import Path

from steprag.engines.start import running
from steprag.engines.threads import usable_cores

PINNED = hasattr(os, "sched_setaffinity")
"""Linux; elsewhere a lane only says how many threads its command has."""
_urgency: ContextVar[tuple[int, ...]] = ContextVar("urgency", default=())
"""The place of the chain that is at work, among those that it was started with; the first goes first."""
_held: ContextVar[list[int] | None] = ContextVar("held", default=None)
"""The cores of that chain's lane."""


class Lanes:
    """`count` shares of the cores that this process may use; what is run in one is a process of its own."""

    def __init__(self, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0)) if PINNED else list(range(usable_cores()))
        self._count = count
        self._free = [cores[number::count] or cores for number in range(count)]
        self._waiting: list[tuple[int, ...]] = []
        self._changed = threading.Condition()
        self._ended = threading.Event()

    @property
    def cores(self) -> Sequence[int] | None:
        """Those of the lane that the chain at work holds; None where nothing is beside it and it has all cores."""
        return _held.get()

    def together(self, *chains: Callable[[], None]) -> None:
        """Calls all of them, each in a thread and a lane; one after another where there is one lane or one chain.

        A chain is a sequence of commands of which each needs the one before; it keeps its lane until it ends, and
        earlier chains take a free one first. Chains of a chain: the first goes on in its lane. An error ends its own
        chain; the first is raised once all have ended.
        """
        if self._count == 1 or len(chains) < 2:
            for chain in chains:
                chain()
            return
        urgency, begun = _urgency.get(), list[Future[None]]()
        places = [((*urgency, place), chain) for place, chain in enumerate(chains)]
        here = places[:1] if self.cores else []
        with ThreadPoolExecutor(len(chains)) as pool:
            try:
                begun += [pool.submit(copy_context().run, self._in_a_lane, *each) for each in places[len(here) :]]
                for place, chain in here:
                    _urgency.set(place)
                    chain()
            except KeyboardInterrupt:
                self._ended.set()
                raise
            finally:
                _urgency.set(urgency)
                self._wait(begun)
        for chain in begun:
            chain.result()

    def run(self, argv: Sequence[str], log: Path) -> int:
        """Runs `steprag argv` in the lane of the chain at work, all that it says appended to `log`; its exit code.

        Raises KeyboardInterrupt where that ended it.
        """
        cores = _held.get() or []
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "steprag.cli", *argv]
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
        self._go_on()
        with log.open("ab") as stream, running(command, stream, environment) as process:
            if PINNED:
                os.sched_setaffinity(process.pid, cores)
            while process.poll() is None:
                if self._ended.wait(0.2):
                    raise KeyboardInterrupt
            return process.returncode

    def _wait(self, begun: Sequence[Future[None]]) -> None:
        """Until all have ended; the lane of the chain that waits is free for them."""
        if self.cores:
            self._give_back()
            wait(begun)
            self._take()
            return
        try:
            wait(begun)
        except KeyboardInterrupt:
            self._ended.set()  # commands are of sessions of their own: no Ctrl-C reaches them
            raise

    def _go_on(self) -> None:
        if self._ended.is_set():
            raise KeyboardInterrupt

    def _in_a_lane(self, urgency: tuple[int, ...], chain: Callable[[], None]) -> None:
        _held.set(None)
        _urgency.set(urgency)
        self._take()
        try:
            self._go_on()
            chain()
        finally:
            self._give_back()

    def _take(self) -> None:
        urgency = _urgency.get()
        with self._changed:
            self._waiting.append(urgency)
            self._changed.wait_for(lambda: bool(self._free) and min(self._waiting) == urgency)
            self._waiting.remove(urgency)
            _held.set(self._free.pop(0))
            self._changed.notify_all()

    def _give_back(self) -> None:
        with self._changed:
            self._free.append(_held.get() or [])
            self._changed.notify_all()
        _held.set(None)
