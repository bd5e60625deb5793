"""Does work grow faster than its text? Measured in processor time of this process, so a busy machine matters little.

Some kernels count processor time in ticks of 4 ms: what is shorter than a few of them is measured by the wall clock.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

from tests.pattern_texts import Shape, long

FLOOR, GROWTH = 0.1, 3.0
"""Below what time a ratio says nothing, and how much more twice the text may take."""
RUNS, MOST = 3, 1 << 18
"""How often a suspicious text is tried, and the longest one, in characters."""
TICKS = 0.04
"""Seconds of processor time from which a clock that counts in ticks is right within a tenth."""


class TooLongError(Exception):
    """A call did not end in time."""


def _alarm(*_: object) -> None:
    raise TooLongError


def seconds(run: Callable[[str], object], text: str, most: float) -> float:
    """What one call takes; infinite where it does not end within `most`."""
    signal.signal(signal.SIGVTALRM, _alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, most)
    start, begun = time.process_time(), time.perf_counter()
    try:
        run(text)
        wall, used = time.perf_counter() - begun, time.process_time() - start
        return used if used > TICKS else wall
    except TooLongError:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def growth(
    run: Callable[[str], object], shape: Shape, size: int, little: float, patience: float, longest: int = MOST
) -> tuple[float, float, float] | None:
    """What a text, one twice as long and one four times as long take, where that is more than their share; None where
    it is not. A first look spares most texts the rest: they take less than `little` a character, or four times as long
    where they are four times as long. What is left is tried with longer texts until the time says something.
    `patience`: seconds until a call is given up.
    """

    def once_of(length: int) -> float:
        return seconds(run, long(shape, length), patience)

    def least(length: int) -> float:
        return min(once_of(length) for _ in range(RUNS))

    share = little * 4 * size
    if (first := once_of(4 * size)) == math.inf:
        return 0, 0, first
    if first < share or once_of(4 * size) < share:
        return None
    if min(first, least(4 * size)) < 1.6 * 4 * least(size):
        return None
    while (most := once_of(4 * size)) < FLOOR:
        if most > FLOOR / 20 and most <= GROWTH * least(2 * size):
            return None
        size *= 2
        if 4 * size > min(longest, MOST):
            return None
    once, twice = least(size), least(2 * size)
    most = most if most == math.inf else least(4 * size)
    return (once, twice, most) if twice > GROWTH * once and most > GROWTH * twice else None
