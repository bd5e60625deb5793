"""This machine's processors and memory: how much may be used, what processors are good at, how threads wait."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BRIEFLY = "1000"
"""Turns of a waiting OpenMP thread before it sleeps.

Measured with llama.cpp on two cores: on an idle machine as fast
as endless spinning and twice as fast as sleeping at once; beside a busy process it takes 2.5 times as long, spinning
over 4.5 times.
"""


def usable_cores(system: Path = Path("/")) -> int:
    """Cores that this process may use: fewer than the machine's under `taskset`, in a cpuset, or where a container or a
    batch job has a share of them. `system`: where /proc and /sys are.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota(system))))


def threads_for(wanted: int | None) -> int:
    """`wanted`; else what the user has set as OMP_NUM_THREADS; else `usable_cores`."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return wanted or (int(given) if given.isdecimal() else 0) or usable_cores()


def usable_memory(system: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, or fewer where a container or a batch job has so many.
    `system`: where /proc and /sys are.
    """
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = {2: "memory.max", 1: "memory.limit_in_bytes"}
    return int(min([whole, *(_bytes(group / files[version]) for group, version in _groups("memory", system))]))


def _quota(system: Path) -> float:
    """The processor time, in cores, that this process's control groups allow; else infinity."""
    files = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    return min([math.inf, *(_cores(group, files[version]) for group, version in _groups("cpu", system))])


def _groups(controller: str, system: Path) -> Iterator[tuple[Path, int]]:
    """The folders of the control groups that bound this process (Linux), and their version, 1 or 2."""
    try:
        lines = [line.split(":", 2) for line in (system / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # no Linux
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and controller not in controllers.split(","):
            continue
        mounted = system / "sys/fs/cgroup" / (controller if controllers else "")
        own = mounted / path.strip("/")
        for place in (own, *own.parents[: len(own.parts) - len(mounted.parts)]):  # a parent's bound holds too
            yield place, 1 if controllers else 2


def _bytes(file: Path) -> float:
    """The bytes that a file allows; infinity where there is no such file, or it says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return math.inf


def _cores(group: Path, files: tuple[str, ...]) -> float:
    """Microseconds that a group may have in each period, divided by the period's; infinity where it has no bound."""
    try:
        quota, period = " ".join((group / file).read_text() for file in files).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # no such file, "max", or of a form that is not known
        return math.inf


def product_flops() -> float:
    """Multiply-adds a second, twice, of this machine's matrix product in float32, measured in a moment."""
    import numpy as np

    square = np.ones((768, 768), dtype=np.float32)
    np.matmul(square, square)
    start = time.perf_counter()
    for _ in range(4):
        np.matmul(square, square)
    return 4 * 2 * 768**3 / (time.perf_counter() - start)


_LOADING = threading.RLock()


@contextmanager
def one_load() -> Iterator[None]:
    """The block in which a model is loaded and its package imported, by one thread at a time and without its bars.

    transformers replaces `PreTrainedModel.tie_weights` for the length of a load, and two loads at once leave it so for
    good, with later models untied; and it imports its parts when they are first asked for, which fails in the second
    of two threads ("cannot import name 'AutoModel'"). A load may make another first, such as the folder that
    it reads: its own thread does not wait.
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


def fast_dtype() -> str:
    """`bfloat16` where it has instructions for that, else `float32`: bfloat16 would be emulated, and slower.

    Imports torch (seconds), so ask late.
    """
    import torch

    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


def return_freed_memory() -> None:
    """Gives freed memory back to the system, where the C library is glibc; elsewhere nothing happens.

    Tensors of changing shapes fragment glibc's heap, which keeps the pieces. A training run of 168 batches held 12.1
    GB, and 1.2 GB after one call. The pages have to be fetched again, so call it rarely.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


@contextmanager
def rare_collections(new: int = 20_000, full: int = 10) -> Iterator[None]:
    """A block in which Python looks for cycles of unused objects once in `new` new objects, not in 700, and among all
    objects every `full` times that the middle-aged were looked through. With many calls in flight that search took a
    tenth of what a call costs, and a fifth of what it takes to import transformers.
    """
    before = gc.get_threshold()
    gc.set_threshold(new, before[1], full)
    try:
        yield
    finally:
        gc.set_threshold(*before)
