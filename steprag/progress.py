"""Progress: a bar on a terminal, a plain line now and then elsewhere. Everything goes to standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

QUIET_SECONDS = 15.0
"""Off a terminal, at most one line in this many seconds."""


def say(text: str) -> None:
    """A line for the person who watches."""
    tqdm.write(text, file=sys.stderr)


class Progress:
    """Counts units of work towards `total` (None: not known); notes are shown beside the bar."""

    def __init__(self, label: str, total: int | None, unit: str, done: int = 0) -> None:
        self._label, self._total, self._unit, self._done = label, total, unit, done
        self._start = self._said = time.monotonic()
        self._first, self._notes = done, ""
        self._bar = tqdm(total=total, initial=done, desc=label, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True,
                         disable=not sys.stderr.isatty())  # fmt: skip

    def advance(self, count: int = 1, **notes: object) -> None:
        self._done += count
        self._notes = ", ".join(f"{key} {value}" for key, value in notes.items())
        self._bar.set_postfix_str(self._notes, refresh=False)
        self._bar.update(count)
        if self._bar.disable and (time.monotonic() - self._said > QUIET_SECONDS or self._done == self._total):
            self._line()

    def _line(self) -> None:
        self._said = time.monotonic()
        elapsed = self._said - self._start
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        to_do = (self._total or 0) - self._done
        left = f", {to_do / rate:.0f} s left" if rate and to_do > 0 else ""
        extra = f", {self._notes}" if self._notes else ""
        of = f"/{self._total}" if self._total else ""
        say(f"{self._label}: {self._done}{of} {self._unit} in {elapsed:.0f} s{left}{extra}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
