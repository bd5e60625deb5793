"""What a recipe may not ask for, told before anything is read or loaded."""

from __future__ import annotations

import os

from steprag.errors import ConfigError
from training.config import TrainConfig


def check_recipe(config: TrainConfig) -> None:
    """Raises ConfigError for keys that contradict each other or that the chosen trainer does not have."""
    complaints = {
        "dpo.loss_weights: give one weight for each of dpo.loss": config.dpo.loss_weights is not None
        and len(config.dpo.loss_weights) != len(config.dpo.loss),
        "quantization: the 4-bit base cannot be trained itself; set finetuning lora": config.quantization is not None
        and config.finetuning == "full",
        "deepspeed: zero3 cannot shard a 4-bit base; take zero2, or leave quantization out": config.quantization
        is not None
        and config.deepspeed == "zero3",
        "merge: full fine-tuning gives a whole model already; leave merge out": config.merge
        and config.finetuning == "full",
        "deepspeed: only trainer llamafactory starts several processes": config.deepspeed is not None
        and config.trainer == "trl",
        "trainer trl trains in one process; for several GPUs set trainer llamafactory": config.trainer == "trl"
        and int(os.environ.get("WORLD_SIZE", "1")) > 1,
    }
    for complaint, holds in complaints.items():
        if holds:
            raise ConfigError(complaint)
    if config.trainer == "llamafactory":
        from training.llamafactory import check

        check(config)
