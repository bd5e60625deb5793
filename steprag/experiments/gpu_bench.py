"""What the checks of `scripts/gpu_check.sh` stand on: commands run on the processor or on a GPU, and their data.

Every arm of a check is a command that a user could type, in a process of its own. Which device computes is decided by
what the process may see: on the processor's arm no GPU is visible.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from steprag import atlas
from steprag.engines.outlive_guard import running
from steprag.errors import PART_DONE, StepragError
from steprag.experiments.stages import stage
from steprag.files import read_rows, write_records
from steprag.progress import say

Device = Literal["cpu", "cuda"]
HIDDEN = "CUDA_VISIBLE_DEVICES"
POLL = 0.25
"""Seconds between two looks at the GPU's memory."""


@dataclass(frozen=True)
class GpuSizes:
    """How much work the checks make: training steps, rows a step, passages, questions, tokens of long prompts."""

    steps: int
    rows: int
    passages: int
    questions: int
    prompt_words: int


FULL = GpuSizes(steps=12, rows=8, passages=2000, questions=24, prompt_words=1100)
SMALL = GpuSizes(steps=2, rows=2, passages=48, questions=2, prompt_words=120)
"""For the processor: shows that every command runs and every figure is read, not more."""


@dataclass(frozen=True)
class GpuFound:
    """What a check says: whether its bound held, the figures beside the bound, and what an arm took against another.

    `speed`: how many times as fast, with words; `memory`: MiB of the GPU, with words; both may be empty.
    """

    holds: bool
    figures: str
    speed: str = ""
    memory: str = ""


@dataclass(frozen=True)
class GpuCheck:
    """A path that only a GPU takes: its name, what is compared, why it cannot run here (None: it can), and the check.

    `run` raises StepragError where a command fails; the check has failed then.
    """

    name: str
    compares: str
    missing: Callable[[Device], str | None]
    run: Callable[[Bench], GpuFound]


@dataclass(frozen=True)
class GpuRun:
    """A command that has ended: its run folder, and the peak of the GPU's memory while it ran (MiB, 0 without)."""

    out: Path
    memory: int


class Bench:
    """Runs commands into `out`, each with a log of its own in `out`/logs."""

    def __init__(self, out: Path, device: Device, sizes: GpuSizes) -> None:
        self.out, self.sizes = out, sizes
        self.device: Device = device

    def arm(self, name: str, command: str, on: Device, options: Mapping[str, Any]) -> GpuRun:
        """Runs `steprag command` into the folder `name`. Raises StepragError with the log's last line."""
        out = self.out / name
        argv = [sys.executable, "-m", "steprag.cli", *stage(out, command, **options).argv]
        log = self.out / "logs" / f"{name}.log"
        with self.started(argv, log, on) as process, gpu_memory(on) as peak:
            code = process.wait()
        if code not in (0, PART_DONE):
            raise StepragError(f"{name} ended with exit code {code}: {last_line(log)} ({log})")
        return GpuRun(out, peak())

    @contextmanager
    def started(self, argv: Sequence[str], log: Path, on: Device, output: Any = None) -> Iterator[Any]:
        """The process of a command, ended with the block."""
        log.parent.mkdir(parents=True, exist_ok=True)
        visible = os.environ.get(HIDDEN, "0").split(",")[0] if on == "cuda" else ""
        environment = {**os.environ, HIDDEN: visible}
        say(f"{log.stem}: on the {'GPU' if on == 'cuda' else 'processor'}")
        with log.open("wb") as stream, running(argv, stream, environment, output) as process:
            yield process

    @cached_property
    def pairs(self) -> Path:
        """Preference pairs and supervised steps from the trees of Atlas."""
        return self.arm("pairs", "pairs", "cpu", {"trees": atlas.DATA / "trees.jsonl.gz"}).out

    @cached_property
    def long_pairs(self) -> Path:
        """The first pairs, with passages before the prompt as published recipes have them (some 1,500 tokens)."""
        out = self.out / "long-pairs"
        out.mkdir(exist_ok=True)
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


def _lengthened(row: dict[str, Any], text: str) -> dict[str, Any]:
    *before, last = row["prompt"]
    return {**row, "prompt": [*before, {**last, "content": f"{text}\n\n{last['content']}"}]}


def last_line(log: Path) -> str:
    """The last line that a command said."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


@contextmanager
def gpu_memory(on: Device) -> Iterator[Callable[[], int]]:
    """What tells the peak of the GPU's used memory during the block, above what was used before it, in MiB."""
    if on == "cpu":
        yield lambda: 0
        return
    before, over = _used(), threading.Event()
    peak = [before]

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
    """MiB that are used on the GPU that the checks see."""
    gpu = os.environ.get(HIDDEN, "0").split(",")[0]
    return int(ask_nvidia("memory.used", gpu).split()[0])


def ask_nvidia(field: str, gpu: str = "0") -> str:
    """What nvidia-smi says of a GPU. Raises StepragError where there is none."""
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    raise StepragError("nvidia-smi finds no NVIDIA GPU; --device cpu tries the script itself")
