"""Index types beside exact search: recall@10, latency, memory, disk, build and opening time.

    python benchmarks/index_types.py --synthetic 1000000                     # clustered unit vectors
    python benchmarks/index_types.py --index runs/a runs/b --questions dev/*.jsonl   # real ones, from built folders

Each type is built, and then searched, in a process of its own. "resident" is what the process grew by from before the
index was opened to after the last search, file-backed pages included; no encoder is loaded there. One thread, one query
at a time. Synthetic vectors: 10,000 centres in groups of 100, noise whose spectrum falls as 1/√i, so that they have
neighbours near and far as text has; queries are drawn in the same way. Real queries are the questions, by MiniLM.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from indexes.config import AnnConfig
from indexes.folder.manifest import INDEX, IndexFacts, read_index_manifest
from indexes.rows.vector_file import VECTORS, VectorFile
from indexes.vectors.index_types import build_type, open_index
from indexes.vectors.recall import make_probe, measure

TYPES = ("flat", "flat-fp16", "ivf-sq8", "hnsw-sq8", "ivf-pq", "rabitq")
QUERIES = 500
STEP = 50_000


def synthetic(folder: Path, rows: int, dimension: int) -> np.ndarray:
    """Writes the vectors; returns the queries."""
    rng = np.random.default_rng(0)
    spectrum = np.arange(1, dimension + 1) ** -0.5
    turn = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0].astype(np.float32)
    groups = unit(rng.normal(size=(100, dimension)))
    centres = unit(np.repeat(groups, 100, axis=0) + 0.8 * unit(rng.normal(size=(10_000, dimension))))

    def draw(count: int) -> np.ndarray:
        noise = unit(rng.normal(size=(count, dimension)) * spectrum) @ turn
        return unit(centres[rng.integers(0, len(centres), count)] + 0.9 * noise)

    vectors = VectorFile.create(folder / VECTORS, rows, dimension)
    for start in range(0, rows, STEP):
        vectors.write(start, draw(min(STEP, rows - start)))
        vectors.release()
    return draw(QUERIES)


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def real(folder: Path, indexes: list[Path], questions: list[Path]) -> np.ndarray:
    """Writes the vectors of all folders one behind the other; returns the vectors of sampled questions."""
    from indexes.encoding.embed import Encoder
    from indexes.encoding.encoders import find_encoder
    from steprag.records.inputs import read_questions

    manifests = [read_index_manifest(index) for index in indexes]
    dimension = manifests[0].encoder.dimension
    vectors = VectorFile.create(folder / VECTORS, sum(manifest.corpus.rows for manifest in manifests), dimension)
    start = 0
    for index, manifest in zip(indexes, manifests, strict=True):
        halved = VECTORS in manifest.files
        source = VectorFile(index / (VECTORS if halved else INDEX), manifest.corpus.rows, dimension,
                            np.float16 if halved else np.float32)  # fmt: skip
        for _, chunk in source.chunks():
            vectors.write(start, chunk)
            start += len(chunk)
    texts = [question.question for file in questions for question in read_questions(file)]
    picked = np.random.default_rng(0).permutation(len(texts))[:QUERIES]
    spec = manifests[0].encoder
    return Encoder(find_encoder(spec.name), spec).encode_queries([texts[row] for row in picked])


def resident() -> int:
    """MiB that are resident in this process, file-backed pages included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


def shape(folder: Path) -> tuple[int, int]:
    rows, dimension = json.loads((folder / "shape.json").read_text())
    return rows, dimension


def build(folder: Path, name: str, recall: float) -> None:
    """In a process of its own: builds the type and notes its parameters."""
    import faiss

    faiss.omp_set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    vectors = VectorFile(folder / VECTORS, *shape(folder))
    (folder / INDEX).unlink(missing_ok=True)
    start = time.perf_counter()
    probe = make_probe(vectors, np.load(folder / "tuning.npy", allow_pickle=False))
    truth = time.perf_counter() - start
    facts, measured = build_type(name, folder, vectors, AnnConfig(recall=recall), probe)
    seconds = time.perf_counter() - start - truth
    row = {"facts": asdict(facts), "build_s": round(seconds, 1), "tuned_to": measured.recall_at_10}
    (folder / f"{name}.json").write_text(json.dumps(row))
    if (folder / INDEX).exists():
        (folder / INDEX).rename(folder / f"{name}.faiss")


def search(folder: Path, name: str) -> None:
    """In a process of its own: opens and searches the type, and prints what it took."""
    import faiss

    faiss.omp_set_num_threads(1)
    rows, dimension = shape(folder)
    row = json.loads((folder / f"{name}.json").read_text())
    queries = np.load(folder / "queries.npy", allow_pickle=False)
    (folder / INDEX).unlink(missing_ok=True)
    if (folder / f"{name}.faiss").exists():
        (folder / INDEX).symlink_to(folder / f"{name}.faiss")
    small = unit(np.random.default_rng(0).normal(size=(200, dimension)))
    for factory in ("Flat", "IVF1,SQ8", "IVF1,RaBitQ", "HNSW4,SQ8"):  # pages of FAISS's own code are no index's
        warm = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        warm.train(small)
        warm.add(small)
        warm.search(small[:1], 10)
    del warm, small
    before, start = resident(), time.perf_counter()
    index = open_index(folder, IndexFacts(**row["facts"]), rows, dimension)
    opened, at_opening = time.perf_counter() - start, resident() - before
    for query in queries:
        index.search(query[None], 10)
    after = resident() - before
    vectors = VectorFile(folder / VECTORS, rows, dimension)
    measured = measure(index, vectors, make_probe(vectors, queries))
    own = folder / f"{name}.faiss"
    disk = (own.stat().st_size if own.exists() else 0) + (folder / VECTORS).stat().st_size
    report = {"type": name, "recall@10": measured.recall_at_10, "ms": measured.search_ms, "resident_MiB": after,
              "opening_MiB": at_opening, "opening_s": round(opened, 3), "disk_MiB": disk // 2**20, **row}  # fmt: skip
    sys.stdout.write(json.dumps(report) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", type=int, metavar="ROWS")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--index", type=Path, nargs="+", default=[])
    parser.add_argument("--questions", type=Path, nargs="+", default=[])
    parser.add_argument("--recall", type=float, default=0.985, help="that types are tuned to, on other queries [0.985]")
    parser.add_argument("--types", nargs="+", default=list(TYPES))
    parser.add_argument("--work", type=Path, help="keep the files here")
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step, name = given.step
        return build(given.work, name, given.recall) if step == "build" else search(given.work, name)
    folder = given.work or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "shape.json").exists():
        queries = synthetic(folder, given.synthetic, given.dimension) if given.synthetic else real(
            folder, given.index, given.questions)  # fmt: skip
        np.save(folder / "tuning.npy", queries[: len(queries) // 2], allow_pickle=False)
        np.save(folder / "queries.npy", queries[len(queries) // 2 :], allow_pickle=False)
        dimension = queries.shape[1]
        stored = (folder / VECTORS).stat().st_size
        (folder / "shape.json").write_text(json.dumps((stored // (2 * dimension), dimension)))
    for name in given.types:
        for step in ("build", "search"):
            if step == "build" and (folder / f"{name}.json").exists():
                continue
            subprocess.run([sys.executable, __file__, "--work", str(folder), "--recall", str(given.recall),
                            "--step", step, name], check=True)  # fmt: skip
    return None


if __name__ == "__main__":
    main()
