"""Pipelines of commands: what `steprag demo` and `steprag reproduce` are made of.

A stage is a command that a user could type. It runs in this process or, beside others, in one of its own (`lanes`).
Each keeps its own run folder, so a second run of the pipeline reuses what is finished and an interrupted one goes on.
"""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from steprag.cli import run
from steprag.errors import PART_DONE, StepragError
from steprag.experiments.lanes import Lanes
from steprag.files import read_json, write_json
from steprag.progress import say
from steprag.runs import is_done

RECIPES = Path(__file__).parents[2] / "configs"


@dataclass(frozen=True)
class Contender:
    """A policy to compare: its label in the table, its run folder, and the options of `steprag infer` that name it."""

    label: str
    run: Path
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A command (such as "index build") with its options, the last of which is its run folder `out`.

    `once`: what has ended is not begun again by the same command, although questions failed; later stages were built
    from what it left.
    """

    out: Path
    command: str
    options: tuple[str, ...]
    once: bool = False

    @property
    def argv(self) -> list[str]:
        """The arguments after `steprag`."""
        return [*self.command.split(), *self.options]

    @property
    def typed(self) -> str:
        """The line that a user would type."""
        return _typed(self.argv)


def stage(out: Path, command: str, *more: str, once: bool = False, **options: object) -> Stage:
    """A stage from the options that are ready and those that are values by name."""
    return Stage(out, command, (*more, *_words(**options, out=out)), once)


def run_stage(command: str, *more: str, **options: object) -> None:
    """Runs one command in this process. Raises StepragError where it fails."""
    _run_here([*command.split(), *more, *_words(**options)], command)


def _run_here(argv: list[str], command: str) -> None:
    say(f"$ {_typed(argv)}")
    code = run(argv)
    if code not in (0, PART_DONE):
        raise StepragError(f"steprag {command} ended with exit code {code}")


def _words(**options: object) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _typed(argv: list[str]) -> str:
    return "steprag " + shlex.join(argv)


def compare(contenders: Sequence[Contender], out: Path) -> dict[str, Any]:
    """Their table, tests and plots, in `out`; returns what compare.json holds, by their labels."""
    labels = [contender.label for contender in contenders]
    run_stage("compare", *(str(contender.run) for contender in contenders), "--names", *labels, "--out", str(out))
    return read_json(out / "compare.json")


class StageBook:
    """Runs stages and keeps, in a file, what was typed and when each was at work, over all starts of the pipeline.

    The time that a finished stage takes to say that it is finished is not counted; the times of one that somebody else
    finished are None.
    """

    def __init__(self, file: Path, lanes: Lanes | None = None) -> None:
        self._file, self._lanes = file, lanes or Lanes(1)
        self._writing = threading.Lock()
        self.stages: dict[str, dict[str, Any]] = read_json(file) if file.exists() else {}

    def together(self, chains: Sequence[Sequence[Stage]]) -> None:
        """Runs the stages of each chain one after another, and chains side by side as there are lanes.

        A chain that is alone has all cores, in this process. Raises StepragError where a stage fails.
        """
        chains = [stages for stages in chains if stages]
        if self._lanes.count > 1 and len(chains) > 1:
            self._lanes.together([partial(self._in_lane, stages) for stages in chains])
            return
        for each in chain.from_iterable(chains):
            self.run(each)

    def run(self, stage: Stage) -> None:
        """Runs a stage in this process, on all cores. Raises StepragError where it fails."""
        self._noted(stage, lambda: _run_here(stage.argv, stage.command))

    def _in_lane(self, stages: Sequence[Stage], cores: Sequence[int]) -> None:
        for each in stages:
            self._noted(each, partial(self._run_there, each, cores))

    def _noted(self, stage: Stage, work: Callable[[], None]) -> None:
        """Calls `work`, and writes down when it was under way; does neither for what is to run once and has ended."""
        old = self.stages.get(stage.out.name, {})
        if stage.once and old.get("done") and old.get("command") == stage.typed and stage.out.is_dir():
            return
        elsewhere = is_done(stage.out)
        before = old or {"times": None if elsewhere else [], "done": elsewhere}
        if old and old.get("command") != stage.typed:
            before = {**old, "done": False}  # another command's end is not this one's
        entry, start = {**before, "command": stage.typed}, time.time()
        try:
            work()
            entry["done"] = True
        finally:
            if not before["done"]:
                entry["times"] = [*(before.get("times") or []), [round(start, 1), round(time.time(), 1)]]
            with self._writing:
                self.stages[stage.out.name] = entry
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._file, self.stages)

    def _run_there(self, stage: Stage, cores: Sequence[int]) -> None:
        """As `_run_here`, as a process of its own that writes to a log."""
        out = stage.out
        log = out.parent / "logs" / f"{out.name}.log"
        said_before = log.stat().st_size if log.exists() else 0
        say(f"$ {stage.typed} > {log}")
        start, code = time.monotonic(), self._lanes.run(stage.argv, cores, log)
        if code not in (0, PART_DONE):
            said = log.read_bytes()[said_before:].decode(errors="replace").strip().splitlines()
            error = f"{out.name} ended with exit code {code}: {said[-1] if said else 'it said nothing'} ({log})"
            say(error)  # now: what runs beside it may take hours
            raise StepragError(error)
        say(f"{out.name}: {(time.monotonic() - start) / 60:.1f} minutes")


def seconds(times: list[list[float]]) -> float:
    """How long at least one of `times`, pairs of start and end, was under way."""
    covered, until = 0.0, -math.inf
    for start, end in sorted(times):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
