"""People's own documents at scale: pages a second beside the libraries' bare loops, memory, a second run.

    python benchmarks/documents_scale.py --pages 2000                     # beside the bare loops, interleaved
    python benchmarks/documents_scale.py --build 500 5000 --of 2          # memory by number of files
    python benchmarks/documents_scale.py --build 5000 --of 20             # 100,000 pages

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
import zlib
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
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pages_of(rng: random.Random, count: int) -> list[tuple[str, list[str]]]:
    """Heading and lines of about 11 words of each page. Every ninth line ends a sentence; no two pages are the same."""
    made: list[tuple[str, list[str]]] = []
    for number in range(count):
        words = rng.choices(VOCABULARY, k=WORDS)
        lines = [" ".join(words[at : at + 11]).capitalize() + "." * (at % 9 == 0) for at in range(0, WORDS, 11)]
        made.append((f"{number + 1}. {' '.join(words[:3]).title()}", lines))
    return made


def pdf(pages: list[tuple[str, list[str]]]) -> bytes:
    """A PDF with packed pages, as most programs write them."""
    bodies = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    for number, (heading, lines) in enumerate(pages, 1):
        texts = [(72, 800, 9, "ACME Handbook"), (72, 760, 16, heading), (300, 20, 9, f"Page {number}")]
        texts += [(72, 735 - 16 * row, 11, line) for row, line in enumerate(lines)]
        drawn = "".join(f"BT /F {size} Tf {x} {y} Td ({said}) Tj ET\n" for x, y, size, said in texts)
        packed = zlib.compress(drawn.encode("latin-1"))
        bodies.append(b"<</Filter/FlateDecode/Length %d>>stream\n%b\nendstream" % (len(packed), packed))
        bodies.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents %d 0 R"
                      b"/Resources<</Font<</F 3 0 R>>>>>>" % len(bodies))  # fmt: skip
    kids = " ".join(f"{number} 0 R" for number in range(5, 4 + 2 * len(pages), 2))
    bodies[1] = f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>".encode()
    out, table = bytearray(b"%PDF-1.4\n"), [b"0000000000 65535 f \n"]
    for number, body in enumerate(bodies, 1):
        table.append(b"%010d 00000 n \n" % len(out))
        out += b"%d 0 obj%bendobj\n" % (number, body)
    end = b"xref\n0 %d\n%btrailer<</Size %d/Root 1 0 R>>startxref\n%d\n%%%%EOF"
    return bytes(out) + end % (len(table), b"".join(table), len(table), len(out))


def html(pages: list[tuple[str, list[str]]]) -> bytes:
    body = "".join(f"<h2>{heading}</h2><p>{' '.join(lines)}</p>" for heading, lines in pages)
    return f"<html><head><title>x</title></head><body><nav><a href=/>Home</a></nav>{body}</body></html>".encode()


def md(pages: list[tuple[str, list[str]]]) -> bytes:
    return "\n\n".join(f"## {heading}\n\n" + "\n".join(lines) for heading, lines in pages).encode()


def docx(path: Path, pages: list[tuple[str, list[str]]]) -> None:
    said = "<w:p>{}<w:r><w:t>{}</w:t></w:r></w:p>"
    style = "<w:pPr><w:pStyle w:val='Heading1'/></w:pPr>"
    body = "".join(said.format(style, heading) + said.format("", " ".join(lines)) for heading, lines in pages)
    styles = f"<w:styles xmlns:w='{W}'><w:style w:type='paragraph' w:styleId='Heading1'><w:name w:val='heading 1'/>"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f"<w:document xmlns:w='{W}'><w:body>{body}</w:body></w:document>")
        archive.writestr("word/styles.xml", f"{styles}</w:style></w:styles>")
        types = "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'/>"
        archive.writestr("[Content_Types].xml", types)


def write(folder: Path, kinds: tuple[str, ...], pages: int, of: int) -> None:
    """Files of `of` pages each, `pages` in all, of the kinds in turn, 500 to a folder."""
    for number in range(-(-pages // of)):
        made, kind = pages_of(random.Random(number), min(of, pages - number * of)), kinds[number % len(kinds)]
        path = folder / f"{number // 500:03}" / f"{number:06}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "docx":
            docx(path, made)
        else:
            path.write_bytes({"pdf": pdf, "html": html, "md": md}[kind](made))


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
            subprocess.run([sys.executable, __file__, "--own", str(docs), str(Path(place, "out"))], check=True)


if __name__ == "__main__":
    main()
