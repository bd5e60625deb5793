"""Corpora as they come in, streamed: JSON Lines, tables, Parquet, hub data sets, Wikipedia dumps and documents.

A source yields every passage with its place, and what could not be read as a `Problem` with its place. What then
happens to problems is the intake's business (`indexes.corpora.read_corpus`). Memory does not grow with the corpus,
but for one JSON value that holds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import steprag.atlas
from indexes.corpora.documents import KINDS, Documents, DocumentsConfig
from indexes.corpora.wikipedia import dump_passages
from steprag.batch.datasets import HUB, hub_rows
from steprag.console.progress import say
from steprag.errors import ConfigError, DataError
from steprag.records.inputs import passage_from_row
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import existing, files_hash
from steprag.records.packed import PACKED, NotWhole, lines, open_bytes, too_long, unpacked
from steprag.records.rows import non_jsonl_rows, parquet_values
from steprag.types import Passage

ATLAS = "atlas"
FOLDER_FILES = (*(f".{form}{packed}" for form in ("jsonl", "tsv") for packed in ("", *PACKED)), ".parquet")
"""Endings of the files that are read of a folder, in the order of their names."""
FORMAT = 'one {"id", "title", "text"} or {"id", "contents"} a line'
Kind = str
"""json, encoding, long, fields, empty, duplicate; of documents those of `indexes.corpora.documents`."""


@dataclass(frozen=True)
class Problem:
    """A line or row that is no passage, and why."""

    kind: Kind
    detail: str


Item = tuple[int, int, Passage | Problem]
"""File (its position in `Source.files`), line or row in it (from 1), and what stands there."""


@dataclass(frozen=True)
class Source:
    """A corpus that can be read any number of times, always in the same order.

    `files` name the places of problems; `identity` is a SHA-256 over the content (of a hub data set: over its commit).
    """

    name: str
    files: Sequence[str]
    identity: Callable[[], str]
    items: Callable[[], Iterator[Item]]
    documents: Documents | None = None
    """People's own documents: any number of them may give nothing, and an item's line is its page, 0 for none."""

    def place(self, file: int, line: int) -> str:
        """An item's place as messages name it: FILE:LINE, lines from 1; of documents FILE, or FILE, p. PAGE."""
        if self.documents:
            return f"{self.documents.root / self.files[file]}{f', p. {line}' if line else ''}"
        return f"{self.files[file]}:{line}"


def passage_or_problem(row: Any, path: Path, number: int) -> Passage | Problem:
    """A decoded row as a passage whose text can be written as UTF-8."""
    try:
        passage = passage_from_row(row, path, number)
        f"{passage.id}{passage.title}{passage.text}".encode()
    except UnicodeEncodeError as error:
        return Problem("encoding", f"half of a surrogate pair: {error.object[error.start]!r}")
    except DataError as error:
        return Problem("empty" if error.problem.endswith("has no text") else "fields", error.problem)
    return passage


def open_source(corpus: str, config: DocumentsConfig | None = None, known: Path | None = None) -> Source:
    """The source behind `--corpus`: the word atlas, `hub:NAME[:CONFIG[:SPLIT]]`, a file, or a folder of files.

    `known`: an index folder that may hold what its documents gave before. Raises ConfigError where there is nothing
    that can be read.
    """
    if corpus.startswith(HUB):
        return hub_source(corpus)
    path = existing(steprag.atlas.path("corpus") if corpus == ATLAS else corpus, "corpus")
    if not (path.is_dir() or path.is_file()):
        raise ConfigError(f"{path} is a pipe, a socket or a device; a corpus is read twice: give a file or a folder")
    paths = [path]
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.name.endswith(FOLDER_FILES))
        paths = [file for file in paths if not file.name.startswith("queries.")]  # BEIR's questions, beside its corpus
    if not paths or _is_document(path):
        return _documents(path, config or DocumentsConfig(), known)
    if path.is_dir():
        _tell_beside(path, paths)
    readers = [_reader(file) for file in paths]

    def items() -> Iterator[Item]:
        for number, (file, reader) in enumerate(zip(paths, readers, strict=True)):
            for line, value in reader(file):
                yield number, line, value

    return Source(corpus, tuple(str(file) for file in paths), lambda: files_hash(paths), items)


