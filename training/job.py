"""What a back end is given and what it returns; and the checkpoints between which a run may be cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steprag.engines.models import ModelFiles
from steprag.errors import TrainingError
from steprag.json_text import NotJson, decoded
from steprag.runs import Run
from training.config import TrainConfig
from training.rows import TokenRow
from training.world import World

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


OUT_OF_MEMORY = (
    "out of memory: halve batch_size and double accumulation (activations halve, the result stays), set "
    "gradient_checkpointing (activations of one block, a third more time), lower max_length; then finetuning lora "
    "(16 bytes a weight become 2), quantization nf4 (half a byte), or deepspeed zero3 (a share each GPU); "
    "steprag plan train gives the numbers"
)


@dataclass(frozen=True)
class Job:
    """One training run. The back end trains from `files` and leaves the checkpoint at the top of `run.path`.

    Stage grpo has a world and no rows; the other stages have rows and no world.
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
        """Where the trainer saves what an interrupted run goes on from; removed at the end."""
        return self.run.path / "checkpoints"


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


def finite(losses: Sequence[float]) -> Sequence[float]:
    """The losses, if there are any and all are numbers."""
    if not losses or not all(loss == loss and abs(loss) < float("inf") for loss in losses):
        raise TrainingError("the loss is not a number any more; lower learning_rate")
    return losses


def scores(held_out: dict[str, float]) -> dict[str, float]:
    """What a trainer's evaluation says about the model, without what it says about itself."""
    return {key: value for key, value in held_out.items() if key != "epoch" and "per_second" not in key}


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint. The trainer's state is written last, so one without it was cut short."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True)
    return next((path for path in found if _whole(path / "trainer_state.json")), None)


def _whole(path: Path) -> bool:
    try:
        return bool(decoded(path.read_bytes(), finite=False))
    except (FileNotFoundError, NotJson):
        return False
