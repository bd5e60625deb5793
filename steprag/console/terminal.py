"""What a person sees of a command: errors as one line with an exit code, and text alone.

Passages, steps and endpoints' messages may hold a terminal's control sequences. These move the cursor, change the title
or write into the clipboard.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from steprag.console.progress import kept_next, say
from steprag.errors import NO_ROOM, ConfigError, StepragError
from steprag.extras import missing_extra

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


REMEDIES = dict.fromkeys(NO_ROOM, "what is written so far is kept: make room and run the same command again")
"""By the number of a system's error: what to do about it."""
REMEDIES |= dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR),
    "give a place that may be written: the option that names it, or $STEPRAG_CACHE, $HF_HOME, $TMPDIR",
)


def guarded(command: Callable[[list[str]], int], argv: list[str]) -> int:
    """Runs `command(argv)`; a StepragError becomes one line on standard error and its exit code."""
    with plain_terminals():
        return _guarded(command, argv)


def _guarded(command: Callable[[list[str]], int], argv: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        with panics_named(), extras_named(""):
            kept_next()  # of a command before, in this process
            code = command(argv)
            for line in kept_next() if "--json" not in argv else ():
                say(line)
            return code
    except StepragError as error:
        sys.stderr.write(f"steprag: {error}\n")
        return error.exit_code
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        sys.stderr.write(f"steprag: {error.filename or 'the disk'}: {error.strerror}; {remedy}\n")
        return 1
    except KeyboardInterrupt:
        logging.getLogger("asyncio").disabled = True
        sys.stderr.write("steprag: interrupted; run the same command again to continue\n")
    gc.collect()  # frees the tasks that a second Ctrl-C broke off: asyncio would show each with its traceback
    logging.getLogger("asyncio").disabled = False
    return 130


@contextmanager
def panics_named() -> Iterator[None]:
    """Raises ConfigError for a panic of a library in Rust, whose class derives from no Exception and has no address."""
    try:
        yield
    finally:
        kind, panic, _ = sys.exc_info()
        if kind is not None and kind.__name__ == "PanicException":
            told = f"{panic}".partition("\n")[0][:200]
            raise ConfigError(f"a library failed on a file it was given, most likely a tokenizer: {told}") from None


@contextmanager
def extras_named(words: str) -> Iterator[None]:
    """A package that an extra would bring, and that is not installed, becomes a ConfigError that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if line := missing_extra(error, words):
            raise ConfigError(line) from error
        raise
