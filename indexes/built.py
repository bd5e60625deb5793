"""A finished index folder, and what the commands that make one print of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.addons.bm25 import FOLDER as BM25
from indexes.addons.links import FOLDER as LINKS
from indexes.manifest import IndexManifest


@dataclass(frozen=True)
class Built:
    """An index folder, whether it was there already, and which add-ons (bm25, links) this build gave it."""

    path: Path
    manifest: IndexManifest
    reused: bool
    added: tuple[str, ...] = ()


def report_of(built: Built) -> dict[str, Any]:
    """What `index build` prints: the index, what decides its results, what was measured, its bytes without add-ons."""
    manifest = built.manifest
    return {
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
        "bm25": (built.path / BM25).exists(),
        "links": (built.path / LINKS).exists(),
    }
