"""The Ray cluster that work is handed to (extra `ray`): the one at $RAY_ADDRESS, or one of this machine's own."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steprag.errors import ConfigError, StepragError
from steprag.extras import remedy

OBJECT_STORE = 128 * 2**20
"""Bytes of memory for replies on their way, where the cluster is started here. Results have some 100 kB."""
CONNECTING = 10.0
"""Seconds until a cluster counts as one that is not there."""


def check_ray() -> None:
    """Raises ConfigError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"--ray needs the extra `ray` (ray is not installed): {remedy('ray')}")


@contextmanager
def cluster(slots: int) -> Iterator[None]:
    """The cluster at $RAY_ADDRESS, or one on this machine for the block: without dashboard, reporting to nobody.

    Ray's servers listen on all interfaces, whatever they are told; the token that it makes keeps strangers out.
    """
    import ray  # pyright: ignore[reportMissingImports]

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address := os.environ.get("RAY_ADDRESS"):
            _check_listens(address)
            ray.init(address=address, **common)
        else:
            ray.init(
                address="local",
                num_cpus=slots,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                **common,
            )
    except (OSError, ValueError, RuntimeError) as error:
        where, said = os.environ.get("RAY_ADDRESS", "not set"), " ".join(str(error).split())[:300]
        raise ConfigError(f"no Ray cluster ($RAY_ADDRESS: {where}): {said}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Raises OSError where nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and "://" not in address and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECTING).close()


def own_error(error: Exception) -> Exception:
    """An actor's StepragError without the actor's traceback; any other error unchanged."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, StepragError) else error
