"""The one place where a folder becomes an index: its files are hashed and its manifest is written; what is printed
of it.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexes.encoding.encoders import EncoderSpec
from indexes.folder.addon import add_ons
from indexes.folder.manifest import (
    BUILT,
    FORMAT,
    INDEX,
    SPARSE,
    STAGE,
    CorpusFacts,
    IndexFacts,
    IndexManifest,
    fingerprint,
)
from indexes.folder.whole import LOCK, STATE
from indexes.rows.passage_store import OFFSETS, PASSAGES, SKIPPED
from indexes.rows.vector_file import VECTORS
from steprag.records.jsonl import dump_line, to_dict, write_json
from steprag.records.sealed import file_facts
from steprag.runs.run import code_version, now

FILES = (INDEX, VECTORS, PASSAGES, OFFSETS)
"""What searches read."""


@dataclass(frozen=True)
class Begun:
    """When a build began: by the calendar, and by a clock that only goes forward."""

    at: str = field(default_factory=now)
    clock: float = field(default_factory=time.monotonic)


def seal(
    folder: Path, begun: Begun, identity: dict[str, Any], encoder: EncoderSpec, corpus: CorpusFacts, index: IndexFacts,
    *, measured: dict[str, Any], config: dict[str, Any], origin: str = BUILT,
) -> IndexManifest:  # fmt: skip
    """Hashes the folder's files and writes the manifest, with which the folder is an index; returns it as written.

    What belongs to no index, such as the marks of a build or what a killed one left, is deleted first.
    """
    _clear(folder)
    names = [name for name in FILES if (folder / name).is_file()]
    files = {name: file_facts(folder / name) for name in names}
    manifest = IndexManifest(
        format=FORMAT,
        stage=STAGE,
        status="done",
        version=code_version(),
        started=begun.at,
        ended=now(),
        seconds=round(time.monotonic() - begun.clock, 2),
        identity=identity,
        config=config,
        encoder=encoder,
        metric="inner_product" if encoder.dense else SPARSE,
        corpus=corpus,
        index=index,
        measured=measured,
        files=files,
        fingerprint=fingerprint(encoder, index, files[PASSAGES].sha256),
        origin=origin,
    )
    write_json(folder / "manifest.json", to_dict(manifest))
    return manifest


def _clear(folder: Path) -> None:
    """Deletes all but an index's own files, its add-ons, and what the build needs to the end (`whole_folder`)."""
    kept = {*FILES, SKIPPED, STATE, LOCK, *add_ons(folder)}
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass(frozen=True)
class Built:
    """An index folder, whether it was there already, and which add-ons (bm25, links) this build gave it."""

    path: Path
    manifest: IndexManifest
    reused: bool
    added: tuple[str, ...] = ()


def shown(built: Built, *, as_json: bool) -> str:
    """What `index build` and `index adopt` print: the index, what decides its results, what was measured, its bytes
    without add-ons.
    """
    manifest, there = built.manifest, add_ons(built.path)
    report = {
        "index": str(built.path),
        "reused": built.reused,
        "passages": manifest.corpus.rows,
        "skipped": sum(manifest.corpus.skipped.values()),
        "encoder": manifest.encoder.name,
        "dimension": manifest.encoder.dimension,
        "fingerprint": manifest.fingerprint,
        "seconds": manifest.seconds,
        **dataclasses.asdict(manifest.index),
        **manifest.measured,
        "bytes": sum(facts.bytes for facts in manifest.files.values()),
        "bm25": "bm25" in there,
        "links": "links" in there,
    }
    return dump_line(report) + "\n" if as_json else "".join(f"{key:<16} {value}\n" for key, value in report.items())
