"""`scripts/gpu_check.sh`: every path that only a GPU takes, checked against the processor, and a table of it.

Correctness comes first: a check that does not hold is FAILED in the table and the exit code is 1. Speed and memory
stand beside it, as ratios of arms that ran one after the other.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import ConfigError, StepragError
from steprag.experiments import gpu_serving, gpu_training
from steprag.experiments.gpu_bench import FULL, HIDDEN, SMALL, Bench, Device, GpuCheck, GpuFound, GpuSizes, ask_nvidia
from steprag.files import written_whole
from steprag.progress import say

CHECKS = gpu_training.CHECKS + gpu_serving.CHECKS
BEGIN, END = "<!-- gpu_check: begin -->", "<!-- gpu_check: end -->"
TABLE = "gpu.md"
MARK = ".gpu_check"
"""The file by which a folder of these runs is known."""
PACKAGES = ("torch", "trl", "bitsandbytes", "liger-kernel", "faiss-gpu-cuvs", "faiss-cpu")
MISSED = "**FAILED**"
WIDTH = 120


@dataclass(frozen=True)
class CheckRow:
    """A check as it ended: `ok`, FAILED or `not run`, with its figures or the reason."""

    check: GpuCheck
    state: str
    found: GpuFound
    seconds: float


def main(argv: list[str]) -> int:
    text = "Every path that only a GPU takes, checked against the processor. No hub is asked."
    parser = argparse.ArgumentParser(prog="gpu_check", description=text)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu: tries the script itself, on tiny work [cuda]")
    parser.add_argument("--out", default="runs/gpu-check", metavar="DIR", help="a new folder [runs/gpu-check]")
    parser.add_argument("--into", metavar="FILE", help="put the table between this file's marks, as in docs/gpu.md")
    parser.add_argument("--checks", nargs="+", metavar="NAME", help=f"of {' '.join(c.name for c in CHECKS)} [all]")
    given = parse_arguments(parser, argv)
    if given.device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {given.device}: cpu or cuda")
    if given.device == "cuda":
        check_cuda()
    rows = check_all(chosen(given.checks), Bench(_fresh(Path(given.out)), given.device, _sizes(given.device)))
    table = as_table(rows, heading(given.device))
    with written_whole(Path(given.out) / TABLE) as file:
        file.write(table)
    if given.into:
        put_into(Path(given.into), table)
    sys.stdout.write(table)
    return 1 if any(row.state == MISSED for row in rows) else 0


def check_cuda() -> None:
    """Raises ConfigError where there is no GPU, or this torch cannot use it."""
    import torch

    try:
        ask_nvidia("name")
    except StepragError as error:
        raise ConfigError(str(error)) from None
    if not torch.cuda.is_available():
        raise ConfigError(f"torch {torch.__version__} finds no GPU: install the build for its driver (TORCH_INDEX)")


def _sizes(device: Device) -> GpuSizes:
    return FULL if device == "cuda" else SMALL


def _fresh(out: Path) -> Path:
    """The folder of the runs; what an earlier check left there goes. Raises ConfigError for any other folder."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).exists():
            raise ConfigError(f"{out} holds something else; give another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    return out


def chosen(names: Sequence[str] | None) -> list[GpuCheck]:
    """The checks of these names; all without any. Raises ConfigError for a name that is none."""
    known = {check.name: check for check in CHECKS}
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"--checks {unknown[0]}: no such check; they are {', '.join(known)}")
    return [known[name] for name in names] if names else list(CHECKS)


def check_all(checks: Sequence[GpuCheck], bench: Bench) -> list[CheckRow]:
    """Runs the checks one after another; one that fails keeps none from running."""
    rows = []
    for check in checks:
        rows.append(check_one(check, bench))
        row = rows[-1]
        say(f"gpu_check: {check.name}: {row.state.strip('*')} in {row.seconds:.0f} s: {row.found.figures}")
    return rows


def check_one(check: GpuCheck, bench: Bench) -> CheckRow:
    """A check as it ends; where a command of it fails, it has failed."""
    if (reason := check.missing(bench.device)) is not None:
        return CheckRow(check, "not run", GpuFound(False, reason), 0.0)
    began = time.monotonic()
    try:
        found = check.run(bench)
    except StepragError as error:
        found = GpuFound(False, str(error))
    return CheckRow(check, "ok" if found.holds else MISSED, found, time.monotonic() - began)


def heading(device: Device) -> str:
    """What computed: the GPU and its driver, or the processor, and the packages that matter."""
    here = []
    for name in PACKAGES:
        try:
            here.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu = os.environ.get(HIDDEN, "0").split(",")[0]
    what = ask_nvidia("name,driver_version,memory.total", gpu) + " MiB" if device == "cuda" else "no GPU: --device cpu"
    return f"{what}; {', '.join(here)}"


def as_table(rows: Sequence[CheckRow], heading: str) -> str:
    """The table in Markdown, and a line on each check below it."""
    lines = [*textwrap.wrap(f"On {heading}.", WIDTH), "", "| check | result | seconds |", "|---|---|---|"]
    lines += [f"| `{row.check.name}` | {row.state} | {row.seconds:.0f} |" for row in rows]
    for row in rows:
        told = (
            [row.found.figures] if row.state == "not run" else [row.check.compares, row.found.figures, row.found.speed]
        )
        told += [f"MiB of the GPU: {row.found.memory}"] if row.found.memory else []
        text = f"- `{row.check.name}`: {'. '.join(filter(None, told))}."
        lines += ["", *textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
    return "\n".join(lines) + "\n"


def put_into(file: Path, table: str) -> None:
    """Puts the table between the marks of a document. Raises ConfigError where it has none."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if BEGIN not in text or END not in text:
        raise ConfigError(f"{file} has no lines {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    with written_whole(file) as stream:
        stream.write(f"{before}{BEGIN}\n{table}{END}{after}")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
