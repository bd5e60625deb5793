"""What the TRL trainers share. They and this module import torch and TRL at their top, for they define trainer classes;
`training.train` imports them once the data are checked.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
import trl.trainer.utils
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from steprag.console.progress import Progress
from steprag.engines.threads import return_freed_memory
from steprag.errors import TrainingError
from steprag.runs.run import Run
from training.config import TrainConfig
from training.job import OUT_OF_MEMORY, Job, Outcome, finite, last_checkpoint, scores, trainer_arguments
from training.launch.llamafactory import DEEPSPEED
from training.model import freeze_below, save_merged, save_policy
from training.trl.collapse import CollapseAlarm


def quiet() -> None:
    """No bars, cards or reports from the libraries, and none of their telemetry."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("trl").setLevel(logging.ERROR)
    for name in ("accelerate", "bitsandbytes"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(trl|peft|transformers|accelerate|torch)\b")


def common_arguments(config: TrainConfig, checkpoints: Path) -> dict[str, Any]:
    """TRL's arguments that all stages share."""
    gpu = torch.accelerator.is_available()
    if "tensorboard" in config.report_to:  # by default its events would lie among the checkpoints, which are removed
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(checkpoints.parent / "tensorboard"))
    return {
        **trainer_arguments(config, checkpoints),
        "train_sampling_strategy": "sequential",
        "logging_first_step": True,
        "prediction_loss_only": True,
        "disable_tqdm": True,
        "gradient_checkpointing": config.gradient_checkpointing,
        "use_cpu": not gpu,
        "ddp_backend": "gloo" if config.launched and not gpu else None,
        "deepspeed": str(DEEPSPEED / f"{config.deepspeed}.json") if config.deepspeed else None,
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": gpu,
    }


class Refreezing(Trainer):
    """Keeps frozen LoRA blocks frozen: loading a checkpoint would make every adapter weight trainable again. And ends
    training before a step whose gradient is no number, which a loss that is none makes it.
    """

    layers: int | None = None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        freeze_below(self.model, self.layers)  # pyright: ignore[reportArgumentType]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        found: Any = super()._get_grad_norm(model, grad_norm)
        finite([float(found or 0.0)], f"step {self.state.global_step + 1}: the gradient")
        return found


REFERENCE = "ref"
"""TRL's name for the frozen copy of the adapter that training starts from."""
TRIM_STEPS = 16
"""Steps between two returns of freed memory."""


class Watch(TrainerCallback):
    """Notes what the trainer logs in the run's metrics, moves the bar, and ends the loop when its time is over."""

    _bar: Progress
    _start: float

    def __init__(self, run: Run, config: TrainConfig) -> None:
        self._run, self._config = run, config
        self.out_of_time, self.seconds = False, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Opens the bar, at the step of the checkpoint that training resumes from."""
        self._bar = Progress(self._config.stage, state.max_steps, "steps", done=state.global_step)
        self._start = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Notes the numbers by step; the trainer's closing summary is left out."""
        numbers = {key: value for key, value in (logs or {}).items() if isinstance(value, (int, float))}
        if "train_runtime" not in numbers:
            self._run.note(step=state.global_step, seconds=round(time.monotonic() - self._start, 2), **numbers)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Moves the bar; asks the trainer to stop where `minutes` are over."""
        figure = "reward" if self._config.stage == "grpo" else "loss"
        last = next((entry[figure] for entry in reversed(state.log_history) if figure in entry), None)
        self._bar.advance(notes="" if last is None else f"{figure} {last:.4f}")
        if state.global_step % TRIM_STEPS == 0:
            return_freed_memory()
        self.seconds = time.monotonic() - self._start
        if self._config.minutes and state.global_step < state.max_steps and self._over(60 * self._config.minutes):
            self.out_of_time = control.should_training_stop = True

    def _over(self, limit: float) -> bool:
        """Whether the time is over, by the clock of the first process: all have to end at the same step."""
        return bool(broadcast_object_list([self.seconds > limit])[0])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Closes the bar; what the next stage needs of memory is free."""
        self._bar.__exit__(None, None, None)
        return_freed_memory()


def run_trainer(trainer: Refreezing, job: Job) -> Outcome:
    """Trains, from the last checkpoint if there is one, scores the held-out rows, and says how it went."""
    watch = Watch(job.run, job.config)
    trainer.layers = job.config.lora.layers
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(watch)
    alarm = CollapseAlarm(trainer, job)
    if alarm.watches(job):
        trainer.add_callback(alarm)
    checkpoint = last_checkpoint(job.checkpoints)
    if checkpoint:
        job.run.note(resumed_from=checkpoint.name)
    # TRL casts the LoRA of a 4-bit base to bfloat16 and PEFT leaves a head in the base's numbers: there AdamW's small
    # updates are rounded away.
    for weight in trainer.model.parameters():  # pyright: ignore
        if weight.requires_grad and not hasattr(weight, "ds_id"):  # no shard yet
            weight.data = weight.data.float()
    with completion_only_head():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if alarm.collapsed:
            alarm.restore()
        losses = finite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        held_out = trainer.evaluate() if trainer.eval_dataset is not None else {}
    planned = "max_steps" if job.config.max_steps else "epochs"
    stopped_by = "collapse" if alarm.collapsed else "minutes" if watch.out_of_time else planned
    trained = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)  # pyright: ignore
    seconds = round(watch.seconds, 1)
    steps = alarm.kept if alarm.collapsed else trainer.state.global_step
    return Outcome(steps, losses[0], losses[-1], seconds, stopped_by, scores(held_out), trained)


def save(policy: Any, job: Job) -> None:
    """Leaves the checkpoint at the top of the run folder; with `merge` the whole model below it. One process does."""
    with _gathered(policy, job.config):
        if not PartialState().is_main_process:
            return
        save_policy(policy, job.tokenizer, job.files, job.run.path)
        if job.config.merge:
            save_merged(policy, job.tokenizer, job.run.path)


def _gathered(policy: Any, config: TrainConfig) -> AbstractContextManager[None]:
    """Whole weights, of what is saved, in every process where ZeRO-3 left each a shard."""
    if config.deepspeed != "zero3":
        return nullcontext()
    import deepspeed  # pyright: ignore[reportMissingImports]

    saved = [weight for weight in policy.parameters() if weight.requires_grad or config.finetuning == "full"]
    return deepspeed.zero.GatheredParameters(saved)


@contextmanager
def explained_out_of_memory() -> Iterator[None]:
    """Says which keys help when memory runs out. torch has a type for GPUs; for the processor only a text."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise TrainingError(f"{str(error).splitlines()[0]}; {OUT_OF_MEMORY}") from None


@contextmanager
def completion_only_head() -> Iterator[None]:
    """Has TRL's fused LM head score labelled tokens alone on every device, as it does where Triton runs.

    On a CPU TRL 1.16 multiplies every prompt token with the whole vocabulary, three times a step, and masks the result
    away: for prompts of 220 tokens and 49,152 words, a third of the step. Loss and gradients are the same. A later TRL
    that lacks the switch trains as it does, slower at worst.
    """
    utils: Any = trl.trainer.utils
    saved = getattr(utils, "_use_triton", None)
    if saved is not None:
        utils._use_triton = lambda device: True
    try:
        yield
    finally:
        if saved is not None:
            utils._use_triton = saved
