"""`POST /retrieve` asked by 64 clients at once

Inputs: one exact FAISS file of 100,000 rows (500 of Atlas 200 times, the vectors a little off each time), the embedded
encoder in float32, 1,500 new questions, 3 passages each. Search-R1's server runs on the CPU: `cuda` and `half` do
nothing, and it listens on loopback. Processor time and memory are the server's. Equal: the same rows in the same
order, but for neighbours whose scores differ by less than 2e-4 (ours have four digits). Why:
ours encodes and compares the queries of all clients together. Of what it holds more, OpenVINO, which encodes the
queries, is 160 MiB (`--backend torch`: 908 in all), and pandas, pyarrow and peft are some 100.
"""

import http.client
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.peers.encode import FAISS
from benchmarks.peers.pairing import OURS, Peer, Told, measured, ranked, serving, size

CLIENTS, equal = 64, partial(ranked, within=2e-4)
PEERS = {
    "search_r1": Peer(
        f"torch transformers==5.23.0 datasets==5.2.0 fastapi==0.165.0 uvicorn==0.54.0 {FAISS}",
        source="PeterGriffinJin/Search-R1@a14dc3a4ffc6fe88c1e95038d9738e21ba3f7a06:search_r1/search",
    )
}
MENDED = """
import runpy, sys, torch, uvicorn
torch.nn.Module.cuda = torch.Tensor.cuda = torch.nn.Module.half = lambda self: self
run, port = uvicorn.run, sys.argv.pop(1)
uvicorn.run = lambda app, **_: run(app, host="127.0.0.1", port=int(port), log_level="warning")
runpy.run_module("search_r1.search.retrieval_server", run_name="__main__")
"""


def prepare(work: Path) -> None:
    import faiss
    import numpy as np

    from apps.commands import run
    from steprag.atlas import path
    from steprag.engines.models import embedded_encoder

    lines = path("corpus").read_text(encoding="utf-8").splitlines(keepends=True)[:500]
    (work / "atlas.jsonl").write_text("".join(lines), encoding="utf-8")
    run(["index", "build", "--corpus", "atlas.jsonl", "--out", "atlas"])
    vectors, rng = faiss.read_index("atlas/index.faiss").reconstruct_n(), np.random.default_rng(0)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    with (work / "corpus.jsonl").open("w", encoding="utf-8") as out:
        for copy in range(size(200, 10)):
            moved = vectors + rng.normal(scale=1e-3, size=vectors.shape).astype(np.float32)
            flat.add(moved / np.linalg.norm(moved, axis=1, keepdims=True))
            out.writelines(json.dumps({**json.loads(line), "id": f"{copy}-{i}"}) + "\n" for i, line in enumerate(lines))
    faiss.write_index(flat, "flat.index")
    run(["index", "adopt", "--faiss", "flat.index", "--corpus", "corpus.jsonl", "--out", "index"])
    (work / "model").symlink_to(embedded_encoder())
    (work / "mended.py").write_text(MENDED)
    parts = (json.loads(line)["question"] for part in ("dev", "test", "train") for line in path(part).open())
    asked = [f"{question} ({n})" for n, question in enumerate(list(parts) * 9)]
    (work / "questions.json").write_text(json.dumps(asked[: size(1500, 150)]))


def asked(line: str, work: Path) -> Told:
    questions = json.loads((work / "questions.json").read_text())
    found, seconds = [[] for _ in questions], []

    def ask(url: str, places: range) -> None:
        link = http.client.HTTPConnection(url.partition("//")[2], timeout=300)
        for place in places:
            begun = time.perf_counter()
            body = json.dumps({"queries": [questions[place]], "topk": 3, "return_scores": True})
            link.request("POST", "/retrieve", body, {"Content-Type": "application/json"})
            rows = json.loads(link.getresponse().read())["result"][0]
            seconds.append(time.perf_counter() - begun)
            found[place] = [[row["document"]["id"], row["score"]] for row in rows]

    with serving(line, "/docs") as (url, pid), ThreadPoolExecutor(CLIENTS) as pool:
        ask(url, range(1))
        seconds.clear()
        with measured(pid) as told:
            list(pool.map(ask, [url] * CLIENTS, (range(first, len(questions), CLIENTS) for first in range(CLIENTS))))
    p95 = statistics.quantiles(seconds, n=20)[-1]
    figures = {"queries a second": len(found) / told["wall"], "p95 ms": 1000 * p95}
    return {**told, "figures": figures, "found": found}


ours = partial(asked, f"{OURS} index serve --index index --port PORT")
search_r1 = partial(asked, f"{sys.executable} mended.py PORT --index_path flat.index --corpus_path corpus.jsonl"
                    " --retriever_model model --retriever_name minilm")  # fmt: skip
