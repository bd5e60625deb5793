"""The gradients of one GRPO step on episodes that are always the same: `python -m tests.grpo_gradient SPEAKER OUT`, or
in several processes under torchrun, each of which has played a share of them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from tests.grpo_parts import ASKED, world
from tests.test_grpo import SCRIPT, scripted, trainer_for
from training.config import GrpoSection
from training.play.episodes import play


def main(speaker: Path, out: Path) -> None:
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    questions = [replace(ASKED, id=str(number)) for number in range(4)]
    groups = asyncio.run(play(questions, world(), scripted(speaker, SCRIPT, []), GrpoSection(episodes=6), seed=1))
    with trainer_for(speaker, out / f"run-{count}-{rank}", beta=0.1) as trainer:
        share = len(questions) // count
        trainer.play = lambda numbers: groups[rank * share : (rank + 1) * share]
        trainer.training_step(trainer.accelerator.prepare_model(trainer.model), [{"number": 0}] * 6)
        if rank == 0:
            gradients = {name: weight.grad for name, weight in trainer.model.named_parameters()}
            torch.save(gradients, out / f"gradients-{count}.pt")
    if count > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
