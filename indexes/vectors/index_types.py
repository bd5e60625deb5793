"""Index types: how each is built from the vectors, opened, searched, and how much room it takes.

`TYPES` is the table; everything else reads it. All types search by inner product. `flat` and `flat-fp16` are exact;
of the others, those with `rescored` store a few bits a dimension, so what they find is scored again with the
fp16 vectors from a memory map, which costs disk and no memory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from indexes.folder.manifest import INDEX, IndexFacts
from indexes.ranking.rankings import VectorIndex
from indexes.rows.vector_file import VECTORS, VectorFile, no_room
from indexes.vectors.adopted import L2, Cosines
from indexes.vectors.recall import Measured, Probe, measure
from steprag.config.sections import Positive, Section
from steprag.console.progress import say
from steprag.errors import ConfigError, DataError, quoted

ADOPTED = "adopted"
"""A FAISS file of another program, opened as it is."""
TRAIN_POINTS = 64
"""Sampled rows a cell that k-means sees."""
PQ_POINTS = 256 * TRAIN_POINTS
RESCORED = (10, 20, 40)
"""Candidates a wanted passage that are tried for types that are scored again, fewest first."""
PLAIN = (0, 4)
"""The same for types whose own scores may do."""


TypeName = Literal["flat", "flat-fp16", "ivf-sq8", "ivf-pq", "hnsw-sq8", "rabitq", "gpu-flat", "gpu-cagra"]


class AnnConfig(Section):
    """Parameters of the approximate types; none: chosen from the number of passages, then tuned to `recall`."""

    recall: float = Field(default=0.98, gt=0, le=1, description="recall@10 that effort is tuned to on sampled queries")
    nlist: Positive | None = Field(default=None, description="ivf-*, rabitq: cells; none: about 2 √rows")
    nprobe: Positive | None = Field(default=None, description="ivf-*, rabitq: cells that a query visits; none: tuned")
    code_bytes: Positive | None = Field(default=None, description="ivf-pq: bytes a vector; none: dimension / 8")
    bits: int = Field(default=1, ge=1, le=8, description="rabitq: bits a dimension")
    links: Positive = Field(default=32, description="hnsw-sq8: links a node")
    ef: Positive | None = Field(default=None, description="hnsw-sq8: candidates kept in a search; none: tuned")
    rescore: int | None = Field(
        default=None, ge=0, description="candidates a wanted passage that are scored again; none: tuned"
    )


@dataclass(frozen=True)
class IndexType:
    """A row of the table.

    `factory` gives FAISS's name of the index (None: the vectors themselves are the index). `effort` is the attribute
    that trades time for recall. `min_rows` are needed to train it. `gpu`: opened on a GPU, where faiss-gpu is there.
    """

    name: str
    factory: Callable[[int, int, AnnConfig], str] | None = None
    effort: str | None = None
    rescored: bool = False
    min_rows: int = 1
    gpu: bool = False

    @property
    def exact(self) -> bool:
        """Whether every search finds the true nearest vectors (recall 1)."""
        return self.factory is None and self.name != "gpu-cagra"


def cells(rows: int, ann: AnnConfig) -> int:
    """nlist: as given, else the power of two near 2 √rows, with 39 rows a cell where there are so many."""
    if ann.nlist:
        return ann.nlist
    return max(1, 2 ** round(np.log2(max(1.0, min(2 * rows**0.5, rows / 39)))))


def code_bytes(dimension: int, ann: AnnConfig) -> int:
    """ivf-pq: bytes a vector, a divisor of the dimension."""
    wanted = ann.code_bytes or max(1, dimension // 8)
    if dimension % wanted:
        raise ConfigError(f"ann.code_bytes is {wanted}, which does not divide the dimension {dimension}")
    return wanted


TYPES = {
    each.name: each
    for each in (
        IndexType("flat"),
        IndexType("flat-fp16"),
        IndexType("ivf-sq8", lambda n, d, s: f"IVF{cells(n, s)},SQ8", "nprobe"),
        IndexType("ivf-pq", lambda n, d, s: f"IVF{cells(n, s)},PQ{code_bytes(d, s)}", "nprobe", True, min_rows=256),
        IndexType("hnsw-sq8", lambda n, d, s: f"HNSW{s.links},SQ8", "efSearch"),
        IndexType("rabitq", lambda n, d, s: f"RR{d},IVF{cells(n, s)},RaBitQ{s.bits}", "nprobe", True),
        IndexType("gpu-flat", gpu=True),
        IndexType("gpu-cagra", gpu=True),
    )
}


def is_exact(name: str) -> bool:
    """Whether an index of this type finds the true nearest vectors; nobody knows it of an adopted file."""
    return name in TYPES and TYPES[name].exact


class Rescored:
    """An approximate index whose findings are scored again with the stored vectors."""

    def __init__(self, inner: VectorIndex, vectors: VectorFile, factor: int) -> None:
        """`factor`: candidates a wanted row."""
        self.inner, self.factor, self._vectors = inner, factor, vectors
        self.ntotal, self.d = inner.ntotal, vectors.dimension

    def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) scores and rows, best first; -1 where the index found fewer."""
        _, candidates = self.inner.search(x, min(k * self.factor, self.ntotal))
        scores = np.full((len(x), k), -np.inf, dtype=np.float32)
        rows = np.full((len(x), k), -1, dtype=np.int64)
        for number, query in enumerate(x):
            found = np.sort(candidates[number][candidates[number] >= 0])  # in the file's order
            exact = self._vectors.take(found) @ query
            best = np.argsort(-exact, kind="stable")[:k]
            scores[number, : len(best)], rows[number, : len(best)] = exact[best], found[best]
            self._vectors.release()
        return scores, rows


