"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from steprag.engines.threads import return_freed_memory

PIECE, PIECES = 100_000, 3000
"""Pieces that glibc takes from its heap, 286 MiB of them."""


def resident() -> int:
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_memory_that_the_heap_keeps_is_given_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    before = resident()
    pieces = [libc.malloc(PIECE) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    for piece in pieces[:-1]:  # the last one keeps the heap's end where it is
        libc.free(piece)
    kept = resident() - before
    return_freed_memory()
    returned = resident() - before
    libc.free(pieces[-1])
    assert kept > 200
    assert returned < 50
