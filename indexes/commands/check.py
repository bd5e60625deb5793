"""`steprag check`: every byte of run and index folders against their manifests, and a sample of an index's vectors
encoded again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from indexes.encoding.again import SAMPLE, lowest_cosine
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import encoder_here
from indexes.folder.manifest import BUILT, MEND, STAGE, add_ons, read_add_on, read_index_manifest
from indexes.rows.passage_store import PASSAGES
from indexes.rows.vector_file import VECTORS
from indexes.vectors.index_types import open_index
from steprag.config.load import parse_arguments
from steprag.errors import ConfigError, DataError, counted
from steprag.records.jsonl import existing
from steprag.records.sealed import check_files
from steprag.runs.check import accepted, checked
from steprag.runs.run import read_manifest


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
    cosine = None
    if ours and sample:
        encoder = Encoder(encoder_here(manifest.encoder, manifest.config), manifest.encoder)
        cosine = lowest_cosine(folder, manifest, encoder, sample)
    return {
        "index": str(folder),
        "files": compared,
        "bytes": sum(facts.bytes for facts in manifest.files.values()),
        "passages": rows,
        "encoded_again": min(sample, rows) if cosine else 0,
        "lowest_cosine": cosine,
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag check", description="Hashes every file that the manifests of run and index folders list."
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="run folders and index folders")
    parser.add_argument("--index", help=argparse.SUPPRESS)  # version 0.1: steprag check DIR
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N",
                        help=f"passages of an index that are encoded again [{SAMPLE}]")  # fmt: skip
    parser.add_argument("--accept", action="store_true", help="list a run's files as they are now: you changed them")
    parser.add_argument("--json", action="store_true", help="the findings as JSON, an object a folder")
    given = parse_arguments(parser, argv)
    indexes = [existing(given.index, "index folder")] if given.index else []
    folders = indexes + [existing(folder, "folder") for folder in given.folders]
    if not folders:
        raise ConfigError("steprag check: give run folders or index folders")
    for folder in folders:
        found: dict[str, Any]
        if not given.accept and (folder in indexes or _is_index(folder)):
            found = check_folder(folder, given.sample)
            said = _said(found)
        else:
            said = accepted(folder) if given.accept else checked(folder)
            found = {"run": str(folder), "found": said}
        sys.stdout.write((json.dumps(found) if given.json else f"{folder}: {said}") + "\n")
    return 0


def _is_index(folder: Path) -> bool:
    """Whether a folder is an index, be its manifest or its passages damaged."""
    return (folder / PASSAGES).is_file() or read_manifest(folder).get("stage") == STAGE


def _said(found: dict[str, Any]) -> str:
    again = f", {found['encoded_again']} encoded again (cosine ≥ {found['lowest_cosine']})"
    files, passages = counted(len(found["files"]), "file"), counted(found["passages"], "passage")
    return (f"ok: {files}, {found['bytes']:,} bytes, {passages}"
            f"{again if found['lowest_cosine'] else ''}")  # fmt: skip
