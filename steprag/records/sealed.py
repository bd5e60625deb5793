"""Sizes and hashes in the manifest of a finished run or index folder, and their comparison with the files."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from steprag.errors import DataError, quoted
from steprag.records.jsonl import file_hash, read_json
from steprag.records.training_rows import MARKS

FILES = "files"
"""The manifest's list of finished files."""
KEPT = frozenset({".jsonl", ".sqlite", ".safetensors", ".gguf", ".parquet"})
"""Endings of the files that it lists."""
MODEL_FILES = frozenset({
    "adapter_config.json", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "model.safetensors.index.json",
})  # fmt: skip
"""Names of the other files that a model or an adapter is loaded from: listed too."""
REMEDY = "restore it from a copy of the run, or make the run again in an empty folder"
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
        if not os.path.isfile(path):
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


_FILES = TypeAdapter(dict[str, FileFacts], config=ConfigDict(defer_build=True))


class Listed:
    """The files that a run's manifest listed when the run was opened again. Files whose size and time are unchanged
    keep their recorded hash.
    """

    def __init__(self, folder: Path, files: object) -> None:
        """`files`: the manifest's list, None where it has none: then all that lies in the folder may be the run's."""
        try:
            self._facts = _FILES.validate_python(files or {})
            sound = all(map(_is_within, self._facts))
        except ValidationError:
            sound = False
        if not sound:  # damaged: hashed again
            self._facts, files = {}, None
        self._stamps = {name: _stamp(folder / name) for name in self._facts}
        self._strangers = set(_names(folder)) - self._facts.keys() if files else set()

    def of(self, folder: Path, name: str) -> FileFacts | None:
        """The recorded facts of an unchanged file, else its facts now; None for a file that others put there."""
        if name in self._strangers:
            return None
        path, facts = folder / name, self._facts.get(name)
        same = facts is not None and self._stamps[name] == _stamp(path) and path.stat().st_size == facts.bytes
        return facts if facts is not None and same else file_facts(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of change; None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def outputs(folder: Path, listed: Listed | None = None) -> dict[str, FileFacts]:
    """Sizes and hashes of what a run folder holds for other stages, by the path in it: records, journals, weights.

    Left out is what later commands write anew (scores, reports, pictures, indexes of records), what trainers keep for
    themselves, runs within the folder, which have manifests of their own, and what people put there.
    """
    facts = ((name, listed.of(folder, name) if listed else file_facts(folder / name)) for name in _names(folder))
    return {name: each for name, each in facts if each is not None}


def _names(folder: Path) -> Iterator[str]:
    """The paths in a run folder that may be listed, in order."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        inner = [folder.joinpath(*name.parts[:depth]) for depth in range(1, len(name.parts))]
        own = any(part.startswith((".", "checkpoint-")) for part in name.parts)
        apart = own or path.name == MARKS or any((one / "manifest.json").exists() for one in inner)
        if (path.suffix in KEPT or path.name in MODEL_FILES) and path.is_file() and not apart:
            yield name.as_posix()


def names_of(folder: Path, listed: object) -> list[str]:
    """The paths in a run folder of the files that its run made: those that its manifest lists, or where it lists none
    all that may be listed.
    """
    return [name for name in _names(folder) if not isinstance(listed, dict) or name in listed]


def to_facts(files: Mapping[str, FileFacts]) -> dict[str, dict[str, Any]]:
    """Sizes and hashes as a manifest keeps them."""
    return {name: dataclasses.asdict(facts) for name, facts in files.items()}


def check_model(folder: Path) -> None:
    """Compares a checkpoint of `steprag train` with its manifest, and `CKPT/merged` with that of CKPT. Folders of other
    programs have no list and pass. Raises DataError.
    """
    run = folder.parent if folder.name == "merged" and not (folder / "manifest.json").is_file() else folder
    manifest = read_json(run / "manifest.json", REMEDY) if (run / "manifest.json").is_file() else {}
    if manifest.get("stage") == "train":
        check_outputs(run, manifest)


def check_outputs(folder: Path, manifest: dict[str, Any], *, full: bool = False) -> int | None:
    """How many files of a run folder are as its manifest lists them; None where it lists none, as those of earlier
    versions and of runs that did not end. Raises DataError at the first that differs; `full`: every byte counts, not
    only those of small files and of samples of large ones.
    """
    if FILES not in manifest:
        return None
    try:
        files = _FILES.validate_python(manifest[FILES])
    except ValidationError:
        raise DataError(folder / "manifest.json", f"{FILES}: no list of files", remedy=REMEDY) from None
    files.pop(MARKS, None)  # version 0.1.0 listed it
    remedy = f"{REMEDY}; where you changed it yourself: steprag check --accept {folder}"
    check_files(folder, files, remedy, full=full)
    return len(files)