def open_index(folder: Path, facts: IndexFacts, rows: int, dimension: int) -> VectorIndex:
    """The index of a folder, memory-mapped wherever FAISS can. Raises DataError where a file is not that index."""
    if facts.type == ADOPTED:
        index = read_faiss(folder / INDEX, dimension)
        return Cosines(index) if facts.parameters.get("metric") == L2 else index
    if facts.type not in TYPES:
        raise ConfigError(f"{folder} holds an index of type {quoted(facts.type)}, which this version does not know")
    kind = TYPES[facts.type]
    if kind.gpu:
        from indexes.vectors.gpu import open_on_gpu

        return open_on_gpu(kind.name, folder, rows, dimension)
    index = read_faiss(folder / (VECTORS if kind.name == "flat-fp16" else INDEX), dimension)
    if kind.effort and kind.effort in facts.parameters:
        _set_effort(index, kind.effort, facts.parameters[kind.effort])
    if not facts.parameters.get("rescore"):
        return index
    return Rescored(index, VectorFile(folder / VECTORS, rows, dimension), facts.parameters["rescore"])


def read_faiss(path: Path, dimension: int | None) -> Any:
    """A FAISS file, mapped into memory: other processes share its pages. Raises DataError, also for a `dimension` other
    than the manifest's.

    The map is ours: FAISS's own (`IO_FLAG_MMAP_IFC`, 1.15) crashes where a file ends within a number.
    """
    faiss: Any = importlib.import_module("faiss")  # its type stubs lack what is used here
    if path.is_dir():
        held = ", ".join(sorted(file.name for file in path.iterdir())[:5])
        raise DataError(path, f"is a folder of {held}", remedy="name the index file in it")
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
        index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(mapped), mapped.nbytes))
    except (RuntimeError, MemoryError, ValueError):  # FAISS's own message is a page of C++; an empty file has no map
        raise DataError(path, "is no FAISS index", remedy="build the index again") from None
    faiss.add_to_referenced_objects(index, mapped)
    if dimension is not None and index.d != dimension:
        problem = f"has {index.d} dimensions, the manifest says {dimension}"
        raise DataError(path, problem, remedy="build the index again")
    return index


def check_type(name: str, rows: int, dimension: int, ann: AnnConfig) -> None:
    """Raises ConfigError where a corpus of so many rows cannot have the type: before anything is encoded."""
    kind = TYPES[name]
    if rows < kind.min_rows:
        raise ConfigError(f"{name} needs at least {kind.min_rows} passages, the corpus has {rows}; use flat")
    if kind.effort == "nprobe" and (wanted := cells(rows, ann)) > rows:
        raise ConfigError(f"ann.nlist is {wanted}, and the corpus has {rows} passages; give fewer cells, or none")
    if kind.factory:
        kind.factory(rows, dimension, ann)


def build_type(
    name: str, folder: Path, vectors: VectorFile, ann: AnnConfig, probe: Probe
) -> tuple[IndexFacts, Measured]:
    """Writes the index of this type beside its vectors; returns its parameters and what was measured of it.

    Raises NoRoom where the disk is too small for the index.
    """
    kind = TYPES[name]
    (folder / INDEX).unlink(missing_ok=True)  # a killed build's
    if kind.gpu:
        from indexes.vectors.gpu import build_on_gpu

        index = build_on_gpu(name, folder, vectors)
        return IndexFacts(name, {}), measure(index, vectors, probe)
    if name == "flat":
        vectors.copy(folder / INDEX, np.float32)
    elif kind.factory:
        return _approximate(kind, folder, vectors, ann, probe)
    index = read_faiss(folder / (INDEX if name == "flat" else VECTORS), vectors.dimension)
    return IndexFacts(name, {}), measure(index, vectors, probe)


