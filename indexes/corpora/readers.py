"""Corpora as they come in, streamed: JSON Lines (plain, gz, zst), Parquet, hub data sets and Wikipedia dumps.

A source yields every passage with its place, and what could not be read as a `Problem` with its place. What then
happens to problems is the intake's business (`indexes.corpora.read_corpus`). Memory does not grow with the corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import steprag.atlas
from indexes.corpora.source import HUB, Item, Problem, Source, passage_or_problem
from indexes.corpora.tables import hub_source, parquet_rows
from indexes.corpora.wikipedia import dump_passages
from steprag.errors import ConfigError, DataError
from steprag.files import existing, file_hash
from steprag.json_text import NotJson, decoded
from steprag.packed import NotWhole, lines, open_bytes, too_long
from steprag.types import Passage

ATLAS = "atlas"
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")
FOLDER_FILES = (*LINES[:3], ".parquet")
"""Endings of the files that are read of a folder, in the order of their names."""
FORMAT = 'one {"id", "title", "text"} or {"id", "contents"} a line'


def open_source(corpus: str) -> Source:
    """The source behind `--corpus`: the word atlas, `hub:NAME[:CONFIG[:SPLIT]]`, a file, or a folder of files.

    Raises ConfigError where there is nothing that can be read.
    """
    if corpus.startswith(HUB):
        return hub_source(corpus)
    path = existing(steprag.atlas.path("corpus") if corpus == ATLAS else corpus, "corpus")
    paths = [path]
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.name.endswith(FOLDER_FILES))
        if not paths:
            raise ConfigError(f"{path} holds no corpus files ({', '.join(FOLDER_FILES)})")
    readers = [_reader(file) for file in paths]

    def items() -> Iterator[Item]:
        for number, (file, reader) in enumerate(zip(paths, readers, strict=True)):
            for line, value in reader(file):
                yield number, line, value

    return Source(corpus, tuple(str(file) for file in paths), lambda: _hash(paths), items)


def _hash(paths: list[Path]) -> str:
    hashes = [file_hash(path) for path in paths]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, Passage | Problem]]]:
    name = path.name
    if name.endswith(".parquet"):
        return parquet_rows
    if name.endswith((".xml.bz2", ".xml")):
        return dump_passages
    return json_lines


def json_lines(path: Path) -> Iterator[tuple[int, Passage | Problem]]:
    """Every line that is not blank, from 1. Raises DataError where a compressed file is damaged or ends early."""
    number = 0
    with open_bytes(path) as stream:
        try:
            for number, line in lines(stream):
                if line is None:
                    yield number, Problem("long", too_long()[0])
                    continue
                content = line.strip() if number > 1 else line.removeprefix(b"\xef\xbb\xbf").strip()
                if content:
                    yield number, _passage(content, path, number)
        except NotWhole as error:
            raise DataError(path, str(error), line=number + 1, remedy=error.remedy) from None


def _passage(content: bytes, path: Path, number: int) -> Passage | Problem:
    try:
        row = decoded(content, finite=False)  # fields that are no part of a passage are dropped
    except NotJson as error:
        return Problem(error.kind, str(error))
    return passage_or_problem(row, path, number)
