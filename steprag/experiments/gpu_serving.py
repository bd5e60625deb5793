"""Checks of what a GPU encodes, searches and serves: the processor's vectors, passages and answers."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from steprag import atlas
from steprag.errors import StepragError
from steprag.experiments.gpu_bench import Bench, Device, GpuCheck, GpuFound, GpuRun, last_line
from steprag.experiments.gpu_training import mebibytes
from steprag.files import read_json, read_rows

COSINES = {"float32": 0.9999, "float16": 0.999, "bfloat16": 0.99}
"""The least cosine of a passage's vector on a GPU to that on the processor in float32."""
RECALL = {"gpu-flat": 0.999, "gpu-cagra": 0.95}
SAME_PASSAGES = 0.99
SAME_ANSWERS = 0.75
"""Share of greedy answers that two engines give alike; bfloat16 decides near ties its own way."""
CLIENTS = 64
QUERIES = 2000


def _build(bench: Bench, name: str, on: Device, dtype: str = "float32") -> GpuRun:
    return bench.arm(name, "index build", on, {"corpus": bench.corpus, "device": on, "dtype": dtype})


def _vectors(arm: GpuRun) -> Any:
    import faiss

    index = faiss.read_index(str(arm.out / "vectors.faiss"))
    found = index.reconstruct_n(0, index.ntotal)
    faiss.normalize_L2(found)  # they are kept in half precision
    return found


def _encoded_seconds(arm: GpuRun) -> float:
    return float(read_json(arm.out / "manifest.json")["seconds"])


def _encoder(bench: Bench) -> GpuFound:
    cpu = _build(bench, "encode-cpu", "cpu")
    wanted, held, told, arms = _vectors(cpu), True, [], {}
    for dtype, least in COSINES.items():
        arm = arms[dtype] = _build(bench, f"encode-{dtype}", bench.device, dtype)
        cosine = float((_vectors(arm) * wanted).sum(axis=1).min())
        held &= cosine >= least
        told.append(f"{dtype} {cosine:.5f} (≥ {least})")
    ratios = [f"{key} {_encoded_seconds(cpu) / _encoded_seconds(arm):.1f}" for key, arm in arms.items()]
    figures, speed = f"least cosine: {', '.join(told)}", f"{', '.join(ratios)} × the processor"
    return GpuFound(held, figures, speed, mebibytes(**arms))


def _index_type(kind: str, bench: Bench) -> GpuFound:
    giver = _build(bench, f"{kind}-vectors", bench.device)
    own = {"corpus": bench.corpus, "type": kind, "vectors_from": giver.out, "device": bench.device}
    arm = bench.arm(kind, "index build", bench.device, own)
    measured = read_json(arm.out / "manifest.json")["measured"]
    recall, took = measured["recall_at_10"], measured["search_ms"]
    flat = read_json(giver.out / "manifest.json")["measured"]["search_ms"]
    figures = f"recall@10 {recall:.4f} (≥ {RECALL[kind]})"
    return GpuFound(recall >= RECALL[kind], figures, f"{flat / max(took, 1e-9):.1f} × flat, one query at a time",
                 mebibytes(**{kind: arm}))  # fmt: skip


def _flat(bench: Bench) -> GpuFound:
    return _index_type("gpu-flat", bench)


def _cagra(bench: Bench) -> GpuFound:
    return _index_type("gpu-cagra", bench)


def no_gpu_faiss(kind: str) -> Callable[[Device], str | None]:
    """Says why an index type of a GPU cannot be tried: the processor's arm, or another FAISS."""

    def missing(on: Device) -> str | None:
        if on == "cpu":
            return "the type is a GPU's"
        import faiss

        wanted = {"gpu-flat": "GpuIndexFlatIP", "gpu-cagra": "GpuIndexCagra"}[kind]
        return None if hasattr(faiss, wanted) else f"this FAISS has no {wanted} (faiss-gpu-cuvs has it)"

    return missing


@contextmanager
def _served(bench: Bench, name: str, on: Device, index: Path) -> Iterator[str]:
    """The address of `steprag index serve`, queries encoded on that device."""
    log = bench.out / "logs" / f"{name}.log"
    argv = [sys.executable, "-m", "steprag.cli", "index", "serve", "--index", str(index), "--port", "0",
            "--device", on, "--batch", "256"]  # fmt: skip
    with bench.started(argv, log, on, subprocess.PIPE) as process:
        address = process.stdout.readline().decode().strip()
        if not address:
            raise StepragError(f"{name} did not start: {last_line(log)} ({log})")
        yield address


