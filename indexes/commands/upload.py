"""`steprag index upload`: an index folder's passages and vectors into a Milvus collection."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from indexes.commands.build import PLAIN
from indexes.folder.manifest import MEND, IndexFacts, IndexManifest, fingerprint, read_index_manifest
from indexes.retrieval.milvus import (
    VECTOR,
    CollectionFacts,
    MilvusAddress,
    address_of,
    connected,
    facts_row,
    read_facts,
    rows_in,
    told,
)
from indexes.rows.passage_store import PASSAGES, PassageStore
from indexes.rows.vector_file import VECTORS, VectorFile
from steprag.config.load import parse_arguments
from steprag.config.sections import RetrieverConfig
from steprag.console.progress import Progress, say, say_next
from steprag.errors import ConfigError, DataError, counted
from steprag.records.jsonl import existing
from steprag.records.sealed import check_files

TYPES: Mapping[str, tuple[str, dict[str, int]]] = {
    "flat": ("FLAT", {}),
    "hnsw": ("HNSW", {"M": 32, "efConstruction": 200}),
}
"""By our names: Milvus' index type and its parameters. Others are made with Milvus' own tools."""
LONGEST = 65_535
"""Bytes that Milvus keeps of a text."""
ROWS = 1000
"""Rows sent at once."""
SECONDS = 60.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index upload", description="An index folder into a Milvus server.")
    parser.add_argument("--index", required=True, metavar="DIR", help="the index folder; dense, of any type")
    parser.add_argument(
        "--to", required=True, metavar="URL", help="milvus://HOST:PORT/COLLECTION; it may be there in part"
    )
    parser.add_argument("--type", default="flat", choices=TYPES, help="flat is exact, hnsw a graph [flat]")
    given = parse_arguments(parser, argv)
    rows = upload(existing(given.index, "index folder"), given.to, given.type)
    sys.stdout.write(f"{given.to} holds {counted(rows, 'passage')} of {given.index}\n")
    say_next("serve", given.to)
    return 0


def upload(folder: Path, url: str, kind: str = "flat") -> int:
    """Fills the collection, from where an earlier upload ended; how many passages it holds.

    Raises ConfigError where the collection holds another index, DataError where a passage is too long for Milvus.
    """
    address, manifest = address_of(url), read_index_manifest(folder)
    if not manifest.encoder.dense:
        raise ConfigError(f"{folder} has no vectors (--encoder none); Milvus is asked for dense search")
    check_files(folder, manifest.files, MEND)
    client = connected(address, os.environ.get(RetrieverConfig().token_env, "").strip(), SECONDS)
    facts = _facts(manifest, kind)
    there = read_facts(client, address)
    if there is not None and there != facts:
        raise ConfigError(f"{url} holds another index ({there.rows} passages, {there.type}); choose another collection")
    with PassageStore(folder) as store:
        if there is None:
            _created(client, address, facts)
        done = rows_in(client, address)
        if done:
            say(f"milvus: {done} of {facts.rows} passages are there already")
        vectors = VectorFile(folder / VECTORS, facts.rows, manifest.encoder.dimension)
        with Progress("upload", facts.rows, "passages", done) as progress:
            for rows in _rows(store, vectors, done, folder):
                with told(address):
                    client.upsert(address.collection, rows)
                progress.advance(len(rows))
    with told(address):
        client.flush(address.collection)
        client.load_collection(address.collection)
    count = rows_in(client, address)
    client.close()
    return count


def _facts(manifest: IndexManifest, kind: str) -> CollectionFacts:
    """What the collection will hold. Its fingerprint is that of a flat index of the same vectors."""
    arithmetic = {key: manifest.index.parameters[key] for key in PLAIN if key in manifest.index.parameters}
    name = fingerprint(manifest.encoder, IndexFacts("flat", arithmetic), manifest.files[PASSAGES].sha256)
    return CollectionFacts(name, manifest.corpus.rows, manifest.encoder, manifest.config, TYPES[kind][0])


def _created(client: Any, address: MilvusAddress, facts: CollectionFacts) -> None:
    """An empty collection with its index and the row of facts."""
    from pymilvus import DataType, MilvusClient  # pyright: ignore[reportMissingImports]

    kind = next(parameters for name, parameters in TYPES.values() if name == facts.type)
    schema = MilvusClient.create_schema(auto_id=False)
    schema.add_field("row", DataType.INT64, is_primary=True)
    for name in ("id", "title", "text"):
        schema.add_field(name, DataType.VARCHAR, max_length=LONGEST)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=facts.encoder.dimension)
    indexes = client.prepare_index_params()
    indexes.add_index(VECTOR, index_type=facts.type, metric_type="IP", params=kind)
    with told(address):
        client.create_collection(address.collection, schema=schema)
        client.create_index(address.collection, indexes)
        client.load_collection(address.collection)
        client.upsert(address.collection, [facts_row(facts)])


def _rows(store: PassageStore, vectors: VectorFile, start: int, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows that are missing, ROWS at a time."""
    for first in range(start, vectors.rows, ROWS):
        rows = np.arange(first, min(vectors.rows, first + ROWS))
        yield [_row(store, int(row), vector, folder) for row, vector in zip(rows, vectors.take(rows), strict=True)]


def _row(store: PassageStore, row: int, vector: Any, folder: Path) -> dict[str, Any]:
    passage = store.read(row)
    values = {"id": passage.id, "title": passage.title, "text": passage.text}
    for key, value in values.items():
        if (size := len(value.encode())) > LONGEST:
            remedy = "build the index from shorter passages"
            raise DataError(folder, f"its {key} has {size} bytes, Milvus keeps {LONGEST}", line=row + 1, remedy=remedy)
    return {"row": row, **values, VECTOR: vector}
