"""The cache of converted weights and logs, and folders there that are made once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import filelock

from steprag.errors import ConfigError


def cache_dir() -> Path:
    """Folder for converted weights and logs: $STEPRAG_CACHE, else $XDG_CACHE_HOME/steprag, else ~/.cache/steprag."""
    if own := os.environ.get("STEPRAG_CACHE"):
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(xdg) if xdg else Path.home() / ".cache") / "steprag"
    except RuntimeError:  # a user whom the system has no home of, as in some containers
        raise ConfigError("no home folder for the cache: set STEPRAG_CACHE to a folder that may be written") from None


def made_once(target: Path, fill: Callable[[Path], None], *, current: Callable[[Path], bool]) -> Path:
    """`target`, as `fill` writes it where it is not current: whole or not at all, by one process at a time.

    A second process reuses the folder and never replaces files in use.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.parent / f".{target.name}.lock"):
        if not current(target):
            _replaced(target, fill)
    return target


def _replaced(target: Path, fill: Callable[[Path], None]) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        shutil.copymode(target.parent, temporary)
        fill(temporary)
        if target.exists():
            stale = Path(tempfile.mkdtemp(prefix=".stale-", dir=target.parent))
            target.rename(stale / target.name)
            shutil.rmtree(stale, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
