"""Every path that only a GPU takes, checked against the processor; `scripts/gpu_check.sh` writes a table of it.

An arm of a check is a command that a user could type, in a process of its own. On the processor's arm no GPU is
visible.
With DEVICE=cpu both arms are the processor's, on tiny work: that tries the checks themselves. Checks that run side by
side (pytest -n) work each in a folder of its process, and tell neither speed nor memory.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from steprag import atlas
from steprag.engines.outlive_guard import running
from steprag.errors import PART_DONE, ConfigError, StepragError
from steprag.records.jsonl import read_json, read_rows, write_records
from tests.fakes import BY_ROLLOUTS

Device = Literal["cpu", "cuda"]
ON_CPU = os.environ.get("DEVICE") == "cpu"
BESIDE = os.environ.get("PYTEST_XDIST_WORKER", "")
"""This process's name where several run checks side by side."""
HIDDEN = "CUDA_VISIBLE_DEVICES"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (ON_CPU or shutil.which("nvidia-smi")), reason="no NVIDIA GPU; DEVICE=cpu tries the checks"),
]

CLOSE = 0.01
"""Losses of float32 on two devices; the sums of a GPU have another order."""
HALF = 0.04
"""Losses of bfloat16 beside float32, over a dozen steps at most."""
COARSE = 0.15
"""Losses on a base in 4 bits beside those on the same base in bfloat16."""
SAME_EPISODES = 0.8
"""Share of nearly greedy episodes that two devices play alike to the letter; near ties fall either way."""
GREEDY = 0.001
COSINES = {"float32": 0.9999, "float16": 0.999, "bfloat16": 0.99}
"""The least cosine of a passage's vector on a GPU to that on the processor in float32."""
RECALL = {"gpu-flat": 0.999, "gpu-cagra": 0.95}
SAME_PASSAGES = 0.99
SAME_ANSWERS = 0.75
"""Share of greedy answers that two engines give alike; bfloat16 decides near ties its own way."""
CLIENTS = 64
QUERIES = 2000
POLL = 0.25
"""Seconds between two looks at the GPU's memory."""


@dataclass(frozen=True)
class GpuSizes:
    """How much work the checks make: training steps and rows a step; those of SFT; passages, questions, words of long
    prompts.
    """

    steps: int
    rows: int
    sft_steps: int
    sft_rows: int
    passages: int
    questions: int
    prompt_words: int


FULL = GpuSizes(steps=12, rows=8, sft_steps=8, sft_rows=2, passages=1000, questions=16, prompt_words=1100)
SMALL = GpuSizes(steps=2, rows=2, sft_steps=2, sft_rows=2, passages=48, questions=2, prompt_words=120)
"""For the processor: shows that every command runs and every figure is read, not more."""


@dataclass(frozen=True)
class GpuRun:
    """A command that has ended: its run folder, and the peak of the GPU's memory while it ran (MiB, 0 without)."""

    out: Path
    memory: int


