"""The index folder's manifest: how the index came to be, and what must hold when it is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from indexes.encoding.encoders import EncoderSpec
from steprag.errors import ConfigError, DataError
from steprag.files import file_hash, from_dict, read_json

FORMAT = 1
STAGE = "index"
BUILT = "built"
INDEX = "index.faiss"
SPARSE = "bm25"
"""The type of an index without vectors."""
HASHED_BYTES = 64 * 2**20
"""Bytes that are hashed whenever an index is opened, smallest file first; of larger ones a sample of blocks is."""
BLOCK = 4096
BLOCKS = 256
"""Blocks of a sample: spread evenly, the first and the last among them."""
MEND = "build the index again, or copy the whole folder again"


@dataclass(frozen=True)
class CorpusFacts:
    """`sha256` is that of the corpus as given, `path` where it stood; `skipped` counts lines that were left out, by
    kind.
    """

    path: str
    sha256: str
    rows: int
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class IndexFacts:
    """`parameters` are those of the FAISS type; a flat index has none."""

    type: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class FileFacts:
    """`sample` is the hash of some blocks of a large file (`sample_hash`); none in folders of earlier versions."""

    bytes: int
    sha256: str
    sample: str | None = None


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
    """What decides the result of a build. Where the encoder was found does not."""
    kept = {key: value for key, value in dataclasses.asdict(encoder).items() if key not in ("name", "revision")}
    return {"corpus": corpus_sha256, "encoder": kept, "index": dataclasses.asdict(index)}


def fingerprint(encoder: EncoderSpec, index: IndexFacts, passages_sha256: str) -> str:
    """Names an index by what it answers: encoder, type and the passages themselves (16 hex digits)."""
    content = json.dumps(identity(passages_sha256, encoder, index), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


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


def read_index_manifest(folder: Path) -> IndexManifest:
    """The manifest of an index folder. Raises ConfigError where there is none, DataError where it is damaged."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ConfigError(f"{folder} is no index folder: it has no manifest.json (build one: steprag index build)")
    row = read_json(path, remedy="build the index again")
    if row.get("stage") != STAGE:
        raise ConfigError(f"{folder} is a run of {row.get('stage')!r}, not an index folder")
    manifest = from_dict(IndexManifest, row, path, 1)
    if manifest.format != FORMAT:
        raise ConfigError(f"{path}: format {manifest.format}, this version reads {FORMAT}; build the index again")
    return manifest


class Listed(Protocol):
    """A manifest that lists files."""

    @property
    def files(self) -> dict[str, FileFacts]:
        """Facts by the file's path within the folder."""
        ...


def check_files(folder: Path, manifest: Listed, *, full: bool = False) -> None:
    """Compares the folder's files with the manifest. Raises DataError at the first that differs.

    Sizes always; hashes of the smallest files up to 64 MiB together, of larger ones those of a sample of blocks; with
    `full` the hashes of all.
    """
    hashed = 0
    for name, facts in sorted(manifest.files.items(), key=lambda item: (item[1].bytes, item[0])):
        path = folder / name
        if not path.is_file():
            raise DataError(path, "is missing", remedy=MEND)
        size = path.stat().st_size
        if size != facts.bytes:
            raise DataError(path, f"has {size} bytes, the manifest says {facts.bytes}", remedy=MEND)
        hashed += size
        if full or hashed <= HASHED_BYTES:
            same = file_hash(path) == facts.sha256
        else:
            same = facts.sample is None or sample_hash(path) == facts.sample
        if not same:
            raise DataError(path, "is not the file that was built: its SHA-256 differs", remedy=MEND)
