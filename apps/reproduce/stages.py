"""Pipelines of commands: what `steprag demo` and `steprag reproduce` are made of.

A stage is a command that a user could type, with a run folder of its own. So what is finished is reused and an
interrupted pipeline resumes, as with make. Chains of stages run side by side, each on cores of its own: two processes
with a thread each do more on two cores than one with two threads, and far more than two that share both
(docs/engines.md).
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from apps.commands import run
from steprag.console.progress import say
from steprag.engines.outlive_guard import running
from steprag.engines.threads import usable_cores
from steprag.errors import PART_DONE, StepragError
from steprag.records.jsonl import read_json, write_json
from steprag.runs.run import is_done

PINNED = hasattr(os, "sched_setaffinity")
"""Linux; elsewhere a lane only says how many threads its command has."""

_BUDGET = re.compile(r" --budget\.\S+ \S+")
"""Part of a command that decides no result."""
KEPT = {"generate": ("partial",), "adapt questions": ()}
"""Commands whose failures are not tried again, as a pipeline went on from what a run with such a status left."""


@dataclass(frozen=True)
class Contender:
    """A policy to compare: its label in the table, its run folder, and the options of `steprag infer` that name it."""

    label: str
    run: Path
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A command (such as "index build") with its options, the last of which is its run folder `out`."""

    out: Path
    command: str
    options: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        """The arguments after `steprag`."""
        return [*self.command.split(), *self.options]

    @property
    def typed(self) -> str:
        """The line that a user would type."""
        return "steprag " + shlex.join(self.argv)


def stage(out: Path, command: str, *more: str, **options: object) -> Stage:
    """A stage from the options that are ready and those that are values by name."""
    named = (word for name, value in {**options, "out": out}.items() for word in (f"--{name}", str(value)))
    return Stage(out, command, (*more, *named))


def run_here(stage: Stage) -> None:
    """Runs a stage in this process, on all cores. Raises StepragError where it fails."""
    say(f"$ {stage.typed}")
    if (code := run(stage.argv)) not in (0, PART_DONE):
        raise StepragError(f"steprag {stage.command} ended with exit code {code}")


def compare(contenders: Sequence[Contender], out: Path) -> dict[str, Any]:
    """Their table, tests and plots, in `out`; returns what compare.json holds, by their labels."""
    labels = [contender.label for contender in contenders]
    run_here(stage(out, "compare", *(str(contender.run) for contender in contenders), "--names", *labels))
    return read_json(out / "compare.json")


class Pipeline:
    """Runs stages, and keeps in `out`/stages.json what was typed and when each was at work, over all starts.

    `lanes`: how many chains of stages run side by side, each on its share of the cores that this process may use. The
    times of a stage that somebody else finished are None.
    """

    def __init__(self, out: Path, lanes: int = 1) -> None:
        self._file, self._lanes = out / "stages.json", lanes
        cores = sorted(os.sched_getaffinity(0)) if PINNED else list(range(usable_cores()))
        self._free = SimpleQueue[Sequence[int]]()
        for number in range(lanes):
            self._free.put(cores[number::lanes] or cores)
        self._interrupted, self._writing = threading.Event(), threading.Lock()
        self.stages: dict[str, dict[str, Any]] = read_json(self._file) if self._file.exists() else {}

    def together(self, chains: Sequence[Sequence[Stage]]) -> None:
        """Runs the stages of each chain one after another, and chains side by side as there are lanes, in their order.

        A chain that is alone has all cores, in this process. An error ends its own chain; the first is raised once all
        have ended. Ctrl-C ends what runs.
        """
        chains = [stages for stages in chains if stages]
        if self._lanes == 1 or len(chains) <= 1:
            for each in chain.from_iterable(chains):
                self.run(each)
            return
        with ThreadPoolExecutor(self._lanes) as pool:
            begun = [pool.submit(self._in_a_lane, stages) for stages in chains]
            try:
                wait(begun)
            except KeyboardInterrupt:  # commands are of sessions of their own: no Ctrl-C reaches them
                self._interrupted.set()
                pool.shutdown(cancel_futures=True)
                raise
        for each in begun:
            each.result()

    def _in_a_lane(self, stages: Sequence[Stage]) -> None:
        cores = self._free.get()
        try:
            for each in stages:
                self.run(each, cores)
        finally:
            self._free.put(cores)

    def run(self, stage: Stage, cores: Sequence[int] = ()) -> None:
        """Runs a stage in this process, or on `cores` in one of its own; a finished stage says so by itself.

        A search that has ended, or the making of questions that has ended well, is not begun again by the same command,
        although some failed: later stages were built from what it left. Raises StepragError where the stage fails.
        """
        there = is_done(stage.out)
        old = self.stages.get(stage.out.name, {"times": None if there else [], "done": there, "command": stage.typed})
        done = old["done"] and _BUDGET.sub("", old["command"]) == _BUDGET.sub("", stage.typed)  # not another's end
        kept = stage.command in KEPT and is_done(stage.out, *KEPT[stage.command])
        if done and kept and stage.out.name in self.stages:
            return
        entry, start = {**old, "done": done, "command": stage.typed}, time.time()
        try:
            if cores:
                self._run_there(stage, cores)
            else:
                run_here(stage)
            entry["done"] = True
        finally:
            if not done:
                entry["times"] = [*(old["times"] or []), [round(start, 1), round(time.time(), 1)]]
            with self._writing:
                self.stages[stage.out.name] = entry
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._file, self.stages)

    def _run_there(self, stage: Stage, cores: Sequence[int]) -> None:
        """As `run_here`, as a process of its own that writes to a log."""
        log = self._file.parent / "logs" / f"{stage.out.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        said_before = log.stat().st_size if log.exists() else 0
        say(f"$ {stage.typed} > {log}")
        start, code = time.monotonic(), self._process(stage.argv, cores, log)
        if code not in (0, PART_DONE):
            said = log.read_bytes()[said_before:].decode(errors="replace").strip().splitlines()
            what = said[-1] if said else "it said nothing"
            error = f"{stage.out.name} ended with exit code {code}: {what} ({log})"
            say(error)  # now: what runs beside it may take hours
            raise StepragError(error)
        say(f"{stage.out.name}: {(time.monotonic() - start) / 60:.1f} minutes")

    def _process(self, argv: Sequence[str], cores: Sequence[int], log: Path) -> int:
        """Runs `steprag argv` on `cores`, all that it says appended to `log`; its exit code."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
        command = [sys.executable, "-m", "apps.commands", *argv]
        with log.open("ab") as stream, running(command, stream, environment) as process:
            if PINNED:
                os.sched_setaffinity(process.pid, cores)
            while process.poll() is None:
                if self._interrupted.wait(0.2):
                    raise KeyboardInterrupt
            return process.returncode