class Bench:
    """Runs commands into `out`, each with a log of its own in `out`/logs."""

    def __init__(self, out: Path, device: Device) -> None:
        self.out, self.sizes = out, SMALL if device == "cpu" else FULL
        self.device: Device = device

    def arm(self, name: str, command: str, on: Device, options: Mapping[str, Any]) -> GpuRun:
        """Runs `steprag command` into the folder `name`. Skips the check where a package is missing.

        Raises StepragError with the log's last line where the command fails otherwise.
        """
        out, log = self.out / name, self.out / "logs" / f"{name}.log"
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        with self.started([*command.split(), *words, "--out", str(out)], log, on) as process, gpu_memory(on) as peak:
            code = process.wait()
        if code == ConfigError.exit_code and "is not installed" in last_line(log):
            pytest.skip(last_line(log))
        if code not in (0, PART_DONE):
            raise StepragError(f"{name} ended with exit code {code}: {last_line(log)} ({log})")
        return GpuRun(out, peak())

    @contextmanager
    def started(self, argv: Sequence[str], log: Path, on: Device, output: Any = None) -> Iterator[Any]:
        """The process of `steprag argv`, ended with the block."""
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, HIDDEN: the_gpu() if on == "cuda" else ""}
        command = [sys.executable, "-m", "apps.commands", *argv]
        with log.open("wb") as stream, running(command, stream, environment, output) as process:
            yield process

    @cached_property
    def pairs(self) -> Path:
        """Preference pairs and supervised steps from the trees of Atlas."""
        _, recipe = BY_ROLLOUTS
        return self.arm("pairs", "pairs", "cpu", {"config": recipe, "trees": atlas.DATA / "trees.jsonl.gz"}).out

    @cached_property
    def long_pairs(self) -> Path:
        """The first pairs, with passages before the prompt as published recipes have them (some 1,500 tokens)."""
        out = self.out / "long-pairs"
        out.mkdir(parents=True, exist_ok=True)
        count = self.sizes.steps * self.sizes.rows
        rows = [row for _, row in read_rows(self.pairs / "pairs.train.jsonl")][:count]
        words = " ".join(row["contents"] for _, row in read_rows(atlas.path("corpus"))).split()
        texts = (" ".join(words[i * 7 : i * 7 + self.sizes.prompt_words]) for i in range(count))
        write_records(out / "pairs.train.jsonl", map(_lengthened, rows, texts))
        return out

    @cached_property
    def index(self) -> Path:
        """An index of Atlas that needs no encoder."""
        return self.arm("index", "index build", "cpu", {"corpus": atlas.path("corpus"), "encoder": "none"}).out

    @cached_property
    def corpus(self) -> Path:
        """The first passages of Atlas."""
        file = self.out / "corpus.jsonl"
        write_records(file, [row for _, row in read_rows(atlas.path("corpus"))][: self.sizes.passages])
        return file

    def train(self, name: str, on: Device, options: Mapping[str, object]) -> GpuRun:
        """Trains the embedded model for the bench's steps."""
        given = {"adapter": "atlas-warmstart", "max_steps": self.sizes.steps, "batch_size": self.sizes.rows,
                 "warmup": 0, "held_out": 0, "scheduler": "constant_with_warmup", "learning_rate": 2e-4}  # fmt: skip
        return self.arm(name, "train", on, {**given, **options})

    def grpo(self, name: str, on: Device, temperature: float, options: Mapping[str, object]) -> GpuRun:
        own = {"stage": "grpo", "questions": atlas.path("train"), "index": self.index, "learning_rate": 1e-6,
               "grpo.questions": 2, "grpo.episodes": 4, "grpo.max_tokens": 48,
               "grpo.temperature": temperature}  # fmt: skip
        return self.train(name, on, {**own, **options})

    def build(self, name: str, on: Device, dtype: str = "float32") -> GpuRun:
        """An index of the corpus, encoded on that device."""
        return self.arm(name, "index build", on, {"corpus": self.corpus, "device": on, "dtype": dtype})


def _lengthened(row: dict[str, Any], text: str) -> dict[str, Any]:
    *before, last = row["prompt"]
    return {**row, "prompt": [*before, {**last, "content": f"{text}\n\n{last['content']}"}]}


def last_line(log: Path) -> str:
    """The last line that a command said."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def the_gpu() -> str:
    """The GPU that the checks see."""
    return os.environ.get(HIDDEN, "0").split(",")[0]


def ask_nvidia(field: str) -> str:
    """What nvidia-smi says of that GPU."""
    command = ["nvidia-smi", f"--id={the_gpu()}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def gpu_memory(on: Device) -> Iterator[Callable[[], int]]:
    """What tells the peak of the GPU's used memory during the block, above what was used before it, in MiB; 0 where
    other checks use it too.
    """
    if on == "cpu" or BESIDE:
        yield lambda: 0
        return
    peak = [before := _used()]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL):
            peak[0] = max(peak[0], _used())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield lambda: peak[0] - before
    finally:
        over.set()
        watching.join()


def _used() -> int:
    return int(ask_nvidia("memory.used").split()[0])


def numbers(arm: GpuRun, key: str = "loss") -> list[float]:
    """What a run logged under a key, by step. Raises StepragError where it logged none, or no number."""
    found = [float(row[key]) for _, row in read_rows(arm.out / "metrics.jsonl") if "step" in row and key in row]
    if not found:
        raise StepragError(f"{arm.out}: its {key} is not logged")
    return found


def apart(one: GpuRun, other: GpuRun, key: str = "loss") -> float:
    """The largest difference of what two runs logged at the same step. Raises StepragError where steps are missing."""
    if len(numbers(one, key)) != len(numbers(other, key)):
        raise StepragError(f"{one.out} and {other.out} logged different numbers of steps")
    return max(abs(a - b) for a, b in zip(numbers(one, key), numbers(other, key), strict=True))


def seconds(arm: GpuRun) -> float:
    """Seconds of a run's steps without its first, which warms up."""
    logged = [row["seconds"] for _, row in read_rows(arm.out / "metrics.jsonl") if "step" in row and "loss" in row]
    return max(logged[-1] - logged[0], 1e-9)


