"""Child processes that do not outlive the command that started them: what the parent does, and what the child does.

The parent holds the write end of a pipe that is the child's standard input. Whatever ends the parent, SIGKILL too,
closes that pipe, and the child leaves. PR_SET_PDEATHSIG would do without a pipe, but fires when the *thread* that
forked ends, which a thread pool does at will, and exists on Linux only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.2


def exit_at_once(signum: int, frame: FrameType | None) -> NoReturn:
    """Signal handler: leave without the interpreter's shutdown, which can wait on an engine's threads."""
    os._exit(128 + signum)


def wait_for_parent() -> None:
    """Block until the parent closes our standard input or dies."""
    while os.read(0, 4096):
        pass


def main(command: Sequence[str]) -> int:
    """Run `command` until it ends, the parent does, or SIGTERM comes; returns its exit status.

    For engines whose own code does not watch the pipe. The command stays in our process group (the parent made
    one for us), so ending the group ends its helpers too.
    """
    asked_to_end: list[int] = []
    # The handler takes a note and raises nothing: SIGTERM and the end of the pipe come together, and an exception
    # in the middle of ending the group would leave the engine running. Set before there is a child to lose.
    signal.signal(signal.SIGTERM, lambda signum, _frame: asked_to_end.append(signum))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None and not asked_to_end:
        if select.select([0], [], [], _POLL_SECONDS)[0] and not os.read(0, 4096):
            break
    _end_group(child)
    return child.returncode or 0


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ask the command to end, wait a little, then kill whatever the group still holds, ourselves included."""
    if child.poll() is not None:
        return
    child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(0, signal.SIGKILL)


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Any, environment: Mapping[str, str], output: Any = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The running command: errors to the stream `log`, output to `output`, by default there too; ended with the block.

    Its standard input is a pipe that closes when we end, however we end.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "steprag.engines.outlive_guard", *command],
        stdin=subprocess.PIPE,
        stdout=output or log,
        stderr=log,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if process.stdin:
            process.stdin.close()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
