"""The index folder's manifest: how the index came to be, and what must hold when it is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexes.encoding.encoders import EncoderSpec
from indexes.rows.passage_store import PASSAGES
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.jsonl import from_dict, read_json
from steprag.records.sealed import FileFacts

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
    kept = {key: value for key, value in dataclasses.asdict(encoder).items() if key not in ("name", "revision")}
    return {"corpus": corpus_sha256, "encoder": kept, "index": dataclasses.asdict(index)}


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
