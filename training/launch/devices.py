"""What a run computes on: the GPUs that nvidia-smi names, else this machine's cores; and how many a process sees."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from steprag.console.progress import say
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError
from training.config import TrainConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""What CUDA reads once, when it starts: the GPUs that a process sees, with commas between."""


@dataclass(frozen=True)
class Device:
    """`gib` of memory."""

    name: str
    gib: float


def gpus() -> list[Device]:
    """The NVIDIA GPUs of this machine; none without nvidia-smi, or without a driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    rows = [line.rpartition(",") for line in found.stdout.splitlines()]
    if found.returncode or not all(size.strip().isdecimal() for *_, size in rows):  # it writes why on standard output
        return []
    return [Device(name, int(mebibytes) / 1024) for name, _, mebibytes in rows]


def processor() -> Device:
    """This machine's cores, with all its memory."""
    return Device(f"{usable_cores()} cores", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def one_visible(visible: str | None, there: int) -> str | None:
    """What CUDA_VISIBLE_DEVICES has to be for one GPU to be seen; None where it may stay.

    `visible`: what it is. `there`: how many GPUs the machine has, which counts where it is not set.
    """
    if visible is None:
        return "0" if there > 1 else None
    first, *others = visible.split(",")
    return first if others else None


def show_one_gpu(config: TrainConfig) -> None:
    """Shows this process one GPU where one process trains: TRL refuses several, and transformers would double the
    batch. It has to be called before torch asks for GPUs.
    """
    if config.trainer != "trl" or config.workers > 1:
        return
    visible = os.environ.get(VISIBLE)
    chosen = one_visible(visible, len(gpus()) if visible is None else 0)
    if chosen is not None:
        os.environ[VISIBLE] = chosen
        say(f"train: one process trains on GPU {chosen} alone; --processes N trains on N GPUs")


def check_devices(config: TrainConfig) -> None:
    """Raises ConfigError where TRL's processes and the GPUs that torch sees do not go together."""
    import torch

    there = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if 0 < there < config.processes:
        raise ConfigError(f"processes: {config.processes} are asked for and {there} GPUs are here; lower it")
    if config.workers == 1 and there > 1:
        raise ConfigError(
            f"processes: one trains on one GPU and sees {there}; show it one, or set processes to {there}"
        )