def times(slow: GpuRun, fast: GpuRun) -> str:
    """How many times as fast one run's steps were as another's."""
    return f"{seconds(slow) / seconds(fast):.1f}"


def mebibytes(**arms: GpuRun) -> str:
    """The peaks of the GPU's memory, where there is one."""
    return ", ".join(f"{name} {arm.memory}" for name, arm in arms.items() if arm.memory)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Where the checks work: below the folder GPU_CHECK_OUT, or a temporary one."""
    if not ON_CPU:
        import torch

        if not torch.cuda.is_available():
            pytest.skip(f"torch {torch.__version__} finds no GPU: install the build for its driver (TORCH_INDEX)")
    out = os.environ.get("GPU_CHECK_OUT")
    return Bench(Path(out, BESIDE) if out else tmp_path_factory.mktemp("gpu"), "cpu" if ON_CPU else "cuda")


@pytest.fixture
def found(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Puts a check's figures into the report, and fails where it does not hold.

    `figures` stand beside their bound; `speed`: how many times as fast, in words; `memory`: MiB of the GPU, in words.
    """
    device = "no GPU: DEVICE=cpu" if ON_CPU else ask_nvidia("name,driver_version,memory.total") + " MiB"
    record_property("device", f"{device}; checks side by side, without speeds" if BESIDE else device)
    record_property("compares", request.function.__doc__)

    def said(holds: bool, figures: str, speed: str = "", memory: str = "") -> None:
        told = {"figures": figures} if BESIDE else {"figures": figures, "speed": speed, "memory": memory}
        for name, text in told.items():
            record_property(name, text)
        assert holds, figures

    return said


Found = Callable[..., None]


def needs(package: str, what: str) -> None:
    """Skips where a package is missing."""
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed ({what})")


def _losses(bench: Bench, found: Found, kind: str, **own: object) -> None:
    """float32 on the processor; float32 and bfloat16 on the GPU."""
    own = {"stage": kind, "pairs": bench.pairs, **own}
    cpu = bench.train(f"{kind}-cpu", "cpu", own)
    same = bench.train(f"{kind}-float32", bench.device, own)
    half = bench.train(f"{kind}-bfloat16", bench.device, {**own, "bf16": "true"})
    full_off, half_off = apart(cpu, same), apart(cpu, half)
    figures = f"losses apart: float32 {full_off:.4f} (≤ {CLOSE}), bfloat16 {half_off:.4f} (≤ {HALF})"
    speed = f"float32 {times(cpu, same)}, bfloat16 {times(cpu, half)} × the processor"
    found(full_off <= CLOSE and half_off <= HALF, figures, speed, mebibytes(float32=same, bfloat16=half))


def test_sft(bench: Bench, found: Found) -> None:
    """losses of SFT: processor in float32 and GPU"""
    _losses(bench, found, "sft", max_steps=bench.sizes.sft_steps, batch_size=bench.sizes.sft_rows)


def test_dpo(bench: Bench, found: Found) -> None:
    """losses of DPO: processor in float32 and GPU"""
    _losses(bench, found, "dpo")


def test_qlora(bench: Bench, found: Found) -> None:
    """DPO on a base in 4 bits and in bfloat16"""
    needs("bitsandbytes", "pip install 'bitsandbytes>=0.50,<0.51'")
    own = {"stage": "dpo", "pairs": bench.pairs, "bf16": "true"}
    half = bench.train("qlora-bfloat16", bench.device, own)
    four = bench.train("qlora-nf4", bench.device, {**own, "quantization": "nf4"})
    off, first = apart(half, four), abs(numbers(four)[0] - math.log(2))
    figures = f"losses apart {off:.4f} (≤ {COARSE}); the first is ln 2 but for {first:.4f} (≤ {CLOSE})"
    memory = mebibytes(bfloat16=half, nf4=four)
    found(off <= COARSE and first <= CLOSE, figures, f"{times(half, four)} × bfloat16", memory)


