"""What a run computes on, checked before any work: the GPUs that are here, else this machine's cores, and the packages
that a recipe wants. LLaMA-Factory computes in an environment of its own, which is asked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from steprag.agent.rewards import NEEDS_QUALITY
from steprag.console.progress import say
from steprag.engines.threads import usable_cores, usable_memory
from steprag.errors import ConfigError, quoted
from steprag.extras import remedy, set_up
from training.checks import check_keys
from training.config import TrainConfig

ROOT = Path(__file__).parent.parent
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""What CUDA reads once, when it starts: the GPUs that a process sees, with commas between."""
EXTRA = {"tensorboard": "tensorboard", "bitsandbytes": "gpu", "deepspeed": "gpu", "rouge_score": "quality"}
"""The extras that bring what recipes want on demand."""
_PROBE = """import importlib.util, json, sys, torch
there = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
print(json.dumps([there, [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]]))"""
"""Asks another Python for its GPUs, and which of the named packages it lacks."""


def check_recipe(config: TrainConfig) -> TrainConfig:
    """Raises ConfigError for what no run can do, or this machine cannot.

    Returns the recipe, where LLaMA-Factory trains with the processes and nodes that its launcher will start.
    """
    check_keys(config)
    wanted = list(_packages(config))
    packages = [package for _, package, _ in wanted]
    if config.trainer == "llamafactory":
        there, missing, python = _other_environment(config, packages)
    else:
        there, missing, python = 0, [name for name in packages if importlib.util.find_spec(name) is None], None
    for what, package, requirement in wanted:
        if package in missing:
            place = "in LLaMA-Factory's environment" if python else "here"
            pip = f"{python} -m pip install '{requirement}'" if python else f"pip install '{requirement}'"
            how = remedy(EXTRA[package]) if package in EXTRA and not python else pip
            raise ConfigError(f"{what}: {package} is not installed {place}; run: {how}")
    if config.trainer == "trl":
        return config
    _check_gpu_keys(config, there)
    return _as_launched(config, there)


def has_blanks(path: object) -> bool:
    """Whether a path has blanks, at which LLaMA-Factory's launcher of several processes splits its command."""
    return len(str(path).split()) > 1


def _packages(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """What the recipe wants of packages that come on demand: key, import name, what pip installs."""
    tensorboard = "tensorboard>=2.21,<3"
    yield from (("report_to", name, tensorboard if name == "tensorboard" else name) for name in config.report_to)
    if config.quantization or config.optim and ("bit" in config.optim):
        yield (
            "quantization" if config.quantization else f"optim {config.optim}",
            "bitsandbytes",
            "bitsandbytes>=0.50,<0.51",
        )
    if config.deepspeed:
        yield "deepspeed", "deepspeed", "deepspeed>=0.19,<0.20"
    if config.stage == "grpo" and (named := NEEDS_QUALITY & config.grpo.rewards.keys()):
        yield f"grpo.rewards: {min(named)}", "rouge_score", "rouge-score>=0.1.2,<0.2"


def _torch_devices() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _other_environment(config: TrainConfig, packages: list[str]) -> tuple[int, list[str], Path | None]:
    """How many GPUs LLaMA-Factory's Python sees, which packages it lacks, and where it is. A command without a Python
    beside it, such as one that starts a container, cannot be asked: nvidia-smi counts, and nothing is taken to be
    missing.
    """
    python = Path(executable(config)[0]).parent / "python"
    if not python.is_file():
        return visible_gpus(), [], None
    asked = subprocess.run([str(python), "-c", _PROBE, *packages], capture_output=True, text=True, check=False)
    if asked.returncode:
        said = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"{python} has no working torch: {said[:200]}; run: {set_up('llamafactory')}")
    there, missing = json.loads(asked.stdout.splitlines()[-1])
    return there, missing, python


def executable(config: TrainConfig) -> list[str]:
    """The command's first words. Raises ConfigError where there is no such file."""
    name = config.llamafactory.executable
    for found in (Path(name), ROOT / name):
        if found.is_file():
            return [str(found.absolute())]
    if on_path := shutil.which(name):
        return [on_path]
    raise ConfigError(f"LLaMA-Factory not found at {name}; run: {set_up('llamafactory')}")


def _check_gpu_keys(config: TrainConfig, there: int) -> None:
    """Raises ConfigError for keys with which LLaMA-Factory wants a GPU, where none is."""
    remedies = ["--deepspeed none"] if config.deepspeed else []
    remedies += ["--bf16 false"] if config.bf16 else []
    if remedies and not there:
        key = remedies[0].split()[0].removeprefix("--")
        raise ConfigError(f"{key}: no GPU here that LLaMA-Factory's torch sees; give {' '.join(remedies)}")


