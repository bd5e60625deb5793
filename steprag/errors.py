"""Every error StepRAG raises on purpose, in one place.

    StepragError                 exit code 1
    ├── ConfigError              2   a key, an option or a path that the user gave is wrong
    ├── DataError                2   bytes that came in do not follow their format (file, line, remedy)
    ├── RequestError             1   one request failed: the question fails, the run continues
    │   ├── PolicyError              a policy or judge
    │   │   └── ContentFiltered      the provider's filter took the prompt or the reply
    │   ├── RetrieverError           a retriever
    │   └── NotJournalled            a replay asked for a call that was never made
    ├── PolicyUnavailable        2   nothing answers at the endpoint, or it does not serve the model
    ├── PolicyRefused            5   wrong key, quota or balance are used up, or all requests are refused alike
    ├── TrainingError            1   a trainer failed
    ├── JournalError             1   the journal cannot be read or written (damaged, another process)
    │   └── JournalFull              its disk takes no more
    ├── BudgetReached            4   a limit that the user set was reached; the run can be resumed later
    └── StepFormatError          -   a completion broke the step grammar

Two mechanisms use them. `StepFormatError` and `RequestError` are *data*: what runs the questions records them
(`node.failure`, `failures.jsonl`) and the run continues. Everything else propagates to `steprag.cli`, which prints one
line, the message, and exits with `exit_code`. Nothing else is caught. A message quotes what users and
strangers wrote with `quoted`, so that a line stays a line.
"""

from __future__ import annotations

import copy
import difflib
import errno
import reprlib
from collections.abc import Sequence
from pathlib import Path

PART_DONE = 3
"""Exit code of a command that did what it could: failures are recorded."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What an OSError says where nothing more can be written."""
LONGEST = 2000
"""Characters of a message; what is longer loses its middle."""
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxlist, _SHOWN.maxdict, _SHOWN.maxstring, _SHOWN.maxother = 3, 4, 4, 160, 160


def nearest(name: str, known: Sequence[str], remedy: str = "") -> str:
    """The end of a message about an unknown name: the known one that differs in a letter or two, or else the `remedy`,
    without which it is what is known.
    """
    typed = name.lstrip("-").replace("-", "_")
    plain = {one.rpartition(".")[2]: one for one in known if "." not in name and one[:1] != "-"}
    plain |= {one.lstrip("-").replace("-", "_"): one for one in known}
    close = difflib.get_close_matches(typed, plain, n=1, cutoff=0.75 if len(typed) > 3 else 0.5)
    if close:
        return f"; did you mean {plain[close[0]]!r}?"
    return remedy or f"; known: {', '.join(sorted(known))}"


def quoted(value: object) -> str:
    """A value for a message, as Python writes it, in one line of at most 240 characters: long ones lose their middle.

    A whole number of more digits than Python writes stands as the count of its bits.
    """
    try:
        return shortened(_SHOWN.repr(value), 240)
    except ValueError:  # Python's limit: 4,300 digits
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"


def shortened(text: str, most: int) -> str:
    """The text without its middle where it has more than `most` characters."""
    if len(text) <= most:
        return text
    end = (most - 3) // 3
    return f"{text[: most - 3 - end]}...{text[len(text) - end :]}"


def counted(count: float, unit: str) -> str:
    """An amount with its unit, in the plural unless it is one: "1 tree", "1,200 trees"."""
    return f"{count:,.10g} {unit}{'' if count == 1 else 'es' if unit.endswith(('s', 'ch')) else 's'}"


class StepragError(Exception):
    """Root of the hierarchy. The message is one line for the user: what is wrong, where, and what to do."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message, LONGEST))

    def __reduce__(self) -> tuple[object, ...]:
        """What another process raises again: the message and all else, whatever the class is made from."""
        return _again, (type(self), self.args, vars(self))


def _again(cls: type[StepragError], args: tuple[object, ...], state: dict[str, object]) -> StepragError:
    error = cls.__new__(cls, *args)
    vars(error).update(state)
    return error


def own_copy(error: BaseException) -> BaseException:
    """A copy of an error for one of several waiters: each adds its own traceback to what it raises. The error itself
    if its class does not allow an equal copy.
    """
    try:
        own = copy.copy(error)
    except TypeError:  # the class is not made from `args`
        return error
    own.__cause__ = error.__cause__
    return own.with_traceback(error.__traceback__) if str(own) == str(error) else error


class ConfigError(StepragError):
    """A configuration key, an option or a path that the user gave is wrong."""

    exit_code = 2


class DataError(StepragError):
    """A file does not follow its format.

    `line` counts from 1; None where the whole file is meant.
    """

    exit_code = 2

    def __init__(self, path: Path | str, problem: str, *, line: int | None = None, remedy: str = "") -> None:
        where = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{where}: {problem}" + (f" ({remedy})" if remedy else ""))
        self.path, self.problem, self.line, self.remedy = str(path), problem, line, remedy


class RequestError(StepragError):
    """One request failed after its retries; the question that needed it fails, the run continues."""


class PolicyError(RequestError):
    """A policy or judge endpoint failed for one request."""


class ContentFiltered(PolicyError):
    """The provider's filter refused one prompt, or took the reply: no fault of the model's."""


class RetrieverError(RequestError):
    """A retriever failed for one search."""


class NotJournalled(RequestError):
    """A replay asked for a call or a search that the journal does not hold."""


class JournalError(StepragError):
    """The journal of a run cannot be read or written; what it holds is kept."""


class JournalFull(JournalError):
    """The journal's disk takes no more: it has no room, or cannot be written."""


class PolicyUnavailable(StepragError):
    """Nothing answers at the endpoint, or it does not serve the model: the run cannot start or continue."""

    exit_code = 2


class PolicyRefused(StepragError):
    """The endpoint refuses the key or every request, or the quota is used up: no further request can succeed."""

    exit_code = 5


class TrainingError(StepragError):
    """A trainer failed."""


class BudgetReached(StepragError):
    """A limit that the user set was reached; what is finished is kept and the run can be resumed."""

    exit_code = 4


class StepFormatError(StepragError):
    """A completion broke the step grammar.

    `reason` is one word from `steprag.agent.grammar.FAILURES`, counted and stored; the message says more.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail
