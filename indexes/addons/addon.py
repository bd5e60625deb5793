"""What is added to a finished index folder: a folder in it that appears whole, with a manifest of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from indexes.corpora.passage_store import PASSAGES, PassageStore
from indexes.manifest import MEND, IndexManifest
from indexes.retrieval.searchers import named
from steprag.errors import ConfigError, DataError
from steprag.files import from_dict, read_json, to_dict, write_json
from steprag.run_outputs import FileFacts, check_files, file_facts
from steprag.sections import Section

FORMAT = 1


@dataclass(frozen=True)
class Sidecar:
    """`NAME/manifest.json`. `passages`: SHA-256 of the passages file it was made from; `rows` how many those are."""

    format: int
    name: str
    settings: dict[str, Any]
    passages: str
    rows: int
    files: dict[str, FileFacts]
    fingerprint: str
    extra: dict[str, Any] = field(default_factory=dict)


def sidecars(folder: Path) -> list[str]:
    """The names of what was added to an index folder."""
    return sorted(path.parent.name for path in folder.glob("[!.]*/manifest.json"))


def add_sidecar(
    folder: Path, index: IndexManifest, name: str, settings: Section, write: Callable[[Path, PassageStore], None]
) -> bool:
    """Has `write` fill the folder `name` of an index folder; False where it is there already.

    Raises ConfigError where it is there with other settings, another process is adding it, or it cannot be written;
    the index is as it was.
    """
    if (folder / name).exists():
        if read_sidecar(folder, index, name).settings != settings.model_dump():
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
    folder: Path, index: IndexManifest, name: str, settings: Section, write: Callable[[Path, PassageStore], None]
) -> None:
    unfinished = folder / f".{name}.building"
    shutil.rmtree(unfinished, ignore_errors=True)  # what a kill left
    passages = index.files[PASSAGES].sha256
    try:
        unfinished.mkdir()
        with PassageStore(folder) as store:
            write(unfinished, store)
        sidecar = Sidecar(
            format=FORMAT,
            name=name,
            settings=settings.model_dump(),
            passages=passages,
            rows=index.corpus.rows,
            files={path.name: file_facts(path) for path in sorted(unfinished.iterdir())},
            fingerprint=named(name, FORMAT, settings.model_dump(), passages),
        )
        write_json(unfinished / "manifest.json", to_dict(sidecar))
        unfinished.replace(folder / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_sidecar(folder: Path, index: IndexManifest, name: str) -> Sidecar:
    """The manifest of a sidecar. Raises ConfigError where there is none, DataError where it is not this index's."""
    path = folder / name / "manifest.json"
    remedy = f"delete {folder / name} and add it again"
    if not path.is_file():
        raise ConfigError(f"{folder} has no {name} folder; the command that built it, with --hybrid, adds it")
    sidecar = from_dict(Sidecar, read_json(path, remedy), path, 1)
    if sidecar.format != FORMAT:
        raise DataError(path, f"format {sidecar.format}, this version reads {FORMAT}", remedy=remedy)
    passages = index.files[PASSAGES].sha256
    if sidecar.passages != passages or sidecar.rows != index.corpus.rows:
        raise DataError(path, "belongs to other passages than this index", remedy=remedy)
    if sidecar.fingerprint != named(name, FORMAT, sidecar.settings, passages):
        raise DataError(path, "was changed: its fingerprint does not fit", remedy=remedy)
    return sidecar


def open_sidecar(folder: Path, index: IndexManifest, name: str) -> Sidecar:
    """The same, after its files are compared with it. Raises ConfigError or DataError."""
    sidecar = read_sidecar(folder, index, name)
    check_files(folder / name, sidecar.files, MEND)
    return sidecar
