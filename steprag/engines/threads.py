"""How threads wait for one another."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

BRIEFLY = "1000"
"""Turns of a waiting OpenMP thread before it sleeps.

Measured with llama.cpp on two cores: on an idle machine as fast
as endless spinning and twice as fast as sleeping at once; beside a busy process it takes 2.5 times as long, spinning
over 4.5 times.
"""


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine's under `taskset`, in a cpuset or a batch job's share."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_LOADING = threading.Lock()


@contextmanager
def one_load() -> Iterator[None]:
    """The block in which a model is loaded and its package imported, one at a time and without its bars.

    transformers replaces `PreTrainedModel.tie_weights` for the length of a load, and two loads at once leave it so for
    good, with later models untied; and it imports its parts when they are first asked for, which fails in the second
    of two threads ("cannot import name 'AutoModel'").
    """
    with _LOADING:
        from transformers import logging

        logging.disable_progress_bar()
        yield


def spin_briefly() -> None:
    """Sets it for libraries that this process and its children load from now on; a user's value stays.

    GNU OpenMP reads GOMP_SPINCOUNT once, when it is loaded, and prefers it to OMP_WAIT_POLICY.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", BRIEFLY)
