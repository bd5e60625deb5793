"""The index folder's manifest: how the index came to be, and what must hold when it is opened.

What is added to a finished index folder (BM25, links) is a folder in it that appears whole, with a manifest of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from indexes.encoding.encoders import EncoderSpec
from indexes.ranking.rankings import named
from indexes.rows.passage_store import PASSAGES, PassageStore
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.jsonl import from_dict, read_json, to_dict, write_json
from steprag.records.sealed import FileFacts, check_files, file_facts

FORMAT = 1
STAGE = "index"
BUILT = "built"
INDEX = "index.faiss"
SPARSE = "bm25"
"""The type of an index without vectors."""
MEND = "build the index again, or copy the whole folder again"


@dataclass(frozen=True)
class CorpusFacts:
    """`sha256` is that of the corpus as given, `path` where it stood; `skipped` counts lines that were left out, by
    kind. Of documents, `parts` counts what was read beside paragraphs, `left_out` what was not, by kind, with the place
    and first words of the largest piece.
    """

    path: str
    sha256: str
    rows: int
    skipped: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class IndexFacts:
    """`parameters` are those of the FAISS type; a flat index has none."""

    type: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class IndexManifest:
    """`manifest.json`. `measured`: recall@10 and milliseconds a query against exact search, on sampled passages or
    given questions. `origin`: built, or adopted and what from.
    """

    format: int
    stage: str
    status: str
    version: str
    started: str
    ended: str
    seconds: float
    identity: dict[str, Any]
    config: dict[str, Any]
    encoder: EncoderSpec
    metric: str
    corpus: CorpusFacts
    index: IndexFacts
    measured: dict[str, Any]
    files: dict[str, FileFacts]
    fingerprint: str
    origin: str = BUILT
    extra: dict[str, Any] = field(default_factory=dict)


def identity(corpus_sha256: str, encoder: EncoderSpec, index: IndexFacts) -> dict[str, Any]:
    """The facts that decide the result of a build; the place of the encoder is none of them."""
    return {"corpus": corpus_sha256, "encoder": encoder.decisive, "index": dataclasses.asdict(index)}


def fingerprint(encoder: EncoderSpec, index: IndexFacts, passages_sha256: str) -> str:
    """Names an index by what it answers: encoder, type and the passages themselves (16 hex digits)."""
    content = json.dumps(identity(passages_sha256, encoder, index), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_index_manifest(folder: Path) -> IndexManifest:
    """The manifest of an index folder. Raises ConfigError where there is none, DataError where it is damaged."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ConfigError(f"{folder} is no index folder: it has no manifest.json (build one: steprag index build)")
    row = read_json(path, remedy="build the index again")
    if row.get("stage") != STAGE:
        raise ConfigError(f"{folder} is a run of {quoted(row.get('stage'))}, not an index folder")
    manifest = from_dict(IndexManifest, row, path, 1)
    if PASSAGES not in manifest.files:
        raise DataError(path, f"lists no {PASSAGES} among its files", remedy=MEND)
    if manifest.format != FORMAT:
        raise ConfigError(f"{path}: format {manifest.format}, this version reads {FORMAT}; build the index again")
    return manifest


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
        with filelock.FileLock(lock, timeout=0):
            _write_whole(folder, index, name, settings, write)
            lock.unlink()
    except filelock.Timeout:
        raise ConfigError(f"{folder / name} is being made by another process; wait for it") from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write {folder / name}: {reason}; the index is as it was") from None
    return True


def _write_whole(
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
