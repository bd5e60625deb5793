"""How native threads wait for one another."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

BRIEFLY = "1000"
"""Turns of a waiting OpenMP thread before it sleeps.

Measured with llama.cpp on two cores (benchmarks/engine_waiting.py): as fast as endless spinning on an idle machine and
twice as fast as sleeping at once; beside one busy process it takes 2.5 times as long, where spinning took over five times.
"""


def spin_briefly(environment: MutableMapping[str, str] | None = None) -> None:
    """Sets it for libraries that this process (or a child with `environment`) loads from now on; a user's value stays.

    GNU OpenMP reads GOMP_SPINCOUNT once, when it is loaded, and prefers it to OMP_WAIT_POLICY.
    """
    (os.environ if environment is None else environment).setdefault("GOMP_SPINCOUNT", BRIEFLY)
