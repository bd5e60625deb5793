"""TRL in several processes, one a GPU or a share of the cores: torchrun runs this module's `main` in each of them.

This process stays the one that reads, checks and writes the run: the rows, as tokens whose parity is checked, go to the
workers by files, each of them trains with the back end that one process would use, and the first one hands the outcome
back. Gradients are averaged over the processes (DistributedDataParallel). Of several nodes each runs torchrun;
they meet where the recipe says, and the run folder lies where all of them see it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from steprag import errors
from steprag.console.progress import say
from steprag.engines.models import resolve_model
from steprag.engines.outlive_guard import running
from steprag.engines.threads import threads_for
from steprag.engines.weights import base_weights, load_tokenizer
from steprag.errors import TrainingError
from steprag.records.jsonl import LineJournal, read_json, read_records, write_json, write_records
from steprag.runs.run import Run
from training.config import TrainConfig
from training.job import Job, Outcome, back_end, reason
from training.play.world import open_world
from training.rows import TokenRow
from training.trl.common import quiet

_KILLED = re.compile(r"exitcode +: -9\b")
"""In torchrun's report: a worker that the system, or somebody, killed."""


def train(job: Job) -> Outcome:
    """Runs the workers to their end. Raises TrainingError where one fails."""
    work = (job.run.path / "processes").absolute()
    shutil.rmtree(work, ignore_errors=True)  # of a run that was cut off
    work.mkdir()
    base_weights(job.files)  # made here once, where it has to be made
    write_job(job, work)
    if job.config.nodes > 1:
        threads = f"OMP_NUM_THREADS={threads_each(job.config)}"
        others = shlex.join([threads, *command(job.config, work)])
        say(f"train: on each of the other {job.config.nodes - 1} machines run, in this checkout:\n{others}")
    log, environment = work / "log.txt", {**os.environ, "OMP_NUM_THREADS": str(threads_each(job.config))}
    # A worker's output is for the person who watches, and goes where ours goes; its errors stand in files.
    with log.open("ab") as stream, running(command(job.config, work), stream, environment, 2) as process:
        status = process.wait()
    if status:
        raise TrainingError(f"{why(work, log, status)} (logs: {work})")
    result = read_json(work / "outcome.json")
    job.run.set(**result["manifest"])
    shutil.rmtree(work)
    return Outcome(**result["outcome"])


def write_job(job: Job, work: Path) -> None:
    """What a worker reads: recipe, rows or what its world is, and where results go."""
    world = job.world.opened if job.world else None
    config = job.config.model_dump(mode="json")
    write_json(work / "job.json", {"config": config, "out": str(job.run.path), "world": world})
    write_records(work / "rows.jsonl", job.rows)
    write_records(work / "held_out.jsonl", job.held_out)


def command(config: TrainConfig, work: Path) -> list[str]:
    """torchrun of one machine: errors of all workers, and what any but the first has to say, go to files."""
    meeting = [config.rendezvous, "--rdzv-id", work.parent.name] if config.rendezvous else ["localhost:0"]
    streams = ["0:2", *(f"{rank}:3" for rank in range(1, config.processes))]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(config.nodes)),
        *("--nproc-per-node", str(config.processes)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", *meeting),
        *("--log-dir", str(work / "logs"), "--redirects", ",".join(streams)),
        *("-m", "training.launch.processes", str(work)),
    ]


def threads_each(config: TrainConfig) -> int:
    """Threads of one process: a share of those that the recipe, OMP_NUM_THREADS or the machine gives."""
    return max(1, threads_for(config.threads) // config.processes)


def why(work: Path, log: Path, status: int) -> str:
    """What the worker that failed first said; the others then fail for want of it."""
    report = log.read_text(encoding="utf-8", errors="replace")
    if _KILLED.search(report):
        return f"a process was {reason('', 137)}"
    told = sorted(work.glob("logs/**/error.json"), key=lambda path: path.stat().st_mtime_ns)
    said = reason(read_json(told[0])["message"]["message"] if told else report, status)
    kind, _, text = said.partition(": ")
    return text if isinstance(getattr(errors, kind, None), type) else said


@record
def main(argv: list[str]) -> None:
    """One worker: trains its share with the same back end as one process would. `argv`: the folder that `write_job`
    filled. Rank, world size and threads come from the environment.

    The first of them writes checkpoints, `metrics.jsonl` and the result; what the others would write goes nowhere.
    Their errors reach `train` by the files that torchrun names.
    """
    work, rank = Path(argv[0]), int(os.environ["RANK"])
    given = read_json(work / "job.json")
    config = TrainConfig(**given["config"])
    quiet()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    files, opened = resolve_model(config.model, config.adapter), given["world"]
    rows, held_out = (list(read_records(work / f"{name}.jsonl", TokenRow)) for name in ("rows", "held_out"))
    playing = open_world(opened[0], opened[1], config) if opened else contextlib.nullcontext()
    seen = contextlib.redirect_stderr(sys.stdout) if rank == 0 else contextlib.nullcontext()
    noted = Path(given["out"], "metrics.jsonl") if rank == 0 else Path(os.devnull)
    with seen, playing as world, LineJournal(noted, synced=False) as metrics:
        run = Run(Path(given["out"]), {}, metrics)  # what the back end sets in this manifest is handed back
        tokenizer = load_tokenizer(files, config.chat_template_kwargs)
        outcome = back_end(config).train(Job(files, tokenizer, rows, held_out, config, run, world))
        if rank == 0:
            write_json(work / "outcome.json", {"outcome": asdict(outcome), "manifest": run.manifest})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
