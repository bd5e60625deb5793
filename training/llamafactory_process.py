"""Runs `llamafactory-cli`: finds it, follows its log, and says why it failed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steprag.errors import ConfigError, TrainingError
from steprag.progress import Progress
from training.config import TrainConfig
from training.job import OUT_OF_MEMORY, Job

ROOT = Path(__file__).parent.parent
LOG = "trainer_log.jsonl"
"""LLaMA-Factory's own file: one JSON object a logged step."""

_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$")
_WRAPPERS = ("CalledProcessError", "ChildFailedError")
"""What torchrun and the launcher raise because their child did; the child's own error says more."""


def executable(config: TrainConfig) -> list[str]:
    """The command's first words. Raises ConfigError where there is no such file."""
    name = config.llamafactory.executable
    for found in (Path(name), ROOT / name):
        if found.is_file():
            return [str(found.absolute())]
    if on_path := shutil.which(name):
        return [on_path]
    raise ConfigError(f"LLaMA-Factory not found at {name}; run: bash scripts/setup_llamafactory.sh")


def run_command(command: Sequence[str], job: Job, work: Path) -> float:
    """Runs it to its end while its log moves the bar and fills `metrics.jsonl`; returns the seconds it took.

    Everything it says goes to `work/log.txt`. Raises TrainingError.
    """
    log, start = work / "log.txt", time.monotonic()
    (job.checkpoints / LOG).unlink(missing_ok=True)  # an earlier process's, told already
    guarded = [sys.executable, "-m", "steprag.engines.child", *command]  # it ends when we do, however we do
    with log.open("ab") as stream, _process(guarded, stream, _environment(command[0], job)) as process:
        offset = log.stat().st_size
        _follow(process, job)
    if process.returncode:
        text = log.read_bytes()[offset:].decode("utf-8", errors="replace")
        raise TrainingError(f"llamafactory-cli {command[-2]}: {reason(text, process.returncode)} (whole log: {log})")
    return round(time.monotonic() - start, 1)


@contextmanager
def _process(command: Sequence[str], log: Any, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The running command, its standard input the pipe that tells it of our end; ended with the block."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if process.stdin:
            process.stdin.close()
        process.wait()


def _environment(command: str, job: Job) -> dict[str, str]:
    """Ours, with torchrun on the path; offline where the weights are here; a launcher of processes for DeepSpeed."""
    found = {"PATH": f"{Path(command).parent}{os.pathsep}{os.environ.get('PATH', '')}", "USE_V1": "0"}
    if job.files.hub is None:
        found |= {"HF_HUB_OFFLINE": "1"}
    if job.config.deepspeed:
        found |= {"FORCE_TORCHRUN": "1"}
    return {**os.environ, **found}


def _follow(process: subprocess.Popen[bytes], job: Job) -> None:
    """Until the process ends: notes every new line of its log, once."""
    seen = 0
    bar: Progress | None = None
    while True:
        ended = process.poll() is not None
        rows = _lines(job.checkpoints / LOG)
        for row in rows[seen:]:
            step = int(row["current_steps"])
            bar = bar or Progress(job.config.stage, int(row["total_steps"]), "steps", done=step)
            if "loss" in row:
                job.run.note(step=step, **{key: value for key, value in row.items() if key in _NUMBERS})
                bar.move_to(step, notes=f"loss {row['loss']:.4f}")
        seen = max(seen, len(rows))
        if ended:
            break
        time.sleep(0.5)
    if bar:
        bar.__exit__(None, None, None)


_NUMBERS = ("loss", "accuracy", "lr", "epoch", "throughput")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines so far; the last may still be in the making."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def reason(log: str, status: int) -> str:
    """The line of a failed run's output that says why, with a remedy where one is known."""
    errors = [match[1] for line in log.splitlines() if (match := _ERROR.match(line.strip()))]
    causes = [line for line in errors if not any(name in line for name in _WRAPPERS)] or errors
    said = causes[-1][:500] if causes else f"exit status {status}; {_tail(log)}"
    if "OutOfMemoryError" in said or "out of memory" in said.lower() or "DefaultCPUAllocator" in said:
        return f"{said}; {OUT_OF_MEMORY}"
    if not causes and status in (137, 247):  # SIGKILL, as a shell and as `steprag.engines.child` give it
        return f"killed, which is how the system ends what takes too much memory; {OUT_OF_MEMORY}"
    return said


def _tail(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"its last words: {lines[-1][:300]}" if lines else "it said nothing"
