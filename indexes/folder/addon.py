"""Add-ons of a finished index folder: each is a folder in it that appears whole, with its own manifest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from indexes.folder.manifest import MEND, IndexManifest
from indexes.ranking.rankings import named
from indexes.rows.passage_store import PASSAGES, PassageStore
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import from_dict, read_json, to_dict, write_json
from steprag.records.sealed import FileFacts, check_files, file_facts

FORMAT = 1


@dataclass(frozen=True)
class AddOn:
    """`NAME/manifest.json`. `passages`: SHA-256 of the passages file it was made from; `rows` how many those are."""

    format: int
    name: str
    settings: dict[str, Any]
    passages: str
    rows: int
    files: dict[str, FileFacts]
    fingerprint: str
    extra: dict[str, Any] = field(default_factory=dict)


def add_ons(folder: Path) -> list[str]:
    """The names of what was added to an index folder."""
    return sorted(path.parent.name for path in folder.glob("[!.]*/manifest.json"))


def write_add_on(
    folder: Path, index: IndexManifest, name: str, settings: dict[str, Any], write: Callable[[Path, PassageStore], None]
) -> bool:
    """Has `write` fill the folder `name` of an index folder; False where it is there already.

    A setting that an earlier version did not know is not compared. Raises ConfigError where the add-on is there with
    other settings, another process is adding it, or it cannot be written;
    the index is as it was.
    """
    if (folder / name).exists():
        there = read_add_on(folder, index, name).settings
        if there != {key: settings.get(key) for key in there}:
            raise ConfigError(f"{folder / name} has other settings; delete that folder to build it again")
        return False
    lock = folder / f".{name}.lock"
    try:
        with FileLock(lock, timeout=0):
            _write(folder, index, name, settings, write)
            lock.unlink()
    except Timeout:
        raise ConfigError(f"{folder / name} is being made by another process; wait for it") from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write {folder / name}: {reason}; the index is as it was") from None
    return True


def _write(
    folder: Path, index: IndexManifest, name: str, settings: dict[str, Any], write: Callable[[Path, PassageStore], None]
) -> None:
    unfinished = folder / f".{name}.building"
    shutil.rmtree(unfinished, ignore_errors=True)  # what a kill left
    passages = index.files[PASSAGES].sha256
    try:
        unfinished.mkdir()
        with PassageStore(folder) as store:
            write(unfinished, store)
        add_on = AddOn(
            format=FORMAT,
            name=name,
            settings=settings,
            passages=passages,
            rows=index.corpus.rows,
            files={path.name: file_facts(path) for path in sorted(unfinished.iterdir())},
            fingerprint=named(name, FORMAT, settings, passages),
        )
        write_json(unfinished / "manifest.json", to_dict(add_on))
        unfinished.replace(folder / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_add_on(folder: Path, index: IndexManifest, name: str) -> AddOn:
    """The manifest of an add-on. Raises ConfigError where there is none, DataError where it is not this index's."""
    path = folder / name / "manifest.json"
    remedy = f"delete {folder / name} and add it again"
    if not path.is_file():
        raise ConfigError(f"{folder} has no {name} folder; the command that built it, with --hybrid, adds it")
    add_on = from_dict(AddOn, read_json(path, remedy), path, 1)
    if add_on.format != FORMAT:
        raise DataError(path, f"format {add_on.format}, this version reads {FORMAT}", remedy=remedy)
    passages = index.files[PASSAGES].sha256
    if add_on.passages != passages or add_on.rows != index.corpus.rows:
        raise DataError(path, "belongs to other passages than this index", remedy=remedy)
    if add_on.fingerprint != named(name, FORMAT, add_on.settings, passages):
        raise DataError(path, "was changed: its fingerprint does not fit", remedy=remedy)
    return add_on


def open_add_on(folder: Path, index: IndexManifest, name: str) -> AddOn:
    """The same, after its files are compared with it. Raises ConfigError or DataError."""
    add_on = read_add_on(folder, index, name)
    check_files(folder / name, add_on.files, MEND)
    return add_on
