"""What a recipe may not ask for, told before anything is read or loaded; and what a run computes on: the GPUs that
nvidia-smi names, else this machine's cores.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from steprag.config.load import nearest
from steprag.console.progress import say
from steprag.engines.models import ModelFiles
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import read_json
from training.config import TrainConfig
from training.play.rewards import check_names
from training.rows import Row

LOSSES = (
    "sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down",
    "discopop", "sft", "sigmoid_norm",
)  # fmt: skip
"""TRL's, without `exo_pair` and `robust`, which are sigmoid or an error where no smoothing is set for all pairs."""
TRACKERS = ("clearml", "codecarbon", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""Those of the Hugging Face Trainer whose name is their package's."""

ROOT = Path(__file__).parent.parent
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""What CUDA reads once, when it starts: the GPUs that a process sees, with commas between."""


def check_recipe(config: TrainConfig) -> None:
    """Raises ConfigError for what no run can do, or this machine cannot."""
    check_keys(config)
    if config.trainer == "llamafactory":
        executable(config)
    for what, package, requirement in _optional(config):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{what}: {package} is not installed here; run: pip install '{requirement}'")
    if config.liger:
        import torch

        if not torch.accelerator.is_available():
            raise ConfigError("liger: its kernels run on a GPU and none is here; leave it out")


def executable(config: TrainConfig) -> list[str]:
    """The command's first words. Raises ConfigError where there is no such file."""
    name = config.llamafactory.executable
    for found in (Path(name), ROOT / name):
        if found.is_file():
            return [str(found.absolute())]
    if on_path := shutil.which(name):
        return [on_path]
    raise ConfigError(f"LLaMA-Factory not found at {name}; run: bash scripts/setup_llamafactory.sh")


def _optional(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """What the recipe wants of packages that come on demand: key, import name, what pip installs."""
    if config.trainer == "trl":
        yield from (("report_to", name, name) for name in config.report_to)
        if config.quantization:
            yield "quantization", "bitsandbytes", "bitsandbytes>=0.50,<0.51"
    if config.liger:
        yield "liger", "liger_kernel", "liger-kernel"
    if config.stage == "grpo" and "rouge" in config.grpo.rewards:
        yield "grpo.rewards: rouge", "rouge_score", "rouge-score>=0.1.2,<0.2"


def check_template(files: ModelFiles) -> None:
    """Raises ConfigError for a local model without a chat template, which only an instruct model has."""
    if files.hf is None or (files.hf / "chat_template.jinja").is_file():
        return
    settings = files.hf / "tokenizer_config.json"
    if not settings.is_file() or not read_json(settings).get("chat_template"):
        raise ConfigError(f"{files.name} has no chat template; train an instruct model")


def check_smoothing(config: TrainConfig, rows: Iterable[Row]) -> None:
    """Raises ConfigError where pairs have a label smoothing that the trainer or the loss does not know."""
    if config.stage != "dpo" or not config.dpo.smoothing or not any(row.smoothing for row in rows):
        return
    remedy = "set --dpo.smoothing false to ignore it"
    if config.trainer == "llamafactory":
        raise ConfigError(f"the pairs have label_smoothing, which llamafactory takes for no single row; {remedy}")
    if strangers := sorted(set(config.dpo.loss) - {"sigmoid", "sft"}):
        raise ConfigError(
            f"the pairs have label_smoothing, which is defined for dpo.loss sigmoid, not for {strangers[0]}; {remedy}"
        )


def check_keys(config: TrainConfig) -> None:
    """Raises ConfigError for keys that contradict each other or that the chosen trainer does not have."""
    strangers = sorted(set(config.report_to) - set(TRACKERS))
    if strangers:
        raise ConfigError(f"report_to: unknown tracker {quoted(strangers[0])}; known: {', '.join(TRACKERS)}")
    unknown = next((name for name in config.dpo.loss if name not in LOSSES), None)
    if unknown and config.trainer == "trl":
        raise ConfigError(f"dpo.loss: unknown loss {quoted(unknown)}{nearest(unknown, LOSSES)}")
    trl, nf4, full = config.trainer == "trl", config.quantization is not None, config.finetuning == "full"
    critic, sharded = config.stage == "critic", config.deepspeed is not None
    weights, meets = config.dpo.loss_weights, config.rendezvous is not None
    complaints = {
        "stage critic: only trainer trl trains a critic": critic and not trl,
        "quantization: a critic's head cannot be trained in 4 bits; leave it out": critic and nf4,
        "dpo.loss_weights: give one weight for each of dpo.loss": (
            weights is not None and len(weights) != len(config.dpo.loss)
        ),
        "quantization: the 4-bit base cannot be trained itself; set finetuning lora": nf4 and full,
        "deepspeed: zero3 cannot shard a 4-bit base; take zero2, or leave quantization out": (
            nf4 and config.deepspeed == "zero3"
        ),
        "merge: full fine-tuning gives a whole model already; leave merge out": config.merge and full,
        "merge: weights are not added to a 4-bit base; take trainer llamafactory, which merges into the whole one": (
            config.merge and nf4 and trl
        ),
        "liger: only trainer trl passes it on; leave it out": config.liger and not trl,
        "deepspeed: only trainer llamafactory shards; leave it out, or set trainer llamafactory": sharded and trl,
        "processes: llamafactory takes every GPU by itself; leave it out": config.processes > 1 and not trl,
        "nodes: llamafactory has variables of its own (docs/training.md); leave it out": config.nodes > 1 and not trl,
        "rendezvous: several nodes need a place to meet; give HOST:PORT of this machine": config.nodes > 1
        and not meets,
        "rendezvous: one machine meets nobody; give nodes, or leave it out": config.nodes == 1 and meets,
        "side_by_side: without share_prefix, and with another trainer than trl, it changes nothing; leave it out": (
            config.side_by_side == "question" and not (config.share_prefix and trl)
        ),
        "give the number of processes by the key processes; steprag train starts them itself": (
            trl and int(os.environ.get("WORLD_SIZE", "1")) > 1
        ),
    }
    _refuse(complaints)
    if config.stage == "grpo":
        _check_grpo(config)
    if config.trainer == "llamafactory":
        _check_llamafactory(config)


def _refuse(complaints: dict[str, bool]) -> None:
    for complaint, holds in complaints.items():
        if holds:
            raise ConfigError(complaint)


def _check_grpo(config: TrainConfig) -> None:
    check_names(config.grpo.rewards)
    complaints = {
        "stage grpo: llamafactory has none; take trainer trl": config.trainer == "llamafactory",
        "grpo.questions: has to be a multiple of processes, which share the questions of a step": config.grpo.questions
        % config.workers
        != 0,
        "accumulation: a step of grpo takes all completions of its episodes; leave it at 1": config.accumulation != 1,
        "grpo.rewards: give at least one reward a weight": not any(config.grpo.rewards.values()),
        "grpo.max_tokens: leaves no room for a prompt; raise max_length": config.grpo.max_tokens >= config.max_length,
        "quantization: stage grpo does not sample from a base in 4 bits; leave it out": config.quantization is not None,
    }
    _refuse(complaints)


def _check_llamafactory(config: TrainConfig) -> None:
    complaints = {
        "dpo.loss: llamafactory takes one of sigmoid, hinge, ipo": config.stage == "dpo"
        and (len(config.dpo.loss) != 1 or config.dpo.loss[0] not in ("sigmoid", "hinge", "ipo")),
        "dpo.loss_weights: llamafactory has one loss; leave it out": config.dpo.loss_weights is not None,
        "lora.layers: llamafactory trains every block; leave it out": config.lora.layers is not None,
        "minutes: llamafactory is bounded by max_steps or epochs; leave it out": config.minutes is not None,
    }
    _refuse(complaints)


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
