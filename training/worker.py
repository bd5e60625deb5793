"""One of the processes that `training.processes` starts: trains its share with the same back end as one process would.

The first of them writes checkpoints, `metrics.jsonl` and the result; what the others would write goes nowhere. Their
errors reach `training.processes` by the files that torchrun names.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from steprag.engines.models import resolve_model
from steprag.engines.tokens import load_tokenizer
from steprag.files import LineJournal, read_json, write_json
from steprag.runs import Run
from training.config import TrainConfig
from training.job import Job
from training.processes import read_rows, threads_each
from training.train import BACK_ENDS
from training.trl.common import quiet, use_threads
from training.world import World, open_world


@record
def main(argv: list[str]) -> None:
    """`argv`: the folder that `training.processes.write_job` filled. Rank and world come from the environment."""
    work, rank = Path(argv[0]), int(os.environ["RANK"])
    given = read_json(work / "job.json")
    config = TrainConfig(**given["config"])
    quiet()
    use_threads(threads_each(config))
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    seen = contextlib.redirect_stderr(sys.stdout) if rank == 0 else contextlib.nullcontext()
    with seen, _world(given["world"], config) as world, _run(Path(given["out"]), rank) as run:
        job = _job(config, work, run, world)
        outcome = importlib.import_module(BACK_ENDS[config.trainer, config.stage]).train(job)
        if rank == 0:
            write_json(work / "outcome.json", {"outcome": asdict(outcome), "manifest": run.manifest})
    torch.distributed.destroy_process_group()


def _world(opened: list[str] | None, config: TrainConfig) -> AbstractContextManager[World | None]:
    """The world that the first process opened, once more; none for stages without."""
    if opened is None:
        return contextlib.nullcontext()
    questions, index = opened
    return open_world(questions, index, config)


def _job(config: TrainConfig, work: Path, run: Run, world: World | None) -> Job:
    files = resolve_model(config.model, config.adapter)
    rows, held_out = read_rows(work / "rows.jsonl"), read_rows(work / "held_out.jsonl")
    return Job(files, load_tokenizer(files), rows, held_out, config, run, world)


@contextmanager
def _run(path: Path, rank: int) -> Iterator[Run]:
    """The run as the back end sees it. Its manifest is empty: what the back end sets is handed back."""
    manifest: dict[str, Any] = {}
    with LineJournal(path / "metrics.jsonl" if rank == 0 else Path(os.devnull), synced=False) as metrics:
        yield Run(path, manifest, metrics)


if __name__ == "__main__":
    main(sys.argv[1:])
