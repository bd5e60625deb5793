"""Corpora as they come in, streamed: JSON Lines (plain, gz, zst), Parquet, hub data sets and Wikipedia dumps.

A source yields every passage with its place, and what could not be read as a `Problem` with its place. What then
happens to problems is the intake's business (`indexes.corpora.read_corpus`). Memory does not grow with the corpus.

A Wikipedia dump (`pages-articles.xml`, plain or .bz2) becomes passages of 100 words: mwxml reads the dump,
mwparserfromhell the wiki markup; both come with the extra `wikipedia`. Articles are cut into disjoint blocks of 100
words as DPR's corpus is (Karpukhin et al. 2020), but the last block keeps its own length.
"""

from __future__ import annotations

import bz2
import hashlib
import multiprocessing
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import steprag.atlas
from steprag.engines.pretrained import asking_the_hub
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.inputs import passage_from_row
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import existing, file_hash
from steprag.records.packed import NotWhole, lines, open_bytes, too_long, unpacked
from steprag.types import Passage

ATLAS = "atlas"
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")
FOLDER_FILES = (*LINES[:3], ".parquet")
"""Endings of the files that are read of a folder, in the order of their names."""
FORMAT = 'one {"id", "title", "text"} or {"id", "contents"} a line'
HUB = "hub:"
Kind = Literal["json", "encoding", "long", "fields", "empty", "duplicate"]
WORDS = 100
WINDOW = 256
"""Pages that a process parses at a time; a few windows are in memory at once."""
_DROPPED = ("ref", "table", "gallery", "timeline", "math", "score", "imagemap", "syntaxhighlight", "source")
_MEDIA = re.compile(r"\s*(file|image|category|media)\s*:", re.IGNORECASE)
_ENDING = re.compile(r"^\s*(see also|references|external links|further reading|notes|bibliography)\s*$", re.IGNORECASE)


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
    files: tuple[str, ...]
    identity: Callable[[], str]
    items: Callable[[], Iterator[Item]]

    def place(self, file: int, line: int) -> str:
        """An item's place as messages name it: FILE:LINE, lines from 1."""
        return f"{self.files[file]}:{line}"


def passage_or_problem(row: Any, path: Path, number: int) -> Passage | Problem:
    """A decoded row as a passage whose text can be written as UTF-8."""
    try:
        passage = passage_from_row(row, path, number)
        f"{passage.id}{passage.title}{passage.text}".encode()
    except UnicodeEncodeError as error:
        return Problem("encoding", f"half of a surrogate pair: {error.object[error.start]!r}")
    except DataError as error:
        has_text = isinstance(row, dict) and "id" in row and any(isinstance(row.get(k), str)
                                                                 for k in ("contents", "text"))  # fmt: skip
        return Problem("empty" if has_text else "fields", error.problem)
    return passage


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


