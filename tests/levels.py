"""How much a run tests, and the seed of its mutations. `scripts/test.sh` sets the level; pytest's header shows both.

`STEPRAG_TESTS`: `quick` (the default), `landing` (CI), `all` (before an issue is resolved) or `long` (on request).
`STEPRAG_FUZZ_SEED`: a number; without it the commit decides, so that every commit is tried with other mutations and a
failure is repeated by its commit alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LEVELS = ("quick", "landing", "all", "long")
LEVEL = os.environ.get("STEPRAG_TESTS", "quick")
if LEVEL not in LEVELS:
    raise ValueError(f"STEPRAG_TESTS={LEVEL}: it is one of {', '.join(LEVELS)}")


def rounds(quick: int, every: int, long: int) -> int:
    """How often this run tries a thing: a number for each level; `landing` tries as often as `quick`."""
    return (quick, quick, every, long)[LEVELS.index(LEVEL)]


def _of_the_commit() -> int:
    root = Path(__file__).parent.parent
    head = ["git", "-C", str(root), "rev-parse", "HEAD"]
    found = subprocess.run(head, capture_output=True, text=True, check=False).stdout if (root / ".git").exists() else ""
    return int(found[:8] or "0", 16)


SEED = int(os.environ.get("STEPRAG_FUZZ_SEED") or _of_the_commit())
