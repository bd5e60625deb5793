"""`POST /retrieve` asked by 64 clients at once

Inputs: one exact FAISS file of 100,000 rows (500 of Atlas 200 times, the vectors a little off each time), the embedded
encoder in float32, 300 new questions, 3 passages each. Search-R1's server runs on the CPU: `cuda` and `half` do
nothing, and it listens on loopback. Processor time and memory are the server's. Equal: the same rows in the same
order, but for neighbours whose scores differ by less than 2e-4 (ours have four digits). By the wall clock, with other
work beside it, ours answered fewer a second; why was not looked at.
"""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.encode import FAISS
from benchmarks.peers.pairing import Peer, Told, measured, serving, size, source
from benchmarks.peers.scripted import free

UNIT, CLIENTS = "queries", 64
SERVER = "search_r1/search/retrieval_server.py"
PEERS = {
    "search_r1": Peer(
        f"transformers==5.23.0 datasets==5.2.0 fastapi==0.165.0 uvicorn==0.54.0 {FAISS}",
        source=f"PeterGriffinJin/Search-R1@a14dc3a4ffc6fe88c1e95038d9738e21ba3f7a06:{SERVER}",
    )
}
MENDED = """
import runpy, sys, torch, uvicorn
torch.nn.Module.cuda = torch.Tensor.cuda = torch.nn.Module.half = lambda self: self
run, (_, port, *sys.argv) = uvicorn.run, sys.argv
uvicorn.run = lambda app, **_: run(app, host="127.0.0.1", port=int(port), log_level="warning")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def prepare(work: Path) -> None:
    import faiss
    import numpy as np

    from steprag.atlas import path
    from steprag.cli import run
    from steprag.engines.models import embedded_encoder

    lines = path("corpus").read_text(encoding="utf-8").splitlines(keepends=True)[:500]
    (work / "atlas.jsonl").write_text("".join(lines), encoding="utf-8")
    run(["index", "build", "--corpus", str(work / "atlas.jsonl"), "--out", str(work / "atlas")])
    vectors, rng = faiss.read_index(str(work / "atlas" / "index.faiss")).reconstruct_n(), np.random.default_rng(0)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    with (work / "corpus.jsonl").open("w", encoding="utf-8") as out:
        for copy in range(size(200, 10)):
            moved = vectors + rng.normal(scale=1e-3, size=vectors.shape).astype(np.float32)
            flat.add(moved / np.linalg.norm(moved, axis=1, keepdims=True))
            out.writelines(json.dumps({**json.loads(line), "id": f"{copy}-{i}"}) + "\n" for i, line in enumerate(lines))
    faiss.write_index(flat, str(work / "flat.index"))
    run(["index", "adopt", "--faiss", str(work / "flat.index"), "--corpus", str(work / "corpus.jsonl"),
         "--out", str(work / "index")])  # fmt: skip
    (work / "model").symlink_to(embedded_encoder())
    parts = (json.loads(line)["question"] for part in ("dev", "test", "train") for line in path(part).open())
    asked = [f"{question} ({n})" for n, question in enumerate(list(parts) * 2)]
    (work / "questions.json").write_text(json.dumps(asked[: size(300, 150)]))


def asked(work: Path, command: list[str], port: int) -> Told:
    """The server's answers to all questions: `[[row, score], …]` each."""
    questions, url = json.loads((work / "questions.json").read_text()), f"http://127.0.0.1:{port}/docs"

    def ask(mine: list[str]) -> list[tuple[str, float, list[list[float]]]]:
        link, found = http.client.HTTPConnection("127.0.0.1", port, timeout=300), []
        for question in mine:
            begun = time.perf_counter()
            body = json.dumps({"queries": [question], "topk": 3, "return_scores": True})
            link.request("POST", "/retrieve", body, {"Content-Type": "application/json"})
            rows = json.loads(link.getresponse().read())["result"][0]
            ids = [[row["document"]["id"], row["score"]] for row in rows]
            found.append((question, time.perf_counter() - begun, ids))
        return found

    with serving(command, url) as server, ThreadPoolExecutor(CLIENTS) as pool:
        ask(["warm"])
        with measured(server.pid) as told:
            found = list(itertools.chain(*pool.map(ask, (questions[i::CLIENTS] for i in range(CLIENTS)))))
    p95 = statistics.quantiles((seconds for _, seconds, _ in found), n=20)[-1]
    figures = {"queries a second": len(found) / told["wall"], "p95 ms": 1000 * p95}
    return {**told, "units": len(found), "figures": figures, "found": {question: ids for question, _, ids in found}}


def ours(work: Path) -> Told:
    port = free()
    command = [sys.executable, "-m", "steprag.cli", "index", "serve", "--index", str(work / "index")]
    return asked(work, [*command, "--port", str(port)], port)


def search_r1(work: Path) -> Told:
    port = free()
    given = ["--index_path", work / "flat.index", "--corpus_path", work / "corpus.jsonl", "--retriever_model",
             work / "model", "--retriever_name", "minilm"]  # fmt: skip
    return asked(work, [sys.executable, "-c", MENDED, str(port), str(source() / SERVER), *map(str, given)], port)


def equal(ours: Told, theirs: Told) -> str:
    for question, rows in ours["found"].items():
        for (a, score), (b, other) in zip(rows, theirs["found"][question], strict=True):
            assert a == b or abs(score - other) < 2e-4, f"{question}: {a} ({score}) and {b} ({other})"
    return f"the rows of {len(ours['found'])} questions"