def _two_ways(bench: Bench, found: Found, name: str, key: str, against: str) -> None:
    """DPO in bfloat16 on long prompts, once with a key off and once with it on."""
    own = {"stage": "dpo", "pairs": bench.long_pairs, "bf16": "true", "max_length": 4096, "row_tokens": 4096}
    off, on = (bench.train(f"{name}-{value}", bench.device, {**own, key: value}) for value in ("false", "true"))
    distance = apart(off, on)
    figures = f"losses apart {distance:.4f} (≤ {HALF})"
    found(distance <= HALF, figures, f"{times(off, on)} × {against}", mebibytes(off=off, on=on))


def test_shared_prefix(bench: Bench, found: Found) -> None:
    """DPO with long prompts: prompts encoded once and TRL's own"""
    _two_ways(bench, found, "shared", "share_prefix", "TRL's own")


def _by_llamafactory(bench: Bench, found: Found, name: str, own: dict[str, object], more: dict[str, object]) -> None:
    """The same rows in the same order from the same weights, by TRL and by LLaMA-Factory: DPO, which starts at ln 2."""
    if not Path(".venv-llamafactory/bin/llamafactory-cli").exists():
        pytest.skip("LLaMA-Factory is not installed (GPU=1 bash scripts/setup_llamafactory.sh)")
    own = {"stage": "dpo", "pairs": bench.pairs, "share_prefix": "false", **own}
    trl = bench.train(f"{name}-trl", bench.device, own)
    theirs = bench.train(name, bench.device, {**own, **more, "trainer": "llamafactory"})
    off, first = apart(trl, theirs), abs(numbers(theirs)[0] - math.log(2))
    figures = f"losses apart {off:.4f} (≤ {HALF}); the first is ln 2 but for {first:.4f} (≤ {CLOSE})"
    found(off <= HALF and first <= CLOSE, figures, "", mebibytes(trl=trl, llamafactory=theirs))


def test_llamafactory(bench: Bench, found: Found) -> None:
    """DPO with LoRA: TRL and LLaMA-Factory"""
    _by_llamafactory(bench, found, "llamafactory", {}, {})


def test_zero3(bench: Bench, found: Found) -> None:
    """DPO of every weight in bfloat16: TRL, and LLaMA-Factory with ZeRO-3"""
    if ON_CPU:
        pytest.skip("DeepSpeed shards over GPUs")
    own: dict[str, object] = {"finetuning": "full", "adapter": "none", "bf16": "true", "learning_rate": 1e-6}
    _by_llamafactory(bench, found, "zero3", own, {"deepspeed": "zero3"})


def _episodes_of(arm: GpuRun) -> list[list[str]]:
    return [row["steps"] for _, row in read_rows(arm.out / "episodes.jsonl")]


def test_grpo_episodes(bench: Bench, found: Found) -> None:
    """GRPO's episodes, nearly greedy: processor and GPU"""
    cpu = bench.grpo("grpo-cpu", "cpu", GREEDY, {"max_steps": 2})
    gpu = bench.grpo("grpo-gpu", bench.device, GREEDY, {"max_steps": 2})
    here, there = _episodes_of(cpu), _episodes_of(gpu)
    same = sum(a == b for a, b in zip(here, there, strict=True)) / len(here)
    figures = f"{same:.0%} of {len(here)} episodes to the letter (≥ {SAME_EPISODES:.0%})"
    found(same >= SAME_EPISODES, figures, f"{times(cpu, gpu)} × the processor", mebibytes(float32=gpu))


def test_grpo_loss(bench: Bench, found: Found) -> None:
    """GRPO's loss and gradient: prompts encoded once and row by row"""
    rows = bench.grpo("grpo-rows", bench.device, 1.0, {"max_steps": 1, "share_prefix": "false"})
    once = bench.grpo("grpo-once", bench.device, 1.0, {"max_steps": 1})
    same = _episodes_of(rows) == _episodes_of(once)
    off, slope, norm = apart(rows, once), apart(rows, once, "grad_norm"), numbers(rows, "grad_norm")[0]
    figures = f"{'the same' if same else 'OTHER'} episodes; loss apart {off:.4f} (≤ {CLOSE}), norm of the gradient " \
              f"{slope:.4f} of {norm:.4f} (≤ 1 %)"  # fmt: skip
    found(same and off <= CLOSE and slope <= CLOSE * norm, figures, "", mebibytes(rows=rows, once=once))


