"""Encoding passages beside sentence-transformers' own `encode`, in one run on the same texts.

    OMP_NUM_THREADS=2 python benchmarks/encode_speed.py --corpus corpus.jsonl [--passages 256] [--rounds 3]
        [--backends onnx openvino]

The ways take turns, so that a busy machine slows all alike. Passages a second of wall time and of processor time, each
the best of the rounds (a busy machine only ever adds); the lowest cosine is to the vectors of `encode` with its default
batches of 32.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from indexes.corpora.readers import open_source
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EMBEDDED, Overrides, find_encoder, read_spec
from indexes.rows.passage_store import passage_text
from steprag.types import Passage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--encoder", default=EMBEDDED)
    parser.add_argument("--passages", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backends", nargs="*", default=[], choices=["onnx", "openvino"])
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    items = (value for _, _, value in open_source(given.corpus).items() if isinstance(value, Passage))
    texts = [passage_text(passage) for passage in islice(items, given.passages)]
    folder = find_encoder(given.encoder)
    spec = read_spec(given.encoder, folder, Overrides())
    own = SentenceTransformer(str(folder), device=given.device, model_kwargs={"use_safetensors": True})
    own.max_seq_length = spec.max_length
    ours = Encoder(folder, spec, device=given.device)
    ways: dict[str, Callable[[], np.ndarray]] = {
        "encode, batches of 32": lambda: own.encode(texts, normalize_embeddings=True),
        "encode, batches of 8": lambda: own.encode(texts, normalize_embeddings=True, batch_size=8),
        "ours": lambda: ours.encode_passages(texts),
    }
    if given.device == "cpu":
        small = Encoder(folder, spec, dtype="int8")
        ways["ours, int8"] = lambda: small.encode_passages(texts)
        for backend in given.backends:
            other = Encoder(folder, spec, backend=backend)
            ways[f"ours, {backend}"] = partial(other.encode_passages, texts)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    vectors: dict[str, np.ndarray] = {}
    for _ in range(given.rounds):
        for name, encode in ways.items():
            wall, core = time.perf_counter(), time.process_time()
            vectors[name] = encode()
            took[name].append((time.perf_counter() - wall, time.process_time() - core))
    first = next(iter(ways))
    walls = {name: min(wall for wall, _ in each) for name, each in took.items()}
    cores = {name: min(core for _, core in each) for name, each in took.items()}
    for name in ways:
        cosine = float((vectors[name] * vectors[first]).sum(axis=1).min())
        wall = f"{len(texts) / walls[name]:8.1f} a second ({walls[first] / walls[name]:.2f} times)"
        core = f"{len(texts) / cores[name]:8.1f} a core second ({cores[first] / cores[name]:.2f} times)"
        sys.stdout.write(f"{name:<22} {wall}, {core}, cosine ≥ {cosine:.5f}\n")


if __name__ == "__main__":
    main()