async def _asked(address: str, queries: Sequence[str]) -> tuple[list[list[str]], float]:
    """The ids that a service finds for each query, and queries a second with CLIENTS at once."""
    found: dict[int, list[str]] = {}
    left = iter(enumerate(queries))
    async with httpx2.AsyncClient(timeout=120) as client:

        async def ask(query: str) -> list[str]:
            reply = await client.post(f"{address}/retrieve", json={"queries": [query], "topk": 10})
            reply.raise_for_status()
            return [str(item.get("document", item)["id"]) for item in reply.json()["result"][0]]

        async def one() -> None:
            for place, query in left:
                found[place] = await ask(query)

        await ask("what is loaded at the first query")
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        took = time.perf_counter() - began
    return [found[place] for place in range(len(queries))], len(queries) / took


def _service(bench: Bench) -> GpuFound:
    index = _build(bench, "served", bench.device).out
    texts = [row["question"] for _, row in read_rows(atlas.path("train"))]
    queries = [f"{texts[i % len(texts)]} ({i})" for i in range(min(QUERIES, 40 * bench.sizes.questions))]
    results, rates = [], []
    places: list[tuple[str, Device]] = [("serve-cpu", "cpu"), ("serve-gpu", bench.device)]
    for name, on in places:
        with _served(bench, name, on, index) as address:
            found, rate = asyncio.run(_asked(address, queries))
        results.append(found)
        rates.append(rate)
    pairs = [(set(a), set(b)) for a, b in zip(*results, strict=True)]
    same = sum(len(a & b) for a, b in pairs) / sum(len(a) for a, _ in pairs)
    figures = f"{same:.2%} of {len(queries)} queries' ten passages (≥ {SAME_PASSAGES:.0%})"
    speed = f"{rates[1] / rates[0]:.1f} × the processor ({rates[1]:.0f} a second)"
    return GpuFound(same >= SAME_PASSAGES, figures, speed)


def _answers(bench: Bench, name: str, engine: str, on: Device) -> tuple[GpuRun, list[str | None], float]:
    """An engine's greedy answers to the first questions, and seconds an episode."""
    asked = {"engine": engine, "adapter": "atlas-warmstart", "temperature": 0, "concurrency": 8}
    own = {"dataset_name": "atlas", "index": bench.index, "limit": bench.sizes.questions}
    arm = bench.arm(name, "infer", on, {**own, **{f"policy.{key}": value for key, value in asked.items()}})
    rows = [row for _, row in read_rows(arm.out / "predictions.jsonl")]
    events = [row["seconds"] for _, row in read_rows(arm.out / "metrics.jsonl") if row.get("event") == "done"]
    return arm, [row["prediction"] for row in rows], sum(events) / max(len(events), 1)


def _engines(bench: Bench, one: tuple[str, Device], other: tuple[str, Device]) -> GpuFound:
    _, wanted, slow = _answers(bench, f"{one[0]}-{one[1]}-first", *one)
    arm, given, fast = _answers(bench, f"{other[0]}-{other[1]}-second", *other)
    if len(wanted) != len(given):
        raise StepragError(f"{len(wanted)} questions were answered by {one[0]}, {len(given)} by {other[0]}")
    same = sum(a == b for a, b in zip(wanted, given, strict=True)) / len(wanted)
    figures = f"{same:.0%} of {len(wanted)} answers (≥ {SAME_ANSWERS:.0%})"
    speed = f"{slow / max(fast, 1e-9):.1f} × {one[0]} on the {'GPU' if one[1] == 'cuda' else 'processor'}"
    return GpuFound(same >= SAME_ANSWERS, figures, speed, mebibytes(**{other[0]: arm}))


def _transformers(bench: Bench) -> GpuFound:
    return _engines(bench, ("transformers", "cpu"), ("transformers", bench.device))


def _vllm(bench: Bench) -> GpuFound:
    return _engines(bench, ("llamacpp", "cpu"), ("vllm", bench.device))


def _no_vllm(_: Device) -> str | None:
    there = Path(".venv-vllm/bin/vllm").exists() or shutil.which("vllm")
    return None if there else "vLLM is not installed (GPU=1 bash scripts/setup_vllm.sh)"


CHECKS = (
    GpuCheck("encoder", "passages' vectors: processor in float32 and GPU", lambda _: None, _encoder),
    GpuCheck("gpu-flat", "index type gpu-flat and exact search", no_gpu_faiss("gpu-flat"), _flat),
    GpuCheck("gpu-cagra", "index type gpu-cagra and exact search", no_gpu_faiss("gpu-cagra"), _cagra),
    GpuCheck("service", "passages of a service whose queries are encoded on the processor and on the GPU",
          lambda _: None, _service),
    GpuCheck("transformers", "greedy answers of the engine transformers: processor and GPU",
          lambda _: None, _transformers),
    GpuCheck("vllm", "greedy answers of llama.cpp on the processor and vLLM on the GPU", _no_vllm, _vllm),
)  # fmt: skip
