"""Index types on a GPU, with faiss-gpu (`gpu-flat`) or faiss-gpu-cuvs (`gpu-cagra`) in place of faiss-cpu.

Written against FAISS 1.15 and not run: no GPU was at hand.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from indexes.folder.manifest import INDEX
from indexes.rows.vector_file import VECTORS, VectorFile
from steprag.errors import ConfigError


def build_on_gpu(name: str, folder: Path, vectors: VectorFile) -> Any:
    """The index on the first GPU; CAGRA's graph is written as an HNSW index too, from which it is opened later."""
    faiss = gpu_faiss(name)
    index = _empty(faiss, name, vectors.dimension)
    if name == "gpu-flat":
        return _filled(index, vectors)
    # CAGRA takes all rows at once.
    import numpy as np

    index.train(np.concatenate([chunk for _, chunk in vectors.chunks()]))
    on_cpu = faiss.IndexHNSWCagra()
    index.copyTo(on_cpu)
    faiss.write_index(on_cpu, os.fspath(folder / INDEX))
    return index


def open_on_gpu(name: str, folder: Path, rows: int, dimension: int) -> Any:
    """The index of a folder on the first GPU. Raises ConfigError where this FAISS has none."""
    faiss = gpu_faiss(name)
    index = _empty(faiss, name, dimension)
    if name == "gpu-flat":
        return _filled(index, VectorFile(folder / VECTORS, rows, dimension))
    index.copyFrom(faiss.downcast_index(faiss.read_index(os.fspath(folder / INDEX))))
    return index


def _filled(index: Any, vectors: VectorFile) -> Any:
    """Rows are added some at a time: one call for all would hold them in fp32 and twice in fp16 on the GPU."""
    for _, chunk in vectors.chunks():
        index.add(chunk)
    return index


def _empty(faiss: Any, name: str, dimension: int) -> Any:
    resources = faiss.StandardGpuResources()
    if name == "gpu-flat":
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        return faiss.GpuIndexFlatIP(resources, dimension, config)
    config = faiss.GpuIndexCagraConfig()
    config.graph_degree, config.build_algo = 64, faiss.graph_build_algo_NN_DESCENT
    return faiss.GpuIndexCagra(resources, dimension, faiss.METRIC_INNER_PRODUCT, config)


def gpu_faiss(name: str) -> Any:
    """FAISS, where it can have this type here. Raises ConfigError otherwise."""
    import faiss

    wanted, package = ("GpuIndexFlatIP", "faiss-gpu") if name == "gpu-flat" else ("GpuIndexCagra", "faiss-gpu-cuvs")
    if not hasattr(faiss, wanted) or not getattr(faiss, "get_num_gpus", int)():
        raise ConfigError(f"{name} needs a GPU and {package} in place of faiss-cpu: pip uninstall faiss-cpu;"
                          f" pip install {package}")  # fmt: skip
    return faiss
