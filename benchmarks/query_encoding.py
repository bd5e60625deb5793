"""What bounds dense retrieval on a CPU: queries encoded a second of one core, by runtime and by how many go together.

    OMP_NUM_THREADS=1 python benchmarks/query_encoding.py [--backends torch onnx openvino] [--batches 1 16 64]

Questions of Atlas by the embedded encoder, in processor seconds of one thread, which a busy machine harms least; the
best of --rounds, in which the arms take turns. "times": against PyTorch one query at a time, what a search costs that
comes alone. The cosine is the least to PyTorch's vectors.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EMBEDDED, Overrides, find_encoder, read_spec
from steprag import atlas
from steprag.files import read_rows


def encode(encoder: Encoder, queries: Sequence[str], batch: int) -> tuple[float, np.ndarray]:
    """Queries a processor second, and the vectors."""
    began = time.process_time()
    vectors = np.concatenate(
        [encoder.encode_queries(queries[start : start + batch]) for start in range(0, len(queries), batch)]
    )
    return len(queries) / (time.process_time() - began), vectors


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--encoder", default=EMBEDDED)
    parser.add_argument("--backends", nargs="+", default=["torch", "onnx", "openvino"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--queries", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
    folder = find_encoder(given.encoder)
    spec = read_spec(given.encoder, folder, Overrides())
    queries = [row["question"] for _, row in read_rows(atlas.path("train"))][: given.queries]
    encoders = {name: Encoder(folder, spec, threads=1, backend=name) for name in given.backends}
    rates: dict[tuple[str, int], float] = {}
    wanted, cosines = encode(encoders[given.backends[0]], queries, 1)[1], dict.fromkeys(encoders, 1.0)
    for _ in range(given.rounds):
        for batch in given.batches:
            for name, encoder in encoders.items():
                rate, vectors = encode(encoder, queries, batch)
                rates[name, batch] = max(rate, rates.get((name, batch), 0.0))
                cosines[name] = min(cosines[name], float((vectors * wanted).sum(axis=1).min()))
    base = rates[given.backends[0], given.batches[0]]
    for (name, batch), rate in sorted(rates.items(), key=lambda item: item[0][1]):
        line = f"{name:<10} {batch:>4} together {rate:>7.0f} queries a core second {rate / base:>6.2f} times"
        sys.stdout.write(f"{line}, cosine ≥ {cosines[name]:.6f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
