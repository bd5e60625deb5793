"""Pipelines of commands: what `steprag demo` and `steprag reproduce` are made of.

A stage is a command that a user could type, run in this process or, where several run side by side, in one of its own.
Each keeps its own run folder, so a second run of the pipeline reuses what is finished and an interrupted one goes on.
"""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
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


def run_stage(command: str, *more: str, **options: object) -> None:
    """Runs one command in this process. Raises StepragError where it fails."""
    _run_here(command, _argv(command, *more, **options))


def _run_here(command: str, argv: list[str]) -> None:
    say(f"$ {_typed(argv)}")
    code = run(argv)
    if code not in (0, PART_DONE):
        raise StepragError(f"steprag {command} ended with exit code {code}")


def _argv(command: str, *more: str, **options: object) -> list[str]:
    return [*command.split(), *more, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def _typed(argv: list[str]) -> str:
    return "steprag " + shlex.join(argv)


def compare(contenders: Sequence[Contender], out: Path) -> dict[str, Any]:
    """Their table, tests and plots, in `out`; returns what compare.json holds, by their labels."""
    labels = [contender.label for contender in contenders]
    run_stage("compare", *(str(contender.run) for contender in contenders), "--names", *labels, "--out", str(out))
    return read_json(out / "compare.json")


class StageBook:
    """Runs stages and keeps, in a file, what was typed and when each was at work, over all starts of the pipeline.

    What a finished stage takes to say that it is finished is not counted; the times of one that somebody else
    finished are None. Stages may be run from the chains of `together`.
    """

    def __init__(self, file: Path, lanes: Lanes | None = None) -> None:
        self._file, self._lanes = file, lanes or Lanes(1)
        self.together = self._lanes.together
        self._writing = threading.Lock()
        self.stages: dict[str, dict[str, Any]] = read_json(file) if file.exists() else {}

    def run_once(self, out: Path, command: str, *more: str, **options: object) -> None:
        """As `run`, but what has ended is not begun again by the same command: later stages were built from what it
        left, which questions that failed and are tried again would change.
        """
        ended = self.stages.get(out.name, {})
        typed = _typed(_argv(command, *more, **options, out=out))
        if not (ended.get("done") and ended.get("command") == typed and out.is_dir()):
            self.run(out, command, *more, **options)

    def run(self, out: Path, command: str, *more: str, **options: object) -> None:
        """Runs the stage whose run folder is `out`."""
        elsewhere = is_done(out)
        before = self.stages.get(out.name, {"times": None if elsewhere else [], "done": elsewhere})
        argv = _argv(command, *more, **options, out=out)
        entry, start = {**before, "command": _typed(argv)}, time.time()
        try:
            if self._lanes.cores is None:
                _run_here(command, argv)
            else:
                self._run_in_lane(argv, out)
            entry["done"] = True
        finally:
            if not before["done"]:
                entry["times"] = [*(before.get("times") or []), [round(start, 1), round(time.time(), 1)]]
            with self._writing:
                self.stages[out.name] = entry
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._file, self.stages)

    def _run_in_lane(self, argv: list[str], out: Path) -> None:
        """As `_run_here`, as a process of its own that writes to a log."""
        log = out.parent / "logs" / f"{out.name}.log"
        said_before = log.stat().st_size if log.exists() else 0
        say(f"$ {_typed(argv)} > {log}")
        start, code = time.monotonic(), self._lanes.run(argv, log)
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