def _approximate(
    kind: IndexType, folder: Path, vectors: VectorFile, ann: AnnConfig, probe: Probe
) -> tuple[IndexFacts, Measured]:
    assert kind.factory is not None
    factory = kind.factory(vectors.rows, vectors.dimension, ann)
    _train_and_fill(factory, folder / INDEX, vectors)
    index = read_faiss(folder / INDEX, vectors.dimension)
    assert kind.effort is not None
    given = ann.nprobe if kind.effort == "nprobe" else ann.ef
    efforts = [given] if given else _efforts(kind.effort, index)
    factors = (ann.rescore,) if ann.rescore is not None else RESCORED if kind.rescored else PLAIN
    tried = [_least_effort(kind.effort, efforts, index, factor, vectors, ann.recall, probe) for factor in factors]
    enough = [found for found in tried if found[1].recall_at_10 >= ann.recall]
    if enough:
        parameters, measured = min(enough, key=lambda found: found[1].search_ms)
    else:
        parameters, measured = max(tried, key=lambda found: found[1].recall_at_10)
        say(f"index: recall@10 is {measured.recall_at_10}, below the {ann.recall} asked for;"
            " give more bits or bytes a vector, or another --type")  # fmt: skip
    return IndexFacts(kind.name, {"factory": factory, **parameters}), measured


def _least_effort(
    name: str, efforts: Sequence[int], index: Any, factor: int, vectors: VectorFile, wanted: float, probe: Probe
) -> tuple[dict[str, Any], Measured]:
    """The first effort that gives the wanted recall with so many candidates, else the best one."""
    searched = Rescored(index, vectors, factor) if factor else index
    best: tuple[dict[str, Any], Measured] | None = None
    for effort in efforts:
        _set_effort(index, name, effort)
        measured = measure(searched, vectors, probe)
        gained = measured.recall_at_10 - best[1].recall_at_10 if best else 1.0
        if gained > 0:
            best = ({name: effort, "rescore": factor}, measured)
        if measured.recall_at_10 >= wanted or gained < 0.002:  # more effort finds no more
            break
    assert best is not None
    return best


def _efforts(effort: str, index: Any) -> list[int]:
    start, most = (16, 1024) if effort == "efSearch" else (4, _inner(index).nlist)
    return [*(start * 2**step for step in range(20) if start * 2**step < most), most]


def _inner(index: Any) -> Any:
    """The index behind a transformation of its vectors."""
    import faiss

    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index


def _set_effort(index: Any, effort: str, value: int) -> None:
    inner = _inner(index)
    setattr(inner.hnsw if effort == "efSearch" else inner, effort, value)


def _train_and_fill(factory: str, path: Path, vectors: VectorFile) -> None:
    import faiss

    index: Any = faiss.index_factory(vectors.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    prepare(index, TRAIN_POINTS)
    points = max(PQ_POINTS, getattr(_inner(index), "nlist", 0) * TRAIN_POINTS)
    sample = np.sort(np.random.default_rng(0).permutation(vectors.rows)[:points])
    index.train(vectors.take(sample))
    for _, chunk in vectors.chunks():
        index.add(chunk)
    try:
        faiss.write_index(index, os.fspath(path))
    except RuntimeError as error:
        if not any(words in str(error) for words in ("No space left", "File too large", "quota")):
            raise
        raise no_room(path, vectors.rows * index.sa_code_size()) from None


def prepare(index: Any, points: int) -> None:
    """Sets how a FAISS index is trained: ten rounds of k-means over so many rows a cell."""
    inner = _inner(index)
    clusterings = [inner.cp] if hasattr(inner, "cp") else []
    if hasattr(inner, "pq"):
        inner.do_polysemous_training = False  # FAISS's default for it: minutes, for a search that is not used here
        clusterings.append(inner.pq.cp)
    for clustering in clusterings:
        clustering.niter, clustering.max_points_per_centroid, clustering.min_points_per_centroid = 10, points, 1


def requested(name: str, ann: AnnConfig) -> IndexFacts:
    """The type and parameters that a build is asked for, as they decide whether a folder holds it already."""
    return IndexFacts(name, {} if TYPES[name].exact else ann.model_dump())
