"""Commands that work for us, started so that they end when we do."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(
    command: Sequence[str], log: Any, environment: Mapping[str, str], output: Any = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The running command: errors to the stream `log`, output to `output`, by default there too; ended with the block.

    Its standard input is the pipe that tells it of our end, however we end.
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
