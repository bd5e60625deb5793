"""Commands side by side, each a process on cores of its own.

Two processes with a thread each do more on two cores than one with two threads, and far more than two that share both
(docs/engines.md).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue

from steprag.engines.outlive_guard import running
from steprag.engines.threads import usable_cores

PINNED = hasattr(os, "sched_setaffinity")
"""Linux; elsewhere a lane only says how many threads its command has."""
Chain = Callable[[Sequence[int]], None]
"""Commands of which each needs the one before; called with the cores of its lane."""


class Lanes:
    """`count` lanes, each with its share of the cores that this process may use."""

    def __init__(self, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0)) if PINNED else list(range(usable_cores()))
        self.count = count
        self._free = SimpleQueue[Sequence[int]]()
        for number in range(count):
            self._free.put(cores[number::count] or cores)
        self._interrupted = threading.Event()

    def together(self, chains: Sequence[Chain]) -> None:
        """Calls every chain in a lane of its own; one that finds none free waits, in the order given.

        An error ends its own chain; the first is raised once all have ended. Ctrl-C ends what runs.
        """
        with ThreadPoolExecutor(self.count) as pool:
            begun = [pool.submit(self._in_a_lane, chain) for chain in chains]
            try:
                wait(begun)
            except KeyboardInterrupt:  # commands are of sessions of their own: no Ctrl-C reaches them
                self._interrupted.set()
                pool.shutdown(cancel_futures=True)
                raise
        for chain in begun:
            chain.result()

    def _in_a_lane(self, chain: Chain) -> None:
        cores = self._free.get()
        try:
            chain(cores)
        finally:
            self._free.put(cores)

    def run(self, argv: Sequence[str], cores: Sequence[int], log: Path) -> int:
        """Runs `steprag argv` on `cores`, all that it says appended to `log`; its exit code.

        Raises KeyboardInterrupt where that ended it.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "steprag.cli", *argv]
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
        with log.open("ab") as stream, running(command, stream, environment) as process:
            if PINNED:
                os.sched_setaffinity(process.pid, cores)
            while process.poll() is None:
                if self._interrupted.wait(0.2):
                    raise KeyboardInterrupt
            return process.returncode
