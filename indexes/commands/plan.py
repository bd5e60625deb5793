"""`steprag plan index`: what each index type of a corpus takes on this machine, before anything is encoded.

Disk and memory follow from FAISS's layouts (a test compares the formulas with files). Times are measured here on a
few seconds' work and scaled. Recall is what `benchmarks/index_types.py` measured; a build measures its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from indexes.addons.bm25 import Analyser, Bm25Config, terms_of, write_bm25
from indexes.config import IndexConfig, chosen_encoder
from indexes.corpora.readers import Source, count_rows, open_source
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import NONE, EncoderSpec
from indexes.encoding.runtimes import device_here
from indexes.folder.manifest import SPARSE
from indexes.rows.passage_store import passage_text
from indexes.vectors.index_types import TRAIN_POINTS, TYPES, AnnConfig, cells, code_bytes, prepare
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import say_next
from steprag.engines.threads import product_flops, usable_cores, usable_memory
from steprag.errors import ConfigError, counted
from steprag.types import Passage

EXPECTED = {"flat": 1.0, "flat-fp16": 1.0, "ivf-sq8": 0.99, "hnsw-sq8": 0.985, "ivf-pq": 0.985, "rabitq": 0.98}
"""Recall@10 on real questions, docs/indexes.md; GPU types were not measured."""
GPU = {name for name, kind in TYPES.items() if kind.gpu}
TRIED = {"cpu": 32, "gpu": 1024}
"""Passages that are encoded to learn a device's pace: some of its batches."""
SPREAD = 4
"""They are every fourth one, for a corpus may begin with its longest or its shortest."""
INDEXED = 500
"""Passages of which BM25 is built to learn its pace and size."""
POSTINGS = 60
"""Different words in a passage of 100, stop words off, where no corpus is given."""
SCANNED = 2 * 10**9
"""Bytes that an exact search may read for a query: about a fifth of a second of one core."""
OTHER_BYTES = 600
"""A passage of 100 words with its title, id and offset on the disk."""


@dataclass(frozen=True)
class TypePlan:
    """What a type takes: bytes, seconds of building the index from its vectors, recall@10 where it was measured."""

    type: str
    disk: int
    memory: int
    seconds: float | None
    recall: float | None
    fits: bool


@dataclass(frozen=True)
class Room:
    """What a machine has: bytes of memory, bytes free on the disk, cores."""

    memory: int
    disk: int
    cores: int


@dataclass(frozen=True)
class Trial:
    """BM25 of a few passages: postings and seconds for each."""

    postings: float
    seconds: float


def sizes(name: str, dimension: int, ann: AnnConfig) -> tuple[float, float]:
    """(disk, memory) bytes a passage of vectors and index; passages and centroids come on top.

    Memory is what a search needs at hand: exact types read every vector. What is scored again comes from the disk's
    cache and is not counted.
    """
    own = {
        "flat": 4.0 * dimension,
        "flat-fp16": 0.0,
        "ivf-sq8": dimension + 8.0,
        "ivf-pq": code_bytes(dimension, ann) + 8.0,
        "hnsw-sq8": dimension + 4.0 * (2 * ann.links + ann.links / max(1, ann.links - 1)) + 12.0,
        "rabitq": dimension * ann.bits / 8 + (8.0 if ann.bits == 1 else 20.0) + 8.0,
        "gpu-flat": 0.0,
        "gpu-cagra": 2.0 * dimension + 4.0 * 64,
    }[name]
    return 2.0 * dimension + own, 2.0 * dimension if name in ("flat-fp16", "gpu-flat") else own


def plan(rows: int, dimension: int, ann: AnnConfig, machine: Room, *, timed: bool = True) -> list[TypePlan]:
    """A line for every type, those for a GPU last."""
    flops = product_flops() if timed else 0.0
    lines = []
    for name, kind in TYPES.items():
        disk, memory = sizes(name, dimension, ann)
        centroids = 4 * dimension * cells(rows, ann) if kind.effort == "nprobe" else 0
        whole = int(rows * (disk + OTHER_BYTES)) + centroids
        held = int(rows * memory) + centroids
        seconds = None if kind.gpu or not timed else _seconds(name, rows, dimension, ann, flops)
        fits = not kind.gpu and whole <= machine.disk and held <= machine.memory // 2
        lines.append(TypePlan(name, whole, held, seconds, EXPECTED.get(name), fits))
    return lines


