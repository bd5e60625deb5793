"""A child process that kills a service which a signal asked to end, and which does not.

Python runs a signal's handler between two of its own instructions. Code in C that keeps the interpreter, as one search
of a long text does, holds that up for as long as it takes. What Python installs in C runs at once all the same: it
writes the signal's number into a pipe (`signal.set_wakeup_fd`), and the child reads that pipe.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

LATER = 5.0
"""Seconds beyond its grace that a service has to close what it opened."""
_POLL_SECONDS = 5.0


@contextlib.contextmanager
def ended_within(grace: float) -> Iterator[None]:
    """Kills this process where SIGTERM or SIGINT came and the block has not ended `grace` and a little later. For the
    main thread. What is to be notified of signals by a descriptor of its own (`loop.add_signal_handler`) undoes it.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(grace + LATER)]
    child = subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(reading)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        child.wait()


def main(parent: int, seconds: float) -> None:
    """Reads the numbers of signals from standard input until it ends, or the parent does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # some end all processes of a service at once
    end = math.inf
    while os.getppid() == parent:
        left = min(_POLL_SECONDS, end - time.monotonic())
        if left <= 0:
            sys.stderr.write(f"not ended {seconds:g} s after it was asked to; killed\n")
            os.kill(parent, signal.SIGKILL)
            return
        if select.select([0], [], [], left)[0]:
            if not (numbers := os.read(0, 4096)):
                return
            if end == math.inf and {signal.SIGINT, signal.SIGTERM} & {*numbers}:
                end = time.monotonic() + seconds


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