def _as_launched(config: TrainConfig, there: int) -> TrainConfig:
    """The recipe with as many processes and nodes as LLaMA-Factory's launcher counts: by its variables, else the GPUs.
    Rows a step, and so `max_steps`, follow from them.
    """
    processes, nodes = _whole("NPROC_PER_NODE", max(1, there)), _whole("NNODES", 1)
    if 0 < there < processes:
        raise ConfigError(f"NPROC_PER_NODE: {processes} are asked for and {there} GPUs are here; lower it")
    launched = config.model_copy(update={"processes": processes, "nodes": nodes})
    if (config.deepspeed or launched.workers > 1) and has_blanks(found := executable(config)[0]):
        raise ConfigError(f"{found}: LLaMA-Factory cannot start several processes from a path with blanks; install it "
                          "elsewhere and give that as llamafactory.executable")  # fmt: skip
    return launched


def _whole(variable: str, default: int) -> int:
    """The count that a variable of torchrun names. Raises ConfigError where it is no count."""
    given = os.environ.get(variable, str(default))
    if not given.isdecimal() or not int(given):
        raise ConfigError(f"{variable}: expected a count from 1, found {quoted(given)}; set it so, or leave it unset")
    return int(given)


@dataclass(frozen=True)
class Device:
    """`gib` of memory; None where the driver does not say. `share` of the card that MIG cut it from."""

    name: str
    gib: float | None
    share: float = 1.0


_CARD = re.compile(r"(?P<name>.+), *(?P<mebibytes>\d+|\[[^][]+\])")
"""A line of the query below. [N/A] stands for memory that is the machine's own (Grace, Jetson) or is not shown."""
_SLICE = re.compile(r"^[ \t]+(?P<profile>MIG (?:\d+c\.)?(?P<sevenths>\d+)g\.(?P<gigabytes>\d+)gb)", re.MULTILINE)
"""A line of `nvidia-smi -L` below its card's."""


def gpus() -> list[Device]:
    """The NVIDIA GPUs of this machine, a card that MIG has cut as its slices; none without nvidia-smi or a driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    listing = subprocess.run([command, *query], capture_output=True, text=True, check=False)
    cards = [_CARD.fullmatch(line.strip()) for line in listing.stdout.splitlines()]
    if listing.returncode or not all(cards):  # it writes why on standard output
        return []
    listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=False)
    blocks, devices = re.split(r"^GPU ", listed.stdout, flags=re.MULTILINE)[1:], []
    for number, card in enumerate(filter(None, cards)):
        size = card["mebibytes"]
        whole = Device(card["name"], int(size) / 1024 if size.isdecimal() else None)
        devices += [
            Device(f"{whole.name} {each['profile']}", int(each["gigabytes"]) * 1e9 / 2**30, int(each["sevenths"]) / 7)
            for each in _SLICE.finditer("".join(blocks[number : number + 1]))
        ] or [whole]
    return devices


def processor() -> Device:
    """The cores and the memory that this process may use."""
    return Device(f"{usable_cores()} cores", usable_memory() / 2**30)


def visible_gpus() -> int:
    """How many GPUs of nvidia-smi's a process sees: of MIG's slices one at most. CUDA stops at a number below 0."""
    found, visible = gpus(), os.environ.get(VISIBLE)
    there = min(len(found), 1) if any(" MIG " in each.name for each in found) else len(found)
    if visible is None:
        return there
    named = takewhile(lambda name: name and not name.startswith("-"), map(str.strip, visible.split(",")))
    return min(there, sum(1 for _ in named))


def show_one_gpu(config: TrainConfig) -> None:
    """Shows this process one GPU where one process trains: TRL refuses several, and transformers would double the
    batch. It has to be called before torch asks for GPUs.
    """
    if config.trainer != "trl" or config.workers > 1:
        return
    visible = os.environ.get(VISIBLE)
    shown = [*map(str, range(visible_gpus()))] if visible is None else visible.split(",")
    if len(shown) > 1:
        os.environ[VISIBLE] = shown[0]
        say(f"train: {len(shown)} GPUs here, and one process trains on GPU {shown[0]} alone; --processes {len(shown)} "
            "takes all")  # fmt: skip


def check_devices(config: TrainConfig) -> None:
    """Raises ConfigError where TRL's processes and the GPUs that torch sees do not go together."""
    there = _torch_devices()
    if 0 < there < config.processes:
        raise ConfigError(f"processes: {config.processes} are asked for and {there} GPUs are here; lower it")
    if config.workers == 1 and there > 1:
        raise ConfigError(f"processes: one trains on one GPU and sees {there}; show one, or set processes to {there}")
