"""What a finished run folder holds for other stages, and whether it is still what the run wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from steprag.checksums import FileFacts, check_files, file_facts
from steprag.errors import DataError
from steprag.files import read_json

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
_FILES = TypeAdapter(dict[str, FileFacts])


class Listed:
    """The files that a run's manifest listed when the run was opened again: those that nobody writes to until it
    closes are not hashed again.
    """

    def __init__(self, folder: Path, files: object) -> None:
        try:
            self._facts = _FILES.validate_python(files or {})
        except ValidationError:  # damaged: hashed again
            self._facts = {}
        self._stamps = {name: _stamp(folder / name) for name in self._facts}

    def of(self, folder: Path, name: str) -> FileFacts:
        """What was listed of a file that is as it was; else its facts now."""
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
    themselves, and runs within the folder, which have manifests of their own.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        inner = [folder.joinpath(*name.parts[:depth]) for depth in range(1, len(name.parts))]
        own = any(part.startswith((".", "checkpoint-")) for part in name.parts)
        apart = own or any((one / "manifest.json").exists() for one in inner)
        if (path.suffix in KEPT or path.name in MODEL_FILES) and path.is_file() and not apart:
            found[name.as_posix()] = listed.of(folder, name.as_posix()) if listed else file_facts(path)
    return found


def to_facts(files: Mapping[str, FileFacts]) -> dict[str, dict[str, Any]]:
    """Sizes and hashes as a manifest keeps them."""
    return {name: dataclasses.asdict(facts) for name, facts in files.items()}


def check_model(folder: Path) -> None:
    """Holds a checkpoint of `steprag train` against its manifest, and `CKPT/merged` against that of CKPT; a folder of
    anyone else has none that lists files. Raises DataError.
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
    remedy = f"{REMEDY}; where you changed it yourself: steprag run check --accept {folder}"
    check_files(folder, files, remedy, full=full)
    return len(files)
