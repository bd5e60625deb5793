"""`steprag index export`: an index folder's passages as FlashRAG's corpus file, in the order of its FAISS rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from indexes.folder.manifest import MEND, read_index_manifest
from indexes.rows.passage_store import PassageStore
from steprag.config.load import parse_arguments
from steprag.config.recipes import RUNS, stem_of
from steprag.console.progress import say, say_next
from steprag.errors import counted
from steprag.records.inputs import as_document
from steprag.records.jsonl import existing, write_records
from steprag.records.sealed import check_files


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag index export", description="Passages of an index folder with `contents`, as FlashRAG reads them."
    )
    parser.add_argument("index", metavar="INDEX", help="index folder; FlashRAG's index_path is its index.faiss")
    parser.add_argument("--out", metavar="FILE", help="corpus file: FlashRAG's corpus_path [runs/corpus-INDEX.jsonl]")
    given = parse_arguments(parser, argv)
    folder = existing(given.index, "index folder")
    out = Path(given.out or f"{RUNS}/corpus-{stem_of(folder)}.jsonl")
    check_files(folder, read_index_manifest(folder).files, MEND)
    with PassageStore(folder) as store:
        count = write_records(out, (as_document(store.read(row)) for row in range(len(store))))
    say(f"index export: {counted(count, 'passage')} in {out}")
    say_next("index", "serve", folder)
    return 0