def parquet_rows(path: Path) -> Iterator[tuple[int, Passage | Problem]]:
    """Every row of a Parquet file, from 1. Columns: id and contents, or id, title and text."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield number, passage_or_problem(row, path, number)
    except (pyarrow.ArrowException, OSError) as error:  # OSError: a page or a footer that does not unpack
        problem = f"cannot be read as Parquet: {str(error).splitlines()[0]}"
        raise DataError(path, problem, line=number + 1, remedy="fetch it again") from None


def dump_passages(path: Path, *, processes: int | None = None) -> Iterator[tuple[int, Passage | Problem]]:
    """(page's position in the dump, passage) in the dump's order; ids are PAGE-BLOCK. Redirects and other
    namespaces than articles are left out. Raises DataError where the dump is damaged or ends early.
    """
    import_parsers()
    pages = _pages(path)
    with multiprocessing.get_context("spawn").Pool(processes or usable_cores()) as pool:
        while window := list(islice(pages, WINDOW * (processes or usable_cores()))):
            for number, passages in pool.map(_cut, window, chunksize=16):
                for passage in passages:
                    yield number, passage


def import_parsers() -> None:
    """Raises ConfigError where the extra is not installed."""
    try:
        import mwparserfromhell  # noqa: F401  # pyright: ignore[reportMissingImports] - the extra "wikipedia"
        import mwxml  # noqa: F401  # pyright: ignore[reportMissingImports] - the extra "wikipedia"
    except ImportError:
        raise ConfigError("a Wikipedia dump needs two more packages: pip install -e '.[wikipedia]'") from None


def _pages(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Position, page id, title and markup of every article that is no redirect."""
    import mwxml  # pyright: ignore[reportMissingImports] - the extra "wikipedia"

    opened: Any = bz2.open if path.suffix == ".bz2" else open
    with opened(path, "rt", encoding="utf-8") as stream:
        try:
            pages: Any = mwxml.Dump.from_file(stream)
            for number, page in enumerate(pages, 1):
                if page.namespace == 0 and page.redirect is None:
                    markup = next((revision.text for revision in page), None)
                    yield number, str(page.id), str(page.title), markup or ""
        except (EOFError, OSError, SyntaxError) as error:  # ElementTree's ParseError is a SyntaxError
            raise DataError(path, f"not a whole Wikipedia dump: {error}", remedy="fetch it again") from None


def _cut(page: tuple[int, str, str, str]) -> tuple[int, list[Passage]]:
    number, page_id, title, markup = page
    words = plain_text(markup).split()
    blocks = [" ".join(words[start : start + WORDS]) for start in range(0, len(words), WORDS)]
    return number, [Passage(f"{page_id}-{block}", title, text) for block, text in enumerate(blocks)]


def plain_text(markup: str) -> str:
    """An article's prose: without tables, references, pictures, categories, templates and the lists at its end."""
    import mwparserfromhell  # pyright: ignore[reportMissingImports] - the extra "wikipedia"

    wikicode: Any = mwparserfromhell.parse(markup)
    for tag in wikicode.ifilter_tags(matches=lambda node: str(node.tag).lower() in _DROPPED):
        _remove(wikicode, tag)
    for link in wikicode.ifilter_wikilinks(matches=lambda node: _MEDIA.match(str(node.title))):
        _remove(wikicode, link)
    kept = []
    for section in wikicode.get_sections(flat=True, include_lead=True):
        headings = section.filter_headings()
        if headings and _ENDING.match(str(headings[0].title)):
            continue
        for heading in headings:
            section.remove(heading)
        kept.append(section.strip_code(normalize=True, collapse=True))
    return "\n".join(kept)


def _remove(wikicode: Any, node: Any) -> None:
    try:
        wikicode.remove(node)
    except ValueError:  # it stood inside one that is gone already
        return


def hub_source(corpus: str) -> Source:
    """`hub:OWNER/NAME[:CONFIG[:SPLIT]]`, streamed from the hub (split train unless it says another).

    The identity is the data set's commit, which is resolved first. Raises ConfigError where the hub does not give it.
    """
    from datasets import load_dataset
    from huggingface_hub import HfApi

    name, config, split, *more = [*corpus.removeprefix(HUB).split(":"), "", ""][:4]
    if not name or (more and more[0]):
        raise ConfigError(f"{corpus}: write hub:OWNER/NAME, hub:OWNER/NAME:CONFIG or hub:OWNER/NAME:CONFIG:SPLIT")
    problem = f"data set {quoted(name)} cannot be had from the hub"
    with asking_the_hub(problem, "download its files and give their folder"):
        commit = HfApi().dataset_info(name).sha
        rows: Any = load_dataset(name, config or None, split=split or "train", streaming=True, revision=commit)

    def items() -> Iterator[Item]:
        for number, row in enumerate(rows, 1):
            yield 0, number, passage_or_problem(row, Path(corpus), number)

    identity = hashlib.sha256(f"{name}:{config}:{split or 'train'}@{commit}".encode()).hexdigest()
    return Source(corpus, (corpus,), lambda: identity, items)


COUNTED = 64 * 2**20
"""Files up to this size are counted line by line, of larger ones the beginning is."""


def count_rows(source: Source) -> tuple[int, bool]:
    """Passages of a corpus, and whether they were counted or estimated from its beginning. Raises ConfigError."""
    if source.name.startswith(HUB):
        raise ConfigError("how many rows a hub data set has is on its page; give --rows")
    total, exact = 0, True
    for name in source.files:
        path = Path(name)
        if path.name.endswith((".xml", ".xml.bz2")):
            raise ConfigError("a dump does not say how many passages it gives (English: about 45 million); give --rows")
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            total += ParquetFile(path).metadata.num_rows
        elif path.stat().st_size <= COUNTED:
            total += sum(isinstance(value, Passage) for _, value in json_lines(path))
        else:
            lines, read = _lines(path)
            total, exact = total + int(lines * path.stat().st_size / read), False
    return total, exact


def _lines(path: Path) -> tuple[int, int]:
    """Lines in the first 32 MiB, and bytes of the file that they took."""
    with path.open("rb") as raw:
        stream: Any = raw
        if path.suffix in (".gz", ".zst"):
            stream = unpacked(raw, path)
        try:
            content = stream.read(2**25)
        except NotWhole as error:
            raise DataError(path, str(error), remedy=error.remedy) from None
        return content.count(b"\n"), max(1, raw.tell())