def _documents(path: Path, config: DocumentsConfig, known: Path | None) -> Source:
    found = Documents(path, config, known)
    if not found.paths:
        endings = f"no corpus files ({', '.join(FOLDER_FILES)}) and no documents ({', '.join(KINDS)})"
        seen = f"; it has {found.other_types()}" if found.others else ""
        raise ConfigError(f"{path} holds {endings}{seen}; give the file or the folder that has them, or turn"
                          " others into one of these first")  # fmt: skip

    def items() -> Iterator[Item]:
        for number, page, value in found.items():
            yield number, page, value if isinstance(value, Passage) else Problem(value[0], value[2])

    return Source(str(path.absolute()), found.paths, lambda: found.identity, items, found)


def _tell_beside(folder: Path, read: list[Path]) -> None:
    """Names documents that are not read because files of passages stand beside them."""
    there = (one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.suffix.lower() in KINDS)
    if beside := sorted(one for one in there if not one.startswith(".") and "/." not in one):
        say(f"index: {folder}: {len(read):,} files of passages are read ({read[0].name}, …); not read are the documents"
            f" beside them, {len(beside):,} ({beside[0][:80]}, …): put those into a folder of their own")  # fmt: skip


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, Passage | Problem]]]:
    if path.name.endswith(".parquet"):
        return parquet_rows
    return dump_passages if _is_dump(path) else text_rows


def _is_document(path: Path) -> bool:
    """Whether a file holds prose; a .txt may hold JSON Lines too, and a .csv alone has a passage a row."""
    if path.is_dir() or KINDS.get(path.suffix.lower(), "table") == "table":
        return False
    with path.open("rb") as stream:
        return not stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _is_dump(path: Path) -> bool:
    """Whether a file is a Wikipedia dump by its name."""
    return path.suffix == ".xml" or (path.suffix in PACKED and path.stem.endswith(".xml"))


def text_rows(path: Path) -> Iterator[tuple[int, Passage | Problem]]:
    """Every row of a file of text, of any form that is read (`steprag.records.rows`), from 1. Raises DataError."""
    others = non_jsonl_rows(path)
    if others is None:
        yield from json_lines(path)
    else:
        yield from ((number, passage_or_problem(row, path, number)) for number, row in others)


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


def parquet_rows(path: Path) -> Iterator[tuple[int, Passage | Problem]]:
    """Every row of a Parquet file, from 1. Columns: id and contents, or id, title and text."""
    yield from ((number, passage_or_problem(row, path, number)) for number, row in parquet_values(path))


def hub_source(corpus: str) -> Source:
    """`hub:OWNER/NAME[:CONFIG[:SPLIT]]`, streamed from the hub (split train unless it says another).

    The identity is the data set's commit, which is resolved first. Raises ConfigError where the hub does not give it.
    """
    _, _, _, identity, rows = hub_rows(corpus)

    def items() -> Iterator[Item]:
        for number, row in enumerate(rows(), 1):
            yield 0, number, passage_or_problem(row, Path(corpus), number)

    return Source(corpus, (corpus,), lambda: identity, items)


COUNTED = 64 * 2**20
"""Files up to this size are counted line by line, of larger ones the beginning is."""


def count_rows(source: Source) -> tuple[int, bool]:
    """Passages of a corpus, and whether they were counted or estimated from its beginning. Raises ConfigError."""
    if source.name.startswith(HUB):
        raise ConfigError("how many rows a hub data set has is on its page; give --rows")
    total, exact = 0, True
    if source.documents:
        return sum(isinstance(value, Passage) for _, _, value in source.items()), exact
    for name in source.files:
        path = Path(name)
        if _is_dump(path):
            raise ConfigError("a dump does not say how many passages it gives (English: about 45 million); give --rows")
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            total += ParquetFile(path).metadata.num_rows
        elif path.stat().st_size <= COUNTED:
            total += sum(isinstance(value, Passage) for _, value in _reader(path)(path))
        else:
            lines, read = _lines(path)
            total, exact = total + int(lines * path.stat().st_size / read), False
    return total, exact


def _lines(path: Path) -> tuple[int, int]:
    """Lines in the first 32 MiB, and bytes of the file that they took."""
    with path.open("rb") as raw:
        stream: Any = raw
        if path.suffix in PACKED:
            stream = unpacked(raw, path)
        try:
            content = stream.read(2**25)
        except NotWhole as error:
            raise DataError(path, str(error), remedy=error.remedy) from None
        return content.count(b"\n"), max(1, raw.tell())
