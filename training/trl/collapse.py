"""Ends a run that has collapsed with the weights from before the fall (`training.collapse` holds the bounds)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from steprag.console.progress import say
from training.collapse import SIGNALS, fallen, sound
from training.job import Job, last_checkpoint, step_of

APART = 10
"""Steps between the checkpoints of a sound GRPO run at most, so that little is lost where it collapses."""
START = "start"
"""The folder of the weights that training starts from."""


class CollapseAlarm(TrainerCallback):
    """Ends a run that collapses. Names the newest checkpoint of sound weights, which the trainer then never deletes.

    Every process decides alike: by what all of them logged, and by steps, not by files that one of them writes.
    """

    def __init__(self, trainer: Any, job: Job) -> None:
        self._trainer, self._job = trainer, job
        self._start = self._good = job.checkpoints / START
        self._saved = 0
        self.collapsed = False

    @staticmethod
    def watches(job: Job) -> bool:
        """Whether the run is watched. DeepSpeed cannot load other shards in the middle of a run. Training on given rows
        is watched only where that is cheap: no whole model is copied.
        """
        config = job.config
        cheap = config.stage == "grpo" or config.finetuning == "lora"
        return config.collapse and config.stage in SIGNALS and cheap and not config.deepspeed

    @property
    def kept(self) -> int:
        """The step of the newest sound weights."""
        return 0 if self._good == self._start else step_of(self._good)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keeps the weights of the start; a run that resumes finds them, and which checkpoint was sound."""
        newest, self._saved = last_checkpoint(self._job.checkpoints), state.global_step
        if newest is None:
            self._trainer.save_model(str(self._start), _internal_call=True)
        elif state.best_model_checkpoint or not self._start.is_dir():
            self._good = Path(state.best_model_checkpoint or newest)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Notes that there is a checkpoint of this step."""
        self._saved = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """A step's log measures the weights before the step: a checkpoint is good if a later log is sound."""
        history, step, stage = state.log_history, state.global_step, self._job.config.stage
        if self.collapsed or "loss" not in (logs or {}):
            return
        if fell := fallen(history, stage):
            self.collapsed = control.should_training_stop = True
            self._job.run.set(collapse={"step": step, "kept": self.kept, "fell": fell})
            say(f"train: step {step}: the run has collapsed: {'; '.join(fell)}; the checkpoint holds "
                f"the weights of step {self.kept}; lower learning_rate (--collapse false trains past it)")  # fmt: skip
        elif sound(history, stage):
            if 0 < self._saved < step:
                self._good = self._job.checkpoints / f"checkpoint-{self._saved}"
                state.best_model_checkpoint = str(self._good)
            if stage == "grpo" and step - self._saved >= min(APART, self._job.config.save_steps):
                control.should_save = True

    def restore(self) -> None:
        """Loads the newest sound weights."""
        self._trainer._load_from_checkpoint(str(self._good))