def bm25_line(rows: int, machine: Room, trial: Trial | None) -> TypePlan:
    """What BM25 takes beside the vectors or without them: 8 bytes a posting, and 4 a passage for a search's scores."""
    postings = rows * (trial.postings if trial else POSTINGS)
    disk, memory = int(8 * postings + OTHER_BYTES * rows), int(8 * postings + 4 * rows)
    fits = disk <= machine.disk and memory <= machine.memory // 2
    return TypePlan(SPARSE, disk, memory, rows * trial.seconds if trial else None, None, fits)


def recommend(lines: list[TypePlan], rows: int, dimension: int) -> str | None:
    """The simplest type that fits: exact while a search reads little, then the fastest that memory allows."""
    fitting = {line.type for line in lines if line.fits}
    order = ["flat"] if rows * dimension * 4 <= SCANNED else []
    return next((name for name in [*order, "ivf-sq8", "rabitq", "ivf-pq"] if name in fitting), None)


def _seconds(name: str, rows: int, dimension: int, ann: AnnConfig, flops: float) -> float:
    """Building from the vectors: k-means and assignment by their products, the rest by a trial of 2,000 rows."""
    import faiss

    kind = TYPES[name]
    if kind.factory is None:
        return rows * dimension * 4 / 3e8  # a pass over the disk
    tried = 2000
    sample = np.random.default_rng(0).normal(size=(tried, dimension)).astype(np.float32)
    few = ann.model_copy(update={"nlist": 1})
    index: Any = faiss.index_factory(dimension, kind.factory(tried, dimension, few), faiss.METRIC_INNER_PRODUCT)
    prepare(index, TRAIN_POINTS)
    start = time.perf_counter()
    index.train(sample)
    trained = time.perf_counter()
    index.add(sample)
    a_row = (time.perf_counter() - trained) / tried
    if name == "hnsw-sq8":
        return rows * a_row * np.log(max(rows, tried)) / np.log(tried)
    nlist = cells(rows, ann)
    products = 2.0 * dimension * nlist * (10 * min(rows, 64 * nlist) + rows)
    return products / flops + (trained - start) * min(8, max(1, rows / tried)) + rows * a_row


def machine_here(out: Path) -> Room:
    """This machine: memory and cores that may be used, and what is free on the disk where `out` is or would be."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return Room(usable_memory(), shutil.disk_usage(there).free, usable_cores())


def _beginning(source: Source, passages: int) -> list[Passage]:
    return list(islice((value for _, _, value in source.items() if isinstance(value, Passage)), passages))


def encoders(config: IndexConfig, devices: list[str], cores: int) -> tuple[int, int | None]:
    """How many encoders of a build work side by side at full pace, and the threads of each; None on a GPU.

    Several processes share a GPU's pace, and on processors the cores.
    """
    if devices[0] != "cpu":
        return config.ray or len(set(devices)), None
    count = config.ray or min(cores, len(devices) * config.processes)
    return count, 1 if config.ray else cores // count


def try_bm25(source: Source, config: Bm25Config) -> Trial:
    """Builds BM25 of the corpus's beginning and throws it away."""
    passages, analyse = _beginning(source, INDEXED), Analyser(config.language)
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        write_bm25(Path(folder), (terms_of(passage, analyse, config.title_weight) for passage in passages), config)
        took = time.perf_counter() - start
        found = Path(folder).glob("data.*")  # no file where no word is
        postings = sum(len(np.load(path, allow_pickle=False)) for path in found)
    return Trial(postings / max(1, len(passages)), took / max(1, len(passages)))


