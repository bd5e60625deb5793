"""`steprag index check`: every byte of an index folder against its manifest, and a sample of vectors encoded again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import encoder_here
from indexes.folder.manifest import BUILT, MEND, IndexManifest, add_ons, read_add_on, read_index_manifest
from indexes.rows.passage_store import PassageStore
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.index_types import open_index
from steprag.config.load import parse_arguments
from steprag.errors import DataError
from steprag.records.jsonl import existing
from steprag.records.sealed import check_files

SAMPLE = 16
ALIKE = 0.99
"""Cosine below which a stored vector is not the passage's; int8 and bfloat16 stay above it."""


def check_folder(folder: Path, sample: int = SAMPLE) -> dict[str, Any]:
    """What was compared. Raises DataError or ConfigError at the first difference."""
    manifest = read_index_manifest(folder)
    check_files(folder, manifest.files, MEND, full=True)
    compared = [*manifest.files]
    for name in add_ons(folder):
        beside = read_add_on(folder, manifest, name)
        check_files(folder / name, beside.files, MEND, full=True)
        compared += [f"{name}/{file}" for file in beside.files]
    rows = manifest.corpus.rows
    if manifest.encoder.dense:
        index = open_index(folder, manifest.index, rows, manifest.encoder.dimension)
        if index.ntotal != rows:
            raise DataError(folder, f"holds {index.ntotal} vectors, the manifest says {rows}")
    ours = VECTORS in manifest.files and manifest.origin == BUILT  # adopted ones were checked as they were encoded
    cosine = _encoded_again(folder, manifest, sample) if ours and sample else None
    return {
        "index": str(folder),
        "files": compared,
        "bytes": sum(facts.bytes for facts in manifest.files.values()),
        "passages": rows,
        "encoded_again": min(sample, rows) if cosine else 0,
        "lowest_cosine": cosine,
    }


def _encoded_again(folder: Path, manifest: IndexManifest, sample: int) -> float:
    """The lowest cosine between stored vectors and those that the encoder gives now."""
    rows = np.sort(np.random.default_rng().permutation(manifest.corpus.rows)[:sample])
    with PassageStore(folder) as store:
        texts = store.texts(rows.tolist())
    fresh = Encoder(encoder_here(manifest.encoder, manifest.config), manifest.encoder).encode_passages(texts)
    stored = VectorFile(folder / VECTORS, manifest.corpus.rows, manifest.encoder.dimension).take(rows)
    lengths = np.linalg.norm(fresh, axis=1) * np.linalg.norm(stored, axis=1)
    cosines = (fresh * stored).sum(axis=1) / np.maximum(lengths, 1e-12)
    worst = int(np.argmin(cosines))
    if cosines[worst] < ALIKE:
        problem = f"row {rows[worst]} is not its passage's vector (cosine {cosines[worst]:.3f})"
        raise DataError(folder / VECTORS, problem, remedy="build the index again")
    return round(float(cosines[worst]), 5)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag index check", description="Hashes every file of an index folder and encodes a sample again."
    )
    parser.add_argument("--index", required=True, help="the index folder")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"passages that are encoded again [{SAMPLE}]")
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    given = parse_arguments(parser, argv)
    found = check_folder(existing(given.index, "index folder"), given.sample)
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        again = f", {found['encoded_again']} encoded again (cosine ≥ {found['lowest_cosine']})"
        sys.stdout.write(f"ok: {len(found['files'])} files, {found['bytes']:,} bytes, {found['passages']:,} passages"
                         f"{again if found['lowest_cosine'] else ''}\n")  # fmt: skip
    return 0
