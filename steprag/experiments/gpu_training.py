"""Checks of training on a GPU: the same losses as float32 on the processor, and what the GPU brings."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping

from steprag import atlas
from steprag.errors import StepragError
from steprag.experiments.gpu_bench import Bench, Device, GpuCheck, GpuFound, GpuRun
from steprag.files import read_rows

CLOSE = 0.01
"""Losses of float32 on two devices; the sums of a GPU have another order."""
HALF = 0.04
"""Losses of bfloat16 beside float32, over a dozen steps."""
COARSE = 0.15
"""Losses on a base in 4 bits beside those on the same base in bfloat16."""
SAME_EPISODES = 0.8
"""Share of nearly greedy episodes that two devices play alike to the letter; near ties fall either way."""
GREEDY = 0.001


def numbers(arm: GpuRun, key: str = "loss") -> list[float]:
    """What a run logged under a key, by step. Raises StepragError where it logged none, or no number."""
    found = [float(row[key]) for _, row in read_rows(arm.out / "metrics.jsonl") if "step" in row and key in row]
    if not found:
        raise StepragError(f"{arm.out}: its {key} is not logged")
    return found


def apart(one: GpuRun, other: GpuRun, key: str = "loss") -> float:
    """The largest difference of what two runs logged at the same step. Raises StepragError where steps are missing."""
    pairs = list(zip(numbers(one, key), numbers(other, key), strict=False))
    if len(numbers(one, key)) != len(numbers(other, key)):
        raise StepragError(f"{one.out} and {other.out} logged different numbers of steps")
    return max(abs(a - b) for a, b in pairs)


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


def train(bench: Bench, name: str, on: Device, options: Mapping[str, object]) -> GpuRun:
    """Trains the embedded model for the bench's steps."""
    given = {"adapter": "atlas-warmstart", "max_steps": bench.sizes.steps, "batch_size": bench.sizes.rows,
             "warmup": 0, "held_out": 0, "scheduler": "constant_with_warmup", "learning_rate": 2e-4}  # fmt: skip
    return bench.arm(name, "train", on, {**given, **options})


def _always(_: Device) -> str | None:
    return None


def needs(package: str, what: str) -> Callable[[Device], str | None]:
    """Says why a check cannot run where a package is missing."""

    def missing(_: Device) -> str | None:
        return None if importlib.util.find_spec(package) else f"{package} is not installed ({what})"

    return missing


def _numbers_of(bench: Bench, stage: str) -> GpuFound:
    """float32 on the processor; float32 and bfloat16 on the GPU."""
    own = {"stage": stage, "pairs": bench.pairs}
    cpu = train(bench, f"{stage}-cpu", "cpu", own)
    same = train(bench, f"{stage}-float32", bench.device, own)
    half = train(bench, f"{stage}-bfloat16", bench.device, {**own, "bf16": "true"})
    full_off, half_off = apart(cpu, same), apart(cpu, half)
    figures = f"losses apart: float32 {full_off:.4f} (≤ {CLOSE}), bfloat16 {half_off:.4f} (≤ {HALF})"
    speed = f"float32 {times(cpu, same)}, bfloat16 {times(cpu, half)} × the processor"
    return GpuFound(full_off <= CLOSE and half_off <= HALF, figures, speed, mebibytes(float32=same, bfloat16=half))


def _sft(bench: Bench) -> GpuFound:
    return _numbers_of(bench, "sft")


def _dpo(bench: Bench) -> GpuFound:
    return _numbers_of(bench, "dpo")


def _qlora(bench: Bench) -> GpuFound:
    own = {"stage": "dpo", "pairs": bench.pairs, "bf16": "true"}
    half = train(bench, "qlora-bfloat16", bench.device, own)
    four = train(bench, "qlora-nf4", bench.device, {**own, "quantization": "nf4"})
    off, first = apart(half, four), abs(numbers(four)[0] - math.log(2))
    figures = f"losses apart {off:.4f} (≤ {COARSE}); the first is ln 2 but for {first:.4f} (≤ {CLOSE})"
    memory = mebibytes(bfloat16=half, nf4=four)
    return GpuFound(off <= COARSE and first <= CLOSE, figures, f"{times(half, four)} × bfloat16", memory)


