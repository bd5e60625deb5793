"""Runs `llamafactory-cli`: finds it and follows its log."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steprag.engines.outlive_guard import running
from steprag.errors import ConfigError, TrainingError
from steprag.files import parse_line
from steprag.progress import Progress
from training.config import TrainConfig
from training.failures import reason
from training.job import Job

ROOT = Path(__file__).parent.parent
LOG = "trainer_log.jsonl"
"""LLaMA-Factory's own file: one JSON object a logged step."""


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
    with log.open("ab") as stream, running(command, stream, _environment(command[0], job)) as process:
        offset = log.stat().st_size
        _follow(process, job)
    if process.returncode:
        text = log.read_bytes()[offset:].decode("utf-8", errors="replace")
        raise TrainingError(f"llamafactory-cli {command[-2]}: {reason(text, process.returncode)} (whole log: {log})")
    return round(time.monotonic() - start, 1)


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
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    rows = (parse_line(line, path, number, finite=False) for number, line in enumerate(lines, 1) if line.strip())
    return [row for row in rows if isinstance(row, dict)]