def test_grpo_nf4(bench: Bench, found: Found) -> None:
    """GRPO on a base in 4 bits: what it samples is what it learns"""
    needs("bitsandbytes", "pip install 'bitsandbytes>=0.50,<0.51'")
    four = bench.grpo("grpo-nf4", bench.device, 1.0, {"max_steps": 1, "quantization": "nf4", "bf16": "true",
                                                             "grpo.log_kl": "true"})  # fmt: skip
    start, norm = abs(numbers(four, "kl")[0]), numbers(four, "grad_norm")[0]
    figures = f"divergence from the start {start:.4f} (≤ {CLOSE}), norm of the gradient {norm:.4f} (> 0)"
    found(start <= CLOSE and norm > 0, figures, "", mebibytes(nf4=four))


def _vectors(arm: GpuRun) -> Any:
    import faiss

    index = faiss.read_index(str(arm.out / "vectors.faiss"))
    found = index.reconstruct_n(0, index.ntotal)
    faiss.normalize_L2(found)  # they are kept in half precision
    return found


def _encoded_seconds(arm: GpuRun) -> float:
    return float(read_json(arm.out / "manifest.json")["seconds"])


def test_encoder(bench: Bench, found: Found) -> None:
    """passages' vectors: processor in float32 and GPU"""
    cpu = bench.build("encode-cpu", "cpu")
    wanted = _vectors(cpu)
    arms = {dtype: bench.build(f"encode-{dtype}", bench.device, dtype) for dtype in COSINES}
    cosines = {dtype: float((_vectors(arm) * wanted).sum(axis=1).min()) for dtype, arm in arms.items()}
    told = [f"{dtype} {cosines[dtype]:.5f} (≥ {least})" for dtype, least in COSINES.items()]
    ratios = [f"{key} {_encoded_seconds(cpu) / _encoded_seconds(arm):.1f}" for key, arm in arms.items()]
    held = all(cosines[dtype] >= least for dtype, least in COSINES.items())
    found(held, f"least cosine: {', '.join(told)}", f"{', '.join(ratios)} × the processor", mebibytes(**arms))


def _index_type(bench: Bench, found: Found, kind: str, wanted: str) -> None:
    if ON_CPU:
        pytest.skip("the type is a GPU's")
    import faiss

    if not hasattr(faiss, wanted):
        pytest.skip(f"this FAISS has no {wanted} (faiss-gpu-cuvs has it)")
    giver = bench.build(f"{kind}-vectors", bench.device)
    own = {"corpus": bench.corpus, "type": kind, "vectors_from": giver.out, "device": bench.device}
    arm = bench.arm(kind, "index build", bench.device, own)
    measured, flat = (read_json(each.out / "manifest.json")["measured"] for each in (arm, giver))
    recall, ratio = measured["recall_at_10"], flat["search_ms"] / max(measured["search_ms"], 1e-9)
    figures = f"recall@10 {recall:.4f} (≥ {RECALL[kind]})"
    found(recall >= RECALL[kind], figures, f"{ratio:.1f} × flat, one query at a time", mebibytes(**{kind: arm}))


def test_gpu_flat(bench: Bench, found: Found) -> None:
    """index type gpu-flat and exact search"""
    _index_type(bench, found, "gpu-flat", "GpuIndexFlatIP")


def test_gpu_cagra(bench: Bench, found: Found) -> None:
    """index type gpu-cagra and exact search"""
    _index_type(bench, found, "gpu-cagra", "GpuIndexCagra")


@contextmanager
def _served(bench: Bench, name: str, on: Device, index: Path) -> Iterator[str]:
    """The address of `steprag index serve`, queries encoded on that device."""
    log = bench.out / "logs" / f"{name}.log"
    argv = ["index", "serve", "--index", str(index), "--port", "0", "--device", on, "--batch", "256"]
    with bench.started(argv, log, on, subprocess.PIPE) as process:
        address = process.stdout.readline().decode().strip()
        if not address:
            raise StepragError(f"{name} did not start: {last_line(log)} ({log})")
        yield address


