"""Resident memory of a BM25 build beside the size of its corpus, each size and way in a process of its own.

    python benchmarks/bm25_memory.py [--rows 50000 200000 1000000]

"StepRAG" counts documents a block at a time and sorts on the disk (`indexes/addons/postings.py`), "bm25s" is that
library's own builder, which holds all tokens. Passages have about 20 words; the figure is the most that the process
held.
Every passage's title has a number of its own, so the vocabulary, which is in memory, grows with the passages here;
`--no_titles` leaves titles out, and 5,000 words remain.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import bm25s
from intake_memory import write

from indexes.addons.bm25 import Analyser, Bm25Config, terms_of, write_bm25
from indexes.corpora.readers import open_source
from steprag.types import Passage

WAYS = ("StepRAG", "bm25s")


def documents(corpus: Path, titles: bool) -> Iterator[list[str]]:
    analyse, config = Analyser("english"), Bm25Config()
    for _, _, value in open_source(str(corpus)).items():
        if isinstance(value, Passage):
            yield terms_of(value if titles else replace(value, title=""), analyse, config.title_weight)


def by_bm25s(folder: Path, corpus: Path, titles: bool) -> None:
    vocabulary: dict[str, int] = {}
    rows = [[vocabulary.setdefault(term, len(vocabulary)) for term in terms] for terms in documents(corpus, titles)]
    model = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
    model.index((rows, vocabulary), show_progress=False)
    model.save(folder, show_progress=False)


def build(way: str, corpus: Path, folder: Path, titles: bool) -> None:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if way == "bm25s":
        by_bm25s(folder, corpus, titles)
    else:
        write_bm25(folder, documents(corpus, titles), Bm25Config())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    disk = sum(path.stat().st_size for path in folder.iterdir()) // 2**20
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{way:<8} {most:>6} MiB ({before} before), {disk} MiB on the disk, {seconds:.0f} s\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--no_titles", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return build(given.one[0], Path(given.one[1]), Path(given.one[2]), not given.no_titles)
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder) / "corpus.jsonl"
            write(corpus, rows)
            for way in given.ways:
                sys.stdout.write(f"{rows:>9,} passages: ")
                sys.stdout.flush()
                options = ["--no_titles"] if given.no_titles else []
                one = ["--one", way, str(corpus), f"{folder}/{way}"]
                subprocess.run([sys.executable, __file__, *options, *one], check=True)
    return None


if __name__ == "__main__":
    main()
