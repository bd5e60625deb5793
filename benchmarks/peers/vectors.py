"""100,000 vectors: memory, recall and time of a search

Inputs: made unit vectors of 384 numbers that cluster as text does (`benchmarks/index_types.py`), 250 queries one by
one, 10 rows each, one thread. Ours: `rabitq`, tuned on 250 other queries; FlashRAG: the exact FAISS file in memory;
Chroma and Milvus Lite with their defaults. Each builds once, in the first round. Memory is that of the searching
process, mapped files included. Equal: recall@10 no more than 0.02 below ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.encode import FLASHRAG
from benchmarks.peers.pairing import Peer, Told, apart, measured, size

UNIT, HEADLINE, LESS, LIMIT = "queries", "peak", True, 2400
PEERS = {"flashrag": FLASHRAG, "chroma": Peer("chromadb==1.5.9"), "milvus": Peer("pymilvus==3.0.2 milvus-lite==3.2.2")}
ROWS, STEP = size(100_000, 20_000), 5_000


def prepare(work: Path) -> None:
    import faiss
    import numpy as np

    from benchmarks.index_types import synthetic
    from indexes.rows.vector_file import VECTORS, VectorFile

    asked = synthetic(work, ROWS, 384)
    flat = faiss.IndexFlatIP(384)
    for _, chunk in VectorFile(work / VECTORS, ROWS, 384).chunks():
        flat.add(chunk)
    faiss.write_index(flat, str(work / "flat.index"))
    np.savez(work / "queries.npz", tuning=asked[:250], asked=asked[250:], truth=flat.search(asked[250:], 10)[1])


def searched(work: Path, search: Callable[[Any], Any]) -> Told:
    """`search`: one query, a row of numbers, to the row numbers that are found."""
    import numpy as np

    queries = np.load(work / "queries.npz", allow_pickle=False)
    found = [search(query) for query in queries["asked"][:5]]
    with measured() as told:
        found = [search(query) for query in queries["asked"]]
    right = sum(len({*map(int, a)} & {*map(int, b)}) for a, b in zip(found, queries["truth"], strict=True))
    figures = {"recall@10": right / 10 / len(found), "ms a query": 1000 * told["wall"] / len(found)}
    return {**told, "units": len(found), "figures": figures}


def built(work: Path) -> None:
    import json

    import numpy as np

    from indexes.config import AnnConfig
    from indexes.rows.vector_file import VECTORS, VectorFile
    from indexes.vectors.index_types import build_type
    from indexes.vectors.recall import make_probe

    vectors = VectorFile(work / VECTORS, ROWS, 384)
    probe = make_probe(vectors, np.load(work / "queries.npz", allow_pickle=False)["tuning"])
    facts, _ = build_type("rabitq", work, vectors, AnnConfig(), probe)
    (work / "facts.json").write_text(json.dumps(facts.parameters))


def ours(work: Path) -> Told:
    import json

    import faiss

    from indexes.folder.manifest import IndexFacts
    from indexes.vectors.index_types import open_index

    if not (work / "facts.json").exists():
        apart(__file__, "built", work)
    faiss.omp_set_num_threads(1)
    index = open_index(work, IndexFacts("rabitq", json.loads((work / "facts.json").read_text())), ROWS, 384)
    return searched(work, lambda query: index.search(query[None], 10)[1][0])


def flashrag(work: Path) -> Told:
    import faiss

    index = faiss.read_index(str(work / "flat.index"))
    return searched(work, lambda query: index.search(query[None], 10)[1][0])


def chunks(work: Path) -> Any:
    import numpy as np

    file = work / "flat.index"  # a header, then the rows
    rows = np.memmap(file, np.float32, "r", file.stat().st_size - ROWS * 1536, (ROWS, 384))
    for start in range(0, ROWS, STEP):
        yield range(start, min(start + STEP, ROWS)), rows[start : start + STEP].tolist()


def chroma(work: Path) -> Told:
    if not (work / "chroma").exists():
        apart(__file__, "chroma_built", work)
    import chromadb

    rows = chromadb.PersistentClient(str(work / "chroma")).get_collection("rows")
    return searched(work, lambda query: rows.query(query_embeddings=[query], n_results=10, include=[])["ids"][0])


def chroma_built(work: Path) -> None:
    import chromadb

    rows = chromadb.PersistentClient(str(work / "chroma")).create_collection("rows", metadata={"hnsw:space": "ip"})
    for numbers, vectors in chunks(work):
        rows.add(ids=[str(n) for n in numbers], embeddings=vectors)


def milvus(work: Path) -> Told:
    if not (work / "milvus.db").exists():
        apart(__file__, "milvus_built", work)
    from pymilvus import MilvusClient

    client = MilvusClient(str(work / "milvus.db"))
    client.load_collection("rows")
    return searched(work, lambda query: [hit["id"] for hit in client.search("rows", [query.tolist()], limit=10)[0]])


def milvus_built(work: Path) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(str(work / "milvus.db"))
    client.create_collection("rows", dimension=384, metric_type="IP")
    for numbers, vectors in chunks(work):
        client.insert("rows", [{"id": n, "vector": row} for n, row in zip(numbers, vectors, strict=True)])
    client.close()


def equal(ours: Told, theirs: Told) -> str:
    mine, other = (side["figures"]["recall@10"] for side in (ours, theirs))
    assert other >= mine - 0.02, f"recall@10 {other:.3f}, ours {mine:.3f}"
    return f"recall@10 {other:.3f}, ours {mine:.3f}"
