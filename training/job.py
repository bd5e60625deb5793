"""What a back end is given and what it returns; and the checkpoints between which a run may be cut off."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.models import ModelFiles
from steprag.errors import TrainingError
from steprag.records.json_text import NotJson, decoded
from steprag.runs.run import Run
from training.config import TrainConfig
from training.play.world import World
from training.rows import TokenRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


OUT_OF_MEMORY = (
    "out of memory: halve batch_size and double accumulation (activations halve; the gradient stays, or nearly with "
    "dpo.sft_weight), set gradient_checkpointing (activations of one block, a third more time), lower max_length; then "
    "finetuning lora "
    "(16 bytes a weight become 2), quantization nf4 (half a byte), or deepspeed zero3 (a share each GPU); "
    "steprag plan train gives the numbers"
)

_RANK = re.compile(r"^\[rank\d+\]: ?")
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*")
_WRAPPERS = ("CalledProcessError", "ChildFailedError")
"""What torchrun and the launcher raise because their child did; the child's own error says more."""


def back_end(config: TrainConfig) -> Any:
    """The module that trains, with a function `train` from a `Job` to its `Outcome`; heavy, so imported now."""
    name = f"trl.{config.stage}" if config.trainer == "trl" else "launch.llamafactory"
    return importlib.import_module(f"{__package__}.{name}")


@dataclass(frozen=True)
class Job:
    """One training run. The back end trains from `files` and leaves the checkpoint at the top of `run.path`.

    Stage grpo has a world and no rows; the other stages have rows and no world. Each back end trains the rows in
    `order_for`'s order. Pairs lie `by_prompt`.
    """

    files: ModelFiles
    tokenizer: PreTrainedTokenizerBase
    rows: list[TokenRow]
    held_out: list[TokenRow]
    config: TrainConfig
    run: Run
    world: World | None = None

    @property
    def checkpoints(self) -> Path:
        """Where the trainer saves what an interrupted run resumes from; removed at the end."""
        return self.run.path / "checkpoints"


def trainer_arguments(config: TrainConfig, checkpoints: Path) -> dict[str, Any]:
    """transformers' `TrainingArguments` of both trainers. All epochs are one pass: `row_order` lays them end to end."""
    return {
        "output_dir": str(checkpoints),
        "per_device_train_batch_size": config.batch_size,
        "per_device_eval_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.accumulation,
        "num_train_epochs": 1,
        "max_steps": config.max_steps or -1,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.scheduler,
        "warmup_steps": config.warmup,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "bf16": config.bf16,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        "save_total_limit": 2,
        "report_to": list(config.report_to) or "none",
        "seed": config.seed,
        **({"optim": config.optim} if config.optim else {}),
    }


@dataclass(frozen=True)
class Outcome:
    """How training went. Losses are those logged first and last; `seconds` is this process's training loop.

    `trained_parameters` is None where the trainer does not say.
    """

    steps: int
    loss_first: float
    loss_last: float
    seconds: float
    stopped_by: str
    held_out: dict[str, float]
    trained_parameters: int | None = None


def reason(log: str, status: int) -> str:
    """The line of a failed run's output that says why, with a remedy where one is known."""
    lines = [line for said in log.splitlines() if (line := _RANK.sub("", said.strip()).strip(" ^~"))]
    # An error without words of its own, such as a bare AssertionError, is given with the code line before it.
    placed_lines = [(line, f"{line} at: {before}") for before, line in pairwise(["", *lines]) if _ERROR.fullmatch(line)]
    errors = [line if ":" in line else placed for line, placed in placed_lines]
    causes = [line for line in errors if not any(name in line for name in _WRAPPERS)] or errors
    last = [line for line in map(str.strip, log.splitlines()) if line][-1:]
    words = f"its last words: {last[0][:300]}" if last else "it said nothing"
    said = causes[-1][:500] if causes else f"exit status {status}; {words}"
    if "OutOfMemoryError" in said or "out of memory" in said.lower() or "DefaultCPUAllocator" in said:
        return f"{said}; {OUT_OF_MEMORY}"
    if not causes and status in (137, 247):  # SIGKILL, as a shell and as `steprag.engines.outlive_guard` give it
        return f"killed, which is how the system ends what takes too much memory; {OUT_OF_MEMORY}"
    return said


def finite(values: Sequence[float], what: str = "the loss") -> Sequence[float]:
    """The values, if there are any and all are numbers. Raises TrainingError."""
    if not values or not all(map(math.isfinite, values)):
        raise TrainingError(f"{what} is not a number any more; lower learning_rate, and give another --out")
    return values


def scores(held_out: dict[str, float]) -> dict[str, float]:
    """What a trainer's evaluation says of the model, not of itself. Raises TrainingError for what is no number."""
    kept = {key: value for key, value in held_out.items() if key != "epoch" and "per_second" not in key}
    for key, value in kept.items():
        finite([value], key)
    return kept


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint. The trainer's state is written last, so one without it was cut short."""
    for path in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        with suppress(FileNotFoundError, NotJson):
            if decoded((path / "trainer_state.json").read_bytes(), finite=False):
                return path
    return None