def _pace(source: Source | None, config: IndexConfig, folder: Path, spec: EncoderSpec) -> tuple[float, int]:
    """Passages a second that a build encodes here of this corpus, or of passages of 100 words; and by how many
    encoders.
    """
    devices = [device_here(name, config.dtype) for name in config.device.split(",")]
    count, threads = encoders(config, devices, usable_cores())
    encoder = Encoder(folder, spec, device=devices[0], dtype=config.dtype, backend=config.backend, threads=threads)
    tried = TRIED["cpu" if devices[0] == "cpu" else "gpu"]
    texts = [passage_text(passage) for passage in _beginning(source, SPREAD * tried)[::SPREAD]] if source else []
    texts = texts or [" ".join(["passage"] * 100)] * tried
    encoder.encode_passages(texts[:4])
    start = time.perf_counter()
    encoder.encode_passages(texts, batch_tokens=config.batch_tokens)
    return count * len(texts) / (time.perf_counter() - start), count


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag plan index", description="What each index type of a corpus takes on this machine."
    )
    parser.add_argument("--corpus", help="as for steprag index build; a few of its passages are encoded")
    parser.add_argument("--rows", type=int, help="passages, in place of counting the corpus")
    parser.add_argument("--dimension", type=int, help="of the vectors, in place of asking the encoder")
    parser.add_argument("--out", type=Path, default=Path(), help="where the index would be, for the disk's room [.]")
    parser.add_argument("--json", action="store_true", help="the plan as JSON")
    add_options(parser, IndexConfig)
    given = parse_arguments(parser, argv)
    config = config_from(IndexConfig, given)
    if not given.corpus and not given.rows:
        raise ConfigError("give --corpus, or --rows and --dimension")
    source = open_source(given.corpus) if given.corpus else None
    if given.dimension:
        dimension, (pace, count) = given.dimension, (None, 0)
    else:
        folder, spec = chosen_encoder(config)
        dimension = spec.dimension
        pace, count = _pace(source, config, folder, spec) if spec.dense else (None, 0)
    rows, exact = (given.rows, True) if given.rows else count_rows(source) if source else (0, True)
    machine = machine_here(given.out)
    lines = plan(rows, dimension, config.ann, machine) if dimension else []
    bm25 = bm25_line(rows, machine, try_bm25(source, config.bm25) if source else None)
    chosen = recommend(lines, rows, dimension) if dimension else SPARSE if bm25.fits else None
    report = {
        "passages": rows,
        "counted": exact,
        "dimension": dimension,
        "machine": asdict(machine),
        "encoding_seconds": max(1, round(rows / pace)) if pace else None,
        "encoders": count,
        "types": [asdict(line) for line in [*lines, bm25]],
        "recommended": chosen,
    }
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _table(report, [*lines, bm25]))
    if given.corpus and chosen:
        say_next("index", "build", given.corpus, *(("--encoder", "none") if chosen == SPARSE else ("--type", chosen)))
    return 0


def _table(report: dict[str, Any], lines: list[TypePlan]) -> str:
    machine = report["machine"]
    about = "" if report["counted"] else "about "
    vectors = f"of {report['dimension']} dimensions" if report["dimension"] else "without vectors"
    text = [
        f"{about}{counted(report['passages'], 'passage')} {vectors};"
        f" here: {_size(machine['memory'])} memory, {_size(machine['disk'])} disk free, {machine['cores']} cores"
    ]
    if report["encoding_seconds"]:
        by = f" by {report['encoders']} side by side" if report["encoders"] > 1 else ""
        text.append(f"encoding: {_time(report['encoding_seconds'])}{by}, once for all types")
    text.append(f"\n{'type':<12}{'disk':>10}{'memory':>10}{'build':>10}{'recall@10':>11}")
    for line in lines:
        seconds = "–" if line.seconds is None else _time(line.seconds)
        recall = "–" if line.recall is None else f"{line.recall:.3f}"
        note = "" if line.fits else "  needs a GPU" if line.type in GPU else "  does not fit"
        text.append(f"{line.type:<12}{_size(line.disk):>10}{_size(line.memory):>10}{seconds:>10}{recall:>11}{note}")
    chosen = report["recommended"]
    option = f"--encoder {NONE}" if chosen == SPARSE else f"--type {chosen}"
    text.append(f"\nrecommended: {option}" if chosen else "\nnothing fits here; a smaller encoder takes less")
    if chosen != SPARSE:
        text.append(f"{SPARSE} is what --hybrid adds, or all there is with --encoder {NONE}")
    return "\n".join(text) + "\n"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
