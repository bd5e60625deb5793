"""A million vectors: memory, recall and time of a search

Inputs: made unit vectors of 384 numbers that cluster as text does (`benchmarks/index_types.py`), 250 queries one by
one, 10 rows each. Ours: `rabitq`, tuned on 250 other queries; FlashRAG: the exact FAISS file in memory;
Chroma and Milvus Lite with their defaults, through their clients. Each builds once, before the first round. Memory is
that of the searching process, mapped files included. Equal: recall@10 no more than 0.02 below ours.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.encode import FLASHRAG
from benchmarks.peers.pairing import Peer, Told, measured, size

HEADLINE, LIMIT = "peak", 5400
PEERS = {"flashrag": FLASHRAG, "chroma": Peer("chromadb==1.5.9"), "milvus": Peer("pymilvus==3.0.2 milvus-lite==3.2.2")}
ROWS, STEP = size(1_000_000, 20_000), 5_000


def prepare(work: Path) -> None:
    import faiss
    import numpy as np

    from benchmarks.index_types import synthetic
    from indexes.config import AnnConfig
    from indexes.rows.vector_file import VECTORS, VectorFile
    from indexes.vectors.index_types import build_type
    from indexes.vectors.recall import make_probe

    tuning, asked = np.split(synthetic(work, ROWS, 384), [250])
    vectors, flat = VectorFile(work / VECTORS, ROWS, 384), faiss.IndexFlatIP(384)
    for _, chunk in vectors.chunks():
        flat.add(chunk)
    faiss.write_index(flat, "flat.index")
    np.savez("queries.npz", asked=asked, truth=flat.search(asked, 10)[1])
    facts, _ = build_type("rabitq", work, vectors, AnnConfig(), make_probe(vectors, tuning))
    (work / "facts.json").write_text(json.dumps(facts.parameters))


def searched(search: Callable[[Any], Any]) -> Told:
    """`search`: one query, a row of numbers, to the row numbers that are found."""
    import numpy as np

    queries = np.load("queries.npz", allow_pickle=False)
    found = [search(query) for query in queries["asked"][:5]]
    with measured() as told:
        found = [search(query) for query in queries["asked"]]
    right = sum(len({*map(int, a)} & {*map(int, b)}) for a, b in zip(found, queries["truth"], strict=True))
    figures = {"recall@10": right / 10 / len(found), "ms a query": 1000 * told["wall"] / len(found)}
    return {**told, "figures": figures}


def ours(work: Path) -> Told:
    from indexes.folder.manifest import IndexFacts
    from indexes.vectors.index_types import open_index

    index = open_index(work, IndexFacts("rabitq", json.loads((work / "facts.json").read_text())), ROWS, 384)
    return searched(lambda query: index.search(query[None], 10)[1][0])


def flashrag(work: Path) -> Told:
    import faiss

    index = faiss.read_index("flat.index")
    return searched(lambda query: index.search(query[None], 10)[1][0])


def chunks(work: Path) -> list[tuple[range, Any]]:
    import numpy as np

    file = work / "flat.index"  # a header, then the rows
    rows = np.memmap(file, np.float32, "r", file.stat().st_size - ROWS * 1536, (ROWS, 384))
    return [(range(at, at + STEP), rows[at : at + STEP]) for at in range(0, ROWS, STEP)]


def chroma_built(work: Path) -> None:
    import chromadb

    rows = chromadb.PersistentClient("chroma").create_collection("rows", metadata={"hnsw:space": "ip"})
    for numbers, vectors in chunks(work):
        rows.add(ids=[str(n) for n in numbers], embeddings=vectors)


def chroma(work: Path) -> Told:
    import chromadb

    rows = chromadb.PersistentClient("chroma").get_collection("rows")
    return searched(lambda query: rows.query(query_embeddings=[query], n_results=10, include=[])["ids"][0])


def milvus_built(work: Path) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(str(work / "milvus.db"))
    client.create_collection("rows", dimension=384, metric_type="IP")
    for numbers, vectors in chunks(work):
        client.insert("rows", [{"id": n, "vector": row.tolist()} for n, row in zip(numbers, vectors, strict=True)])
    client.close()


def milvus(work: Path) -> Told:
    from pymilvus import MilvusClient

    client = MilvusClient(str(work / "milvus.db"))
    client.load_collection("rows")
    return searched(lambda query: [hit["id"] for hit in client.search("rows", [query.tolist()], limit=10)[0]])


def equal(ours: Told, theirs: Told) -> str:
    mine, other = (side["figures"]["recall@10"] for side in (ours, theirs))
    assert other >= mine - 0.02, f"recall@10 {other:.3f}, ours {mine:.3f}"
    return f"recall@10 {other:.3f}, ours {mine:.3f}"
