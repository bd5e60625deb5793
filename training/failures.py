"""Why a command that trained for us failed, from what it wrote."""

from __future__ import annotations

import re

from training.job import OUT_OF_MEMORY

_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$")
_WRAPPERS = ("CalledProcessError", "ChildFailedError")
"""What torchrun and the launcher raise because their child did; the child's own error says more."""


def reason(log: str, status: int) -> str:
    """The line of a failed run's output that says why, with a remedy where one is known."""
    errors = [match[1] for line in log.splitlines() if (match := _ERROR.match(line.strip()))]
    causes = [line for line in errors if not any(name in line for name in _WRAPPERS)] or errors
    said = causes[-1][:500] if causes else f"exit status {status}; {_tail(log)}"
    if "OutOfMemoryError" in said or "out of memory" in said.lower() or "DefaultCPUAllocator" in said:
        return f"{said}; {OUT_OF_MEMORY}"
    if not causes and status in (137, 247):  # SIGKILL, as a shell and as `steprag.engines.outlive_guard` give it
        return f"killed, which is how the system ends what takes too much memory; {OUT_OF_MEMORY}"
    return said


def _tail(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"its last words: {lines[-1][:300]}" if lines else "it said nothing"