async def _asked(address: str, queries: Sequence[str]) -> tuple[list[set[str]], float]:
    """The ids that a service finds for each query, and queries a second with CLIENTS at once."""
    results: dict[int, set[str]] = {}
    left = iter(enumerate(queries))
    async with httpx2.AsyncClient(timeout=120) as client:

        async def ask(query: str) -> set[str]:
            reply = await client.post(f"{address}/retrieve", json={"queries": [query], "topk": 10})
            reply.raise_for_status()
            return {str(item.get("document", item)["id"]) for item in reply.json()["result"][0]}

        async def one() -> None:
            for place, query in left:
                results[place] = await ask(query)

        await ask("what is loaded at the first query")
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        took = time.perf_counter() - began
    return [results[place] for place in range(len(queries))], len(queries) / took


def test_service(bench: Bench, found: Found) -> None:
    """passages of a service whose queries are encoded on the processor and on the GPU"""
    index = bench.build("served", bench.device).out
    texts = [row["question"] for _, row in read_rows(atlas.path("train"))]
    queries = [f"{texts[i % len(texts)]} ({i})" for i in range(min(QUERIES, 40 * bench.sizes.questions))]
    with _served(bench, "serve-cpu", "cpu", index) as address:
        here, slow = asyncio.run(_asked(address, queries))
    with _served(bench, "serve-gpu", bench.device, index) as address:
        there, fast = asyncio.run(_asked(address, queries))
    same = sum(len(a & b) for a, b in zip(here, there, strict=True)) / sum(map(len, here))
    figures = f"{same:.2%} of {len(queries)} queries' ten passages (≥ {SAME_PASSAGES:.0%})"
    found(same >= SAME_PASSAGES, figures, f"{fast / slow:.1f} × the processor ({fast:.0f} a second)")


def _answers(bench: Bench, name: str, engine: str, on: Device) -> tuple[GpuRun, list[str | None], float]:
    """An engine's greedy answers to the first questions, and seconds an episode."""
    asked = {"engine": engine, "adapter": "atlas-warmstart", "temperature": 0, "concurrency": 8}
    own = {"dataset_name": "atlas", "index": bench.index, "limit": bench.sizes.questions}
    arm = bench.arm(name, "infer", on, {**own, **{f"policy.{key}": value for key, value in asked.items()}})
    rows = [row for _, row in read_rows(arm.out / "predictions.jsonl")]
    events = [row["seconds"] for _, row in read_rows(arm.out / "metrics.jsonl") if row.get("event") == "done"]
    return arm, [row["prediction"] for row in rows], sum(events) / max(len(events), 1)


def _engines(bench: Bench, found: Found, here: str, there: str) -> None:
    """The engine `here` on the processor, and `there` on the GPU."""
    _, wanted, slow = _answers(bench, f"{here}-cpu-first", here, "cpu")
    arm, given, fast = _answers(bench, f"{there}-{bench.device}-second", there, bench.device)
    if len(wanted) != len(given):
        raise StepragError(f"{len(wanted)} questions were answered by {here}, {len(given)} by {there}")
    same = sum(a == b for a, b in zip(wanted, given, strict=True)) / len(wanted)
    figures = f"{same:.0%} of {len(wanted)} answers (≥ {SAME_ANSWERS:.0%})"
    ratio = slow / max(fast, 1e-9)
    found(same >= SAME_ANSWERS, figures, f"{ratio:.1f} × {here} on the processor", mebibytes(**{there: arm}))


def test_transformers(bench: Bench, found: Found) -> None:
    """greedy answers of the engine transformers: processor and GPU"""
    _engines(bench, found, "transformers", "transformers")


def test_vllm(bench: Bench, found: Found) -> None:
    """greedy answers of llama.cpp on the processor and vLLM on the GPU"""
    if not (Path(".venv-vllm/bin/vllm").exists() or shutil.which("vllm")):
        pytest.skip("vLLM is not installed (GPU=1 bash scripts/setup_vllm.sh)")
    _engines(bench, found, "llamacpp", "vllm")
