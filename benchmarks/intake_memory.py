"""Resident memory of a build beside the size of its corpus: intake, shards and index, each size in its own process.

    python benchmarks/intake_memory.py [--rows 50000 200000 1000000] [--type flat-fp16]

What is measured is the reading and writing: the encoder is a stand-in that hashes a text into 64 numbers. Passages have
about 20 words.
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

import indexes.encoding.shards
from indexes.config import AnnConfig
from indexes.corpora.read_corpus import take_in
from indexes.corpora.readers import open_source
from indexes.encoding.encoders import EncoderSpec
from indexes.encoding.shards import Work, encode_shards
from indexes.vectors.index_types import build_type
from indexes.vectors.recall import make_probe
from indexes.vectors.vector_file import VECTORS, VectorFile

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--type", default="flat")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return build(*given.one, given.type)
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder) / "corpus.jsonl"
            write(corpus, rows)
            (Path(folder) / "index").mkdir()
            subprocess.run([sys.executable, __file__, "--type", given.type, "--one", str(corpus),
                            str(Path(folder) / "index")], check=True)  # fmt: skip
    return None


if __name__ == "__main__":
    main()
