"""How a folder becomes an index and comes to stand under its name: whole or not at all, and never over one that is in
order. What is printed of it.

A build works in `.NAME.building` beside the folder. What a kill or an interrupt leaves there, the next build of the
same index goes on with. At its end the files are hashed and the manifest is written.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from indexes.corpora.document_list import READ
from indexes.encoding.encoders import EncoderSpec
from indexes.folder.manifest import (
    BUILT,
    FORMAT,
    INDEX,
    SPARSE,
    STAGE,
    CorpusFacts,
    IndexFacts,
    IndexManifest,
    add_ons,
    fingerprint,
)
from indexes.rows.passage_store import DOCUMENTS, OFFSETS, PASSAGES, SKIPPED
from indexes.rows.vector_file import MARKS, VECTORS, NoRoom, no_room
from steprag.console.progress import say
from steprag.errors import ConfigError, DataError, counted
from steprag.records.json_text import decoded
from steprag.records.jsonl import dump_line, to_dict, write_json
from steprag.records.sealed import file_facts
from steprag.runs.run import code_version, now

FILES = (INDEX, VECTORS, PASSAGES, OFFSETS, DOCUMENTS)
"""What searches and updates read."""
STATE = "state.json"
LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    kept = {*FILES, SKIPPED, STATE, LOCK, *add_ons(folder)}
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
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


@contextmanager
def building(out: Path, state: dict[str, Any]) -> Iterator[Path]:
    """The folder in which `out` is built. It takes the place of `out` when the block ends well.

    `state` names what is built: what an earlier build of the same left is gone on with, anything else is cleared.
    Bad input (DataError, ConfigError) clears it too where nothing is encoded yet; whatever else ends the block leaves
    it for the next build. Raises ConfigError where another process builds here, or the disk is full.
    """
    folder, lock = _locked(out)
    try:
        _prepare(folder, state)
        yield folder
        _take_place(folder, out)
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(folder, 0) from None
        raise
    except (DataError, ConfigError) as error:
        if not isinstance(error, NoRoom) and not (folder / MARKS).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        lock.release()


def _locked(out: Path) -> tuple[Path, filelock.FileLock]:
    """The folder in which `out` is built, and its lock, held."""
    folder = out.parent / f".{out.name}.building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make a folder beside {out}: {error.strerror or error}") from None
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ConfigError(f"{out} is being built by another process; wait for it or choose another --out") from None
    return folder, lock


def _prepare(folder: Path, state: dict[str, Any]) -> None:
    """Keeps what stands in the folder where it is of the same build, else clears it."""
    state = json.loads(json.dumps(state))
    try:
        known = decoded((folder / STATE).read_bytes())
    except (FileNotFoundError, ValueError):
        known = None
    if known != state:
        if known is not None:
            kept = ", but for what was read of its documents" if (folder / READ).exists() else ""
            say(f"index: {folder} holds part of another build, which is given up{kept}")
        for left in folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != LOCK and not left.name.startswith(READ):  # what was read of a file that is as it was
                left.unlink()
        write_json(folder / STATE, state)


def _take_place(folder: Path, out: Path) -> None:
    """Gives the folder the name of `out`. An index that stands there is moved aside first and then deleted.

    Processes that have it open keep its files until they close them.
    """
    for own in (STATE, LOCK):
        (folder / own).unlink()
    try:
        if (out / "manifest.json").is_file():
            aside = _aside(out)
            out.replace(aside)
            folder.replace(out)
            shutil.rmtree(aside)
        else:
            folder.replace(out)
    except OSError as error:
        raise ConfigError(
            f"{out} appeared while its index was built ({error.strerror}); choose another --out"
        ) from None


def _aside(out: Path) -> Path:
    return out.parent / f".{out.name}.replaced"


def restore(out: Path) -> None:
    """Puts back an index that was moved aside when a kill came before the new one stood; clears it otherwise."""
    aside = _aside(out)
    if not aside.is_dir():
        return
    _, lock = _locked(out)
    try:
        if out.exists():
            shutil.rmtree(aside)
        else:
            aside.replace(out)
    finally:
        lock.release()


def link(source: Path | str, target: Path | str) -> None:
    """The file under a second name; a copy where the file system cannot do that. Replaces what stands there."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@dataclass(frozen=True)
class Built:
    """An index folder, whether it was there already, and which add-ons (bm25, links) this build gave it."""

    path: Path
    manifest: IndexManifest
    reused: bool
    added: tuple[str, ...] = ()


def shown(built: Built, *, as_json: bool) -> str:
    """What `index build` and `index adopt` print: what a reader wants, or as JSON all that decides the results, what
    was measured, and the bytes without add-ons.
    """
    manifest, there, encoder = built.manifest, add_ons(built.path), built.manifest.encoder
    report = {
        "index": str(built.path),
        "reused": built.reused,
        "passages": manifest.corpus.rows,
        "skipped": sum(manifest.corpus.skipped.values()),
        "encoder": encoder.name,
        "dimension": encoder.dimension,
        "pooling": encoder.pooling,
        "normalise": encoder.normalise,
        "query_prefix": encoder.query_prefix,
        "passage_prefix": encoder.passage_prefix,
        "prompts_not_taken": encoder.untaken,
        "fingerprint": manifest.fingerprint,
        "seconds": manifest.seconds,
        **dataclasses.asdict(manifest.index),
        **manifest.measured,
        "bytes": sum(facts.bytes for facts in manifest.files.values()),
        "bm25": "bm25" in there,
        "links": "links" in there,
    }
    if as_json:
        return dump_line(report) + "\n"
    search = " and ".join([*([encoder.name] if encoder.dense else []), *(["BM25"] if report["bm25"] else [])])
    passages, size = counted(manifest.corpus.rows, "passage"), max(report["bytes"], 1e5) / 1e6
    lines = [f"{passages} in {built.path}, {size:,.1f} MB",
             f"searched by {search}{', with title links' if report['links'] else ''} (--json says more)"]  # fmt: skip
    if report["skipped"]:
        lines.append(f"left out: {', '.join(f'{count} {why}' for why, count in manifest.corpus.skipped.items())}")
    return "\n".join([*lines, ""])
