"""Resident memory of a build beside the size of its corpus: intake, shards and index, each size in its own process.

    python benchmarks/intake_memory.py [--rows 50000 200000 1000000] [--type flat-fp16]
    python benchmarks/intake_memory.py --intake --rows 5000000

The first measures reading and writing: the encoder is a stand-in that hashes a text into 64 numbers. The second
measures the intake alone, twice: as it is, and with the former comparison of ids, which read all ids again for every
65,536 rows. Passages have 20 words.
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
from pathlib import Path

import numpy as np

import indexes.corpora.read_corpus as read_corpus
import indexes.encoding.shards
from indexes.config import AnnConfig
from indexes.corpora.read_corpus import take_in
from indexes.corpora.readers import open_source
from indexes.encoding.encoders import EncoderSpec
from indexes.encoding.shards import Work, encode_shards
from indexes.rows.passage_store import PassageStore
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.index_types import build_type
from indexes.vectors.recall import make_probe

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


def build(corpus: Path, folder: Path, kind: str) -> None:
    indexes.encoding.shards.Encoder = Hashing  # pyright: ignore[reportAttributeAccessIssue]
    spec = EncoderSpec("hashing", "", "mean", True, "", "", 64, 64)
    start = time.perf_counter()
    rows = take_in(open_source(str(corpus)), folder, 0.0).rows
    intake, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    encode_shards(Work(folder, folder, spec, rows, 4096, None, "float32"), ["cpu"])
    encoded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    vectors = VectorFile(folder / VECTORS, rows, 64)
    build_type(kind, folder, vectors, AnnConfig(), make_probe(vectors))
    whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(f"{rows:>9,} passages: {peak} MiB at most after the intake ({rows / intake:,.0f} a second),"
                     f" {encoded} after the shards, {whole} after the {kind} index\n")  # fmt: skip


def intake(corpus: Path, folder: Path, way: str) -> None:
    """Takes the corpus in and writes rows a second, peak memory and the bytes that the process read."""
    if way == "former":
        read_corpus._deal, read_corpus._duplicates = _all_in_one, _reread
    before, start = _bytes_read(), time.perf_counter()
    rows = take_in(open_source(str(corpus)), folder, 0.0).rows
    seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    size = corpus.stat().st_size
    sys.stdout.write(f"{way:>7}: {rows:>9,} passages, {rows / seconds:,.0f} a second, {peak} MiB at most,"
                     f" {(_bytes_read() - before) / 1e9:.2f} GB read of a corpus of {size / 1e9:.2f} GB\n")  # fmt: skip


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def _all_in_one(entries: np.ndarray, shares: Path) -> None:
    with (shares / "all").open("ab") as stream:
        stream.write(entries.tobytes())


def _reread(folder: Path, shares: Path) -> np.ndarray:
    """The former comparison: one share of 65,536 ids at a time, all ids read for each. The corpus has no duplicates."""
    block, kind = read_corpus._BUFFER, read_corpus._SEEN
    parts = -(-(shares / "all").stat().st_size // (kind.itemsize * block))
    with PassageStore(folder), (shares / "all").open("rb") as seen:
        for part in range(parts):
            seen.seek(0)
            kept = []
            while content := seen.read(block * kind.itemsize):
                entries = np.frombuffer(content, dtype=kind)
                kept.append(entries[entries["hash"] % np.uint64(parts) == part])
            np.sort(np.concatenate(kept), order=("hash", "row"))
    return np.empty(0, dtype=[(name, "<i8") for name in ("row", "file", "line", "first_file", "first_line")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--type", default="flat")
    parser.add_argument("--intake", action="store_true", help="the intake alone, beside the former way")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        corpus, folder = given.one
        return intake(corpus, folder, given.way) if given.way else build(corpus, folder, given.type)
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder) / "corpus.jsonl"
            write(corpus, rows)
            for way in ("now", "former") if given.intake else ("",):
                (out := Path(folder) / f"index{way}").mkdir()
                options = ["--way", way] if way else ["--type", given.type]
                subprocess.run([sys.executable, __file__, *options, "--one", str(corpus), str(out)], check=True)
    return None


if __name__ == "__main__":
    main()
