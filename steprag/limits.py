"""Bounds on what files may cost to read. They are far above what good files need, and the environment raises them."""

from __future__ import annotations

import os

from steprag.errors import ConfigError, quoted

LINE = "STEPRAG_LINE_MIB"
"""Variable: MiB that one line of a file, or one JSON file, may have."""
EXPANSION = "STEPRAG_EXPANSION"
"""Variable: how many times its own size a compressed file may expand to."""
_DEFAULTS = {LINE: 64, EXPANSION: 200}


def line_bytes() -> int:
    """Bytes that a line may have, without its newline."""
    return _limit(LINE) << 20


def expansion() -> int:
    """How many times its own size a compressed file may expand to."""
    return _limit(EXPANSION)


def _limit(variable: str) -> int:
    given = os.environ.get(variable, "").strip()
    if not given:
        return _DEFAULTS[variable]
    if not (given.isascii() and given.isdigit() and 1 <= len(given) <= 9 and int(given)):
        raise ConfigError(f"${variable} is {quoted(given)}; give a whole number of at least 1")
    return int(given)
