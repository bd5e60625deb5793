"""People's own documents at scale: pages a second beside the libraries' bare loops, memory, a second run.

    python -m benchmarks.documents_scale --pages 2000                     # beside the bare loops, interleaved
    python -m benchmarks.documents_scale --build 500 5000 --of 2          # memory by number of files
    python -m benchmarks.documents_scale --build 5000 --of 20             # 100,000 pages

Pages are made: a heading, a header, a footer and 41 lines of prose in a PDF; a page of HTML, DOCX and Markdown is as
many words. Seconds are CPU seconds, of this process and of those that read for it. "Reading"
is what `index build` does until the passages stand in the index folder, hashing of files included. The bare loop of a
kind asks its library for the plain text, and does nothing with it.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from indexes.corpora.documents import DocumentsConfig
from indexes.corpora.read_corpus import take_in
from indexes.corpora.readers import open_source

WORDS = 450
"""Of a page."""
_LETTERS = random.Random(0)
VOCABULARY = ["".join(_LETTERS.choices("etaoinshrdlucmfwyp", k=_LETTERS.choice((2, 3, 4, 5, 7, 9))))
              for _ in range(20_000)]  # fmt: skip
KINDS = ("pdf", "html", "docx", "md")


def pages_of(rng: random.Random, count: int) -> list[tuple[str, list[str]]]:
    """Heading and lines of about 11 words of each page. Every ninth line ends a sentence; no two pages are the same."""
    made: list[tuple[str, list[str]]] = []
    for number in range(count):
        words = rng.choices(VOCABULARY, k=WORDS)
        lines = [" ".join(words[at : at + 11]).capitalize() + "." * (at % 9 == 0) for at in range(0, WORDS, 11)]
        made.append((f"{number + 1}. {' '.join(words[:3]).title()}", lines))
    return made


def file_of(kind: str, pages: list[tuple[str, list[str]]]) -> bytes:
    """What a file of these pages holds; a PDF has packed ones, as most programs write them."""
    from tests.test_own_documents import HEADED, SAID, Text, pdf, word  # not held where memory is measured

    if kind == "pdf":
        frames: Iterator[list[Text]] = (
            [(72, 800, 9, "ACME Handbook"), (72, 760, 16, heading), (300, 20, 9, f"Page {number}"),
             *((72, 735 - 16 * row, 11, line) for row, line in enumerate(lines))]
            for number, (heading, lines) in enumerate(pages, 1))  # fmt: skip
        return pdf(*frames, packed=True)
    if kind == "docx":
        body = (SAID.format(HEADED, heading) + SAID.format("", " ".join(lines)) for heading, lines in pages)
        return word("".join(body), zipfile.ZIP_DEFLATED)
    if kind == "html":
        body = "".join(f"<h2>{heading}</h2><p>{' '.join(lines)}</p>" for heading, lines in pages)
        return f"<html><head><title>x</title></head><body><nav><a href=/>Home</a></nav>{body}</body></html>".encode()
    return "\n\n".join(f"## {heading}\n\n" + "\n".join(lines) for heading, lines in pages).encode()


def write(folder: Path, kinds: tuple[str, ...], pages: int, of: int) -> None:
    """Files of `of` pages each, `pages` in all, of the kinds in turn, 500 to a folder."""
    for number in range(-(-pages // of)):
        made, kind = pages_of(random.Random(number), min(of, pages - number * of)), kinds[number % len(kinds)]
        path = folder / f"{number // 500:03}" / f"{number:06}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(kind, made))


def bare_pdf(path: Path) -> None:
    import pypdfium2

    document = pypdfium2.PdfDocument(path)
    for page in document:
        page.get_textpage().get_text_range()


def bare_html(path: Path) -> None:
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    "".join(etree.fromstring(path.read_bytes(), etree.HTMLParser(encoding="utf-8")).itertext())


def bare_docx(path: Path) -> None:
    import mammoth

    with path.open("rb") as stream:
        mammoth.convert_to_html(stream)


def bare_md(path: Path) -> None:
    from markdown_it import MarkdownIt

    MarkdownIt("commonmark").enable("table").render(path.read_text())


BARE: dict[str, Callable[[Path], None]] = {"pdf": bare_pdf, "html": bare_html, "docx": bare_docx, "md": bare_md}


def spent() -> float:
    """CPU seconds of this process and its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def read(docs: Path, folder: Path) -> int:
    """As `index build` reads; returns how many passages stand in the folder."""
    folder.mkdir()
    source = open_source(str(docs), DocumentsConfig())
    source.identity()
    return take_in(source, folder, 0.0).rows


def beside(pages: int, of: int, rounds: int) -> None:
    """Each kind beside its bare loop, in turns; the least of the rounds."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            write(docs := Path(place, "docs"), (kind,), pages, of)
            files, best = sorted(docs.rglob("*.*")), [1e9, 1e9]
            for number in range(rounds):
                for way in (0, 1):
                    start = spent()
                    if way:
                        read(docs, Path(place, f"out{number}"))
                    else:
                        for path in files:
                            BARE[kind](path)
                    best[way] = min(best[way], spent() - start)
            rates = f"{pages / best[0]:,.0f} | {pages / best[1]:,.0f} | {best[1] / best[0]:.2f}"
            sys.stdout.write(f"| {kind} | {rates} |\n")
            sys.stdout.flush()


def build(docs: Path, folder: Path) -> None:
    """An index of BM25 alone, and further runs, in a process of its own."""
    import indexes.commands.build as command

    def reading(*given: Any, **named: Any) -> Any:
        with told("reading"):
            return take_in(*given, **named)

    command.take_in = reading  # pyright: ignore[reportPrivateImportUsage]
    said = ["--corpus", str(docs), "--out", str(folder), "--encoder", "none"]
    for name, more in (("build", []), ("build again", []), ("--update", ["--update"])):
        with told(name):
            command.main([*said, *more])


@contextmanager
def told(name: str) -> Iterator[None]:
    """Says what a block took; and the most memory that this process and the largest one that read for it held so far,
    the latter once it has ended.
    """
    start, clock = spent(), time.monotonic()
    yield
    peaks = [resource.getrusage(who).ru_maxrss >> 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    sys.stdout.write(f"{name}: {time.monotonic() - clock:.1f} s, {spent() - start:.1f} CPU s;"
                     f" {peaks[0]} MiB at most, {peaks[1]} in a process that reads\n")  # fmt: skip
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--of", type=int, default=20, help="pages of a file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", type=int, nargs="+", metavar="FILES", help="builds of so many files of all kinds")
    parser.add_argument("--docs", type=Path, help="with --build: these instead, made where they are not there")
    parser.add_argument("--own", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.own:
        build(*given.own)
    elif not given.build:
        beside(given.pages, given.of, given.rounds)
    for files in given.build or ():
        with tempfile.TemporaryDirectory() as place:
            docs = given.docs or Path(place, "docs")
            if not docs.exists():
                write(docs, KINDS, files * given.of, given.of)
            sys.stdout.write(f"{files:,} files of {given.of} pages:\n")
            sys.stdout.flush()
            subprocess.run(
                [sys.executable, "-m", "benchmarks.documents_scale", "--own", str(docs), str(Path(place, "out"))],
                check=True,
            )


if __name__ == "__main__":
    main()
