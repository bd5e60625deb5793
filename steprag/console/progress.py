"""Progress: a bar on a terminal, a plain line now and then elsewhere. Everything goes to standard error."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

QUIET_SECONDS = 15.0
"""Off a terminal, at most one line in this many seconds."""
_LOCK = threading.RLock()


@cache
def _bars() -> Any:
    """The class of bars that only threads of this process wait for.

    tqdm's own lock is shared with forked processes, and one that is killed while it holds the lock stops the others for
    good. A thread that redraws bars (tqdm's monitor) is not needed: `Progress.show` is called often enough.
    """
    from tqdm import tqdm

    bars = type("Bar", (tqdm,), {"monitor_interval": 0})
    bars.set_lock(_LOCK)
    return bars


def say(text: str) -> None:
    """A line for the person who watches."""
    _bars().write(text, file=sys.stderr)


_NEXT: list[str] = []


def say_next(*words: object) -> None:
    """Keeps the command that the reader may type next, in place of an earlier one; `guarded` says it at the end."""
    here = f"{Path.cwd()}{os.sep}"
    _NEXT[:] = [f"next: steprag {shlex.join(str(word).removeprefix(here) for word in words)}"]


def kept_next() -> list[str]:
    """The line that `say_next` kept, or none; it is forgotten with this."""
    kept, _NEXT[:] = [*_NEXT], []
    return kept


class Progress:
    """Counts units of work towards `total` (None: not known), with pace and time left; notes stand beside them."""

    def __init__(self, label: str, total: int | None, unit: str, done: int = 0) -> None:
        self._label, self._total, self._unit, self._done = label, total, unit, done
        self._start = self._said = time.monotonic()
        self._first, self._notes, self._over = done, "", False
        self.state: dict[str, Any] = {}
        """What was shown last: units done and in all, seconds taken, and left at this pace (None: not known)."""
        self._bar = _bars()(total=total, initial=done, desc=label, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True,
                            disable=not sys.stderr.isatty())  # fmt: skip

    def advance(self, count: int = 1, notes: str | None = None) -> None:
        self._done += count
        self._bar.update(count)
        self.show(notes)

    def move_to(self, done: int, notes: str | None = None) -> None:
        """Like `advance`, for work that is counted elsewhere."""
        self.advance(done - self._done, notes)

    def show(self, notes: str | None = None) -> None:
        """Refreshes what is seen; call it now and then where units take long. `notes` replaces what stood there."""
        self._notes = self._notes if notes is None else notes
        elapsed = time.monotonic() - self._start
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        pace = f"{60 * rate:.1f} a minute" if rate else ""
        seconds = round((self._total - self._done) / rate, 1) if rate and self._total is not None else None
        self.state = {"done": self._done, "total": self._total, "seconds": round(elapsed, 1), "left_seconds": seconds}
        self._bar.set_postfix_str(_joined(pace, self._notes))
        over, self._over = self._done == self._total and not self._over, self._done == self._total
        if self._bar.disable and (over or time.monotonic() - self._said > QUIET_SECONDS):
            self._said = time.monotonic()
            left = f"{seconds:.0f} s left" if seconds and seconds > 0 else ""
            of = f"/{self._total}" if self._total else ""
            done = f"{self._label}: {self._done}{of} {self._unit} in {elapsed:.0f} s"
            say(_joined(done, left, pace, self._notes))

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