def _two_ways(bench: Bench, name: str, key: str, against: str) -> GpuFound:
    """DPO in bfloat16 on long prompts, once with a key off and once with it on."""
    own = {"stage": "dpo", "pairs": bench.long_pairs, "bf16": "true", "max_length": 4096, "row_tokens": 4096}
    off, on = (train(bench, f"{name}-{value}", bench.device, {**own, key: value}) for value in ("false", "true"))
    distance, memory = apart(off, on), mebibytes(off=off, on=on)
    figures = f"losses apart {distance:.4f} (≤ {HALF})"
    return GpuFound(distance <= HALF, figures, f"{times(off, on)} × {against}", memory)


def _shared(bench: Bench) -> GpuFound:
    return _two_ways(bench, "shared", "share_prefix", "TRL's own")


def _liger(bench: Bench) -> GpuFound:
    return _two_ways(bench, "liger", "liger", "without")


def _grpo(bench: Bench, name: str, on: Device, temperature: float, options: Mapping[str, object]) -> GpuRun:
    own = {"stage": "grpo", "questions": atlas.path("train"), "index": bench.index, "learning_rate": 1e-6,
           "grpo.questions": max(2, bench.sizes.rows // 2), "grpo.episodes": 4, "grpo.max_tokens": 48,
           "grpo.temperature": temperature}  # fmt: skip
    return train(bench, name, on, {**own, **options})


def _episodes_of(arm: GpuRun) -> list[list[str]]:
    return [row["steps"] for _, row in read_rows(arm.out / "episodes.jsonl")]


def _episodes(bench: Bench) -> GpuFound:
    cpu = _grpo(bench, "grpo-cpu", "cpu", GREEDY, {"max_steps": 2})
    gpu = _grpo(bench, "grpo-gpu", bench.device, GREEDY, {"max_steps": 2})
    here, there = _episodes_of(cpu), _episodes_of(gpu)
    same = sum(a == b for a, b in zip(here, there, strict=True)) / len(here)
    figures = f"{same:.0%} of {len(here)} episodes to the letter (≥ {SAME_EPISODES:.0%})"
    return GpuFound(same >= SAME_EPISODES, figures, f"{times(cpu, gpu)} × the processor", mebibytes(float32=gpu))


def _grpo_loss(bench: Bench) -> GpuFound:
    rows = _grpo(bench, "grpo-rows", bench.device, 1.0, {"max_steps": 1, "share_prefix": "false"})
    once = _grpo(bench, "grpo-once", bench.device, 1.0, {"max_steps": 1})
    same = _episodes_of(rows) == _episodes_of(once)
    off, slope, norm = apart(rows, once), apart(rows, once, "grad_norm"), numbers(rows, "grad_norm")[0]
    figures = f"{'the same' if same else 'OTHER'} episodes; loss apart {off:.4f} (≤ {CLOSE}), norm of the gradient " \
              f"{slope:.4f} of {norm:.4f} (≤ 1 %)"  # fmt: skip
    return GpuFound(same and off <= CLOSE and slope <= CLOSE * norm, figures, "", mebibytes(rows=rows, once=once))


def _no_liger(on: Device) -> str | None:
    """Why Liger's kernels cannot be tried."""
    if on == "cpu":
        return "Liger's kernels run on a GPU"
    return needs("liger_kernel", "pip install liger-kernel")(on)


CHECKS = (
    GpuCheck("sft", "losses of SFT: processor in float32 and GPU", _always, _sft),
    GpuCheck("dpo", "losses of DPO: processor in float32 and GPU", _always, _dpo),
    GpuCheck("qlora", "DPO on a base in 4 bits and in bfloat16",
          needs("bitsandbytes", "pip install 'bitsandbytes>=0.50,<0.51'"), _qlora),
    GpuCheck("shared-prefix", "DPO with long prompts: prompts encoded once and TRL's own", _always, _shared),
    GpuCheck("liger", "DPO with Liger's kernels and without",
          _no_liger, _liger),
    GpuCheck("grpo-episodes", "GRPO's episodes, nearly greedy: processor and GPU", _always, _episodes),
    GpuCheck("grpo-loss", "GRPO's loss and gradient: prompts encoded once and row by row", _always, _grpo_loss),
)  # fmt: skip
