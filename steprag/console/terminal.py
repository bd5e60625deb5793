"""Terminals are shown text alone. Passages, steps and endpoints' messages may hold its control sequences, which move
the cursor, change the title or write into the clipboard.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|(?:\x1b[\]P^_X]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]?|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # \b, \t, \n and \r stay: progress bars need them
)


def plain(text: str) -> str:
    """The text without a terminal's control sequences."""
    return _CONTROL.sub("", text)


class PlainStream:
    """A stream whose `write` lets text through alone; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text without control sequences; returns the length of all that was given."""
        self._stream.write(plain(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """As `write`, line by line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def plain_terminals() -> Iterator[None]:
    """Standard output and error write text alone where they are terminals; files and pipes get what is written."""
    with contextlib.ExitStack() as stack:
        if sys.stdout.isatty():
            stack.enter_context(contextlib.redirect_stdout(PlainStream(sys.stdout)))  # pyright: ignore[reportArgumentType]
        if sys.stderr.isatty():
            stack.enter_context(contextlib.redirect_stderr(PlainStream(sys.stderr)))  # pyright: ignore[reportArgumentType]
        yield
