"""Checksums of a folder's files in its manifest: what was written is what is read, or the file is named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steprag.errors import DataError, quoted
from steprag.files import file_hash

HASHED_BYTES = 64 * 2**20
"""Bytes that are hashed whenever an index is opened, smallest file first; of larger ones a sample of blocks is."""
BLOCK = 4096
BLOCKS = 256
"""Blocks of a sample: spread evenly, the first and the last among them."""


@dataclass(frozen=True)
class FileFacts:
    """`sample` is the hash of some blocks of a large file (`sample_hash`); none in folders of earlier versions."""

    bytes: int
    sha256: str
    sample: str | None = None


def file_facts(path: Path) -> FileFacts:
    """A file's size, SHA-256 and sample hash; reads the whole file."""
    return FileFacts(path.stat().st_size, file_hash(path), sample_hash(path))


def sample_hash(path: Path) -> str:
    """SHA-256 over a file's size and 256 of its blocks, spread from the first to the last: at most 1 MiB is read."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        for number in range(BLOCKS):
            stream.seek(max(0, size - BLOCK) * number // (BLOCKS - 1))
            digest.update(stream.read(BLOCK))
    return digest.hexdigest()


def check_files(folder: Path, files: Mapping[str, FileFacts], remedy: str, *, full: bool = False) -> None:
    """Compares a folder's files with what its manifest lists. Raises DataError, with the remedy, at the first that
    differs.

    Sizes always; hashes of the smallest files up to 64 MiB together, of larger ones those of a sample of blocks; with
    `full` the hashes of all.
    """
    hashed = 0
    for name, facts in sorted(files.items(), key=lambda item: (item[1].bytes, item[0])):
        path = folder / name
        if not _is_within(name):
            raise DataError(folder / "manifest.json", f"lists {quoted(name)}, no file of its folder", remedy=remedy)
        if not path.is_file():
            raise DataError(path, "is missing", remedy=remedy)
        size = path.stat().st_size
        if size != facts.bytes:
            raise DataError(path, f"has {size} bytes, the manifest says {facts.bytes}", remedy=remedy)
        hashed += size
        if full or hashed <= HASHED_BYTES:
            same = file_hash(path) == facts.sha256
        else:
            same = facts.sample is None or sample_hash(path) == facts.sample
        if not same:
            raise DataError(path, "is not the file that was written: its SHA-256 differs", remedy=remedy)


def _is_within(name: str) -> bool:
    """Whether a manifest's name can be that of a file below its folder."""
    parts = name.split("/")
    return name.isprintable() and all(part not in ("", ".", "..") and len(part.encode()) < 256 for part in parts)
