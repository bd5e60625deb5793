"""Resident memory of a build beside the size of its corpus, each size and way in a process of its own.

    python benchmarks/intake_memory.py [--rows 50000 200000 1000000] [--ways vectors bm25 bm25s] [--type flat-fp16]
    python benchmarks/intake_memory.py --ways intake --rows 5000000

"intake" reads a corpus into an index folder. "vectors" goes on to shards and index; the encoder is a stand-in that
hashes a text into 64 numbers. "bm25" counts documents a block at a time and sorts on the disk
(`indexes/addons/postings.py`), "bm25s" is that library's own builder, which holds all tokens. Passages have 20 words.
Every title has a number of its own, so BM25's vocabulary, which is in memory, grows with the passages here;
`--no_titles` leaves titles out of BM25, and 5,000 words remain.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import indexes.encoding.shards
from indexes.addons.bm25 import Analyser, Bm25Config, terms_of, write_bm25
from indexes.config import AnnConfig
from indexes.corpora.read_corpus import ingest
from indexes.corpora.readers import open_source
from indexes.encoding.encoders import EncoderSpec
from indexes.encoding.shards import Work, encode_shards
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.index_types import build_type
from indexes.vectors.recall import make_probe
from steprag.types import Passage

WORDS = [f"word{n}" for n in range(5000)]


class Hashing:
    """Stands in for `Encoder`: the same text gives the same vector, and nothing is learnt."""

    def __init__(self, _: object, spec: EncoderSpec, **__: object) -> None:
        self._waves = np.arange(1, spec.dimension + 1)

    def tokenise(self, texts: list[str]) -> None:
        return None

    def encode_tokens(self, texts: list[str], *_: object, progress: object = None, **__: object) -> np.ndarray:
        seeds = np.array([zlib.crc32(text.encode()) for text in texts], dtype=np.float64)
        values = np.sin(seeds[:, None] * self._waves)
        return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def write(path: Path, rows: int) -> None:
    rng = random.Random(0)
    with path.open("w") as stream:
        for row in range(rows):
            text = " ".join(rng.choices(WORDS, k=20))
            stream.write(json.dumps({"id": str(row), "contents": f'"Title {row}"\n{text}'}) + "\n")


def peak() -> int:
    """MiB that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def vectors(corpus: Path, folder: Path, given: argparse.Namespace) -> str:
    indexes.encoding.shards.Encoder = Hashing  # pyright: ignore[reportAttributeAccessIssue]
    spec = EncoderSpec("hashing", "", "mean", True, "", "", 64, 64)
    rows = ingest(open_source(str(corpus)), folder, 0.0).rows
    taken = peak()
    encode_shards(Work(folder, folder, spec, rows, 4096, None, "float32"), ["cpu"])
    encoded, store = peak(), VectorFile(folder / VECTORS, rows, 64)
    build_type(given.type, folder, store, AnnConfig(), make_probe(store))
    return f"{taken} after the intake, {encoded} after the shards, with the {given.type} index"


def intake(corpus: Path, folder: Path, given: argparse.Namespace) -> str:
    before, start = int(Path("/proc/self/io").read_text().split()[1]), time.perf_counter()
    rows = ingest(open_source(str(corpus)), folder, 0.0).rows
    pace, read = rows / (time.perf_counter() - start), int(Path("/proc/self/io").read_text().split()[1]) - before
    return f"{pace:,.0f} a second, {read / 1e9:.2f} GB read of a corpus of {corpus.stat().st_size / 1e9:.2f} GB"


def documents(corpus: Path, titles: bool) -> Iterator[list[str]]:
    analyse, config = Analyser("english"), Bm25Config()
    for _, _, value in open_source(str(corpus)).items():
        if isinstance(value, Passage):
            yield terms_of(value if titles else replace(value, title=""), analyse, config.title_weight)


def bm25(corpus: Path, folder: Path, given: argparse.Namespace) -> str:
    write_bm25(folder, documents(corpus, not given.no_titles), Bm25Config())
    return ""


def by_bm25s(corpus: Path, folder: Path, given: argparse.Namespace) -> str:
    import bm25s

    vocabulary: dict[str, int] = {}
    rows = [[vocabulary.setdefault(term, len(vocabulary)) for term in terms]
            for terms in documents(corpus, not given.no_titles)]  # fmt: skip
    model = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
    model.index((rows, vocabulary), show_progress=False)
    model.save(folder, show_progress=False)
    return ""


WAYS: dict[str, Callable[[Path, Path, argparse.Namespace], str]] = {
    "intake": intake, "vectors": vectors, "bm25": bm25, "bm25s": by_bm25s,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--ways", nargs="+", default=["vectors", "bm25", "bm25s"], choices=WAYS)
    parser.add_argument("--type", default="flat")
    parser.add_argument("--no_titles", action="store_true")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        start, before, (corpus, folder) = time.perf_counter(), peak(), given.one
        told = WAYS[given.ways[0]](corpus, folder, given)
        sys.stdout.write(f"{given.ways[0]:<8} {peak():>6} MiB ({before} before), {time.perf_counter() - start:.0f} s"
                         f"{told and f'; {told}'}\n")  # fmt: skip
        return
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as folder:
            write(corpus := Path(folder) / "corpus.jsonl", rows)
            for way in given.ways:
                sys.stdout.write(f"{rows:>9,} passages: ")
                sys.stdout.flush()
                (out := Path(folder) / way).mkdir()
                options = ["--type", given.type, *["--no_titles"] * given.no_titles]
                one = ["--one", str(corpus), str(out)]
                subprocess.run([sys.executable, __file__, "--ways", way, *options, *one], check=True)


if __name__ == "__main__":
    main()
