"""Arms of the product's GRPO: what `steprag train --stage grpo` does, in this process and in the tunnel's world.

The product learns completions to their end, as they were sampled. So their start ends its steps with `</s>`, which the
tunnel's other arms do without, and their prompts show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from apps.tunnel.arms import GRPO_KEYS, LabelArm
from apps.tunnel.grow import environment_of, with_ends
from apps.tunnel.model import FACTS, Weights, start_of, write_folder
from apps.tunnel.world import FactWorld
from steprag.records.jsonl import read_rows
from steprag.types import Question

LEVEL = "ended"
"""Their start."""
PASSES = 2
"""Over the questions: some 128 calls each, twice those of the other arms' trees."""


def trained(arm: LabelArm, world: FactWorld, asked: Sequence[Question], seed: int) -> tuple[Weights, dict[str, Any]]:
    """The policy that an arm makes of its start, and the calls that it took."""
    from safetensors.torch import load_file

    from steprag.engines.models import resolve_model
    from steprag.engines.weights import load_tokenizer
    from steprag.runs.run import open_run
    from training.config import TrainConfig
    from training.job import Job
    from training.play.world import EPISODES, World
    from training.trl.common import quiet
    from training.trl.grpo import train

    if arm.keys == "start":
        return start_of(LEVEL), {"calls": 0}
    section = {"episodes": 7, "questions": 4, "max_tokens": FACTS.most + 1, "rewards": {"f1": 1.0},
               **GRPO_KEYS[arm.keys]}  # fmt: skip
    recipe = {"stage": "grpo", "finetuning": "full", "grpo": section, "learning_rate": arm.rate, "warmup": 10,
              "scheduler": "linear", "max_length": FACTS.longest + FACTS.most + 1, "batch_size": 32, "collapse": False,
              "save_steps": 10_000, "epochs": PASSES, "seed": seed}  # fmt: skip
    with TemporaryDirectory() as kept:
        start, out = Path(kept, "start"), Path(kept, "run")
        write_folder(start_of(LEVEL), start)
        config, files = TrainConfig.model_validate(recipe | {"model": str(start)}), resolve_model(str(start), None)
        quiet()
        with open_run(out, "train", identity={}, config={}) as run:
            place = World(list(asked), with_ends(environment_of(world)), {})
            train(Job(files, load_tokenizer(files, {}), [], [], config, run, place))
            unmoved = run.manifest.get("unmoved", False)
        saved, lines = load_file(out / "model.safetensors"), [line for _, line in read_rows(out / EPISODES)]
    calls = sum(len(line["steps"]) + (line["refused"] is not None) for line in lines)
    return {name: saved[name].float() for name in start_of(LEVEL)}, {"calls": calls, "unmoved": unmoved}
