"""Opening a built index: seconds, and MiB resident until it is searched.

    python -m benchmarks.index_opening [--rows 1000000] [--types flat rabitq]

The folder is a real one, of short passages and 384-dimensional vectors that a stand-in encoder made by hashing; each
opening is in a process of its own, by `open_retriever` with `retriever.preload` off. "Whole" is the process, Python
and FAISS included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import indexes.encoding.shards
from benchmarks.index_types import resident
from benchmarks.intake_memory import Hashing, write
from indexes import open_retriever
from indexes.build import IndexConfig, build_index
from steprag.config import load_config
from steprag.sections import RetrieverConfig


def opened(folder: Path) -> None:
    import faiss

    faiss.IndexFlatIP(2)
    before, start = resident(), time.perf_counter()
    retriever = open_retriever(folder, RetrieverConfig(preload=False))
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{seconds:.2f} s, {resident() - before} MiB for the index, {resident()} MiB the whole"
                     f" ({retriever.fingerprint})\n")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--types", nargs="+", default=["flat", "rabitq"])
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        return opened(given.open)
    indexes.encoding.shards.Encoder = Hashing  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.TemporaryDirectory() as folder:
        corpus, out = Path(folder) / "corpus.jsonl", Path(folder) / "index"
        write(corpus, given.rows)
        for name in given.types:
            build_index(str(corpus), out, load_config(IndexConfig, None, {"type": name}))
            for _ in range(3):
                sys.stdout.write(f"{name}: ")
                sys.stdout.flush()
                subprocess.run([sys.executable, "-m", "benchmarks.index_opening", "--open", str(out)], check=True)
    return None


if __name__ == "__main__":
    main()
