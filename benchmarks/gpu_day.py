"""What the claims about GPUs need, measured on one card of 80 GB; `scripts/gpu_day.sh` runs it, gpu_day.yaml lists it.

Each measurement leaves a row in OUT/rows.jsonl when it ends and is not made again; one that a part's end cuts off is
tried once more. OUT stays small; models with random weights (`tests/gpu_inputs.py`) and run folders lie in OUT.work.
None of it has run on a GPU. With --dry-run the processor measures tiny shapes, and llama.cpp stands in for vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.gpu_table import put_into, table_of
from steprag.config.load import parse_arguments
from steprag.console.plots import can_draw, new_figure, save_png
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.engines.outlive_guard import running
from steprag.errors import PART_DONE, ConfigError, StepragError
from steprag.records.jsonl import read_json, read_rows, shaped, write_records
from tests.test_gpu import HIDDEN, Device, GpuRun, ask_nvidia, gpu_memory, last_line, seconds, the_gpu

PARTS, PART_SECONDS = (1, 2, 3), 500
STARTS = {"steprag": [sys.executable, "-m", "apps.commands"], "python": [sys.executable], "bash": ["bash"]}
CUT_OFF = "time was up while it ran"
REMEDY = re.compile(r"pip install|scripts/setup_")  # in the refusal of a command that lacks a package
Row = dict[str, Any]


class Day(NamedTuple):
    """Where rows go, in the form of `gpu_table`'s checks, and all else."""

    out: Path
    work: Path
    device: Device

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in read_rows(self.out / "rows.jsonl")]

    def part(self, number: int, listed: list[Row], limit: float = PART_SECONDS) -> None:
        """Measures what has no row yet, up to this part's, in the order of the list, for `limit` seconds."""
        end, dry = time.monotonic() + limit, self.device == "cpu"
        here = "no GPU: --dry-run" if dry else ask_nvidia("name,driver_version,memory.total") + " MiB"
        for each in listed:
            name, began = each["name"], time.monotonic()
            said = [row["said"] for row in self.rows if row.get("check") == name]
            if each["part"] > number or said not in ([], [CUT_OFF]):
                continue
            if each["seconds"] > end - began:
                say(f"{name}: left for the next part; it may take {each['seconds']} s")
                continue
            row = self.measured({**each, **(each.get("dry", {}) if dry else {})}, end)
            row |= {"check": name, "seconds": round(time.monotonic() - began, 1), "device": here}
            with (self.out / "rows.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            say(f"{name}: {row['said']}")

    def measured(self, each: Row, end: float) -> Row:
        """Runs a measurement's command: what it measured, or why it did not."""
        folder, made, plan = self.work / each["name"], self.work / "made", dict[str, Any]()
        places = {**self._asdict(), "made": made, "python": sys.executable}
        texts = (f"{each['run']} {each.get('more', '')}", each.get("apart", ""))
        words, apart = (shlex.split(text.format(**places)) for text in texts)
        shutil.rmtree(folder, ignore_errors=True)
        line = [*words, *apart, *(["--out", str(folder)] if words[0] == "steprag" else [])]
        row: Row = {"command": shlex.join(line), "state": "passed"}
        try:
            if "{made}" in each["run"] and not made.exists():
                self.ran("made", ["python", "-m", "tests.gpu_inputs", str(made), self.device], end)
            if words[1] == "train":
                plan = json.loads(self.ran("plan", ["steprag", "plan", *words[1:], "--json"], end))
            with gpu_memory(self.device) as peak, shaped(folder):
                printed = self.ran(each["name"], line, end)
                return {**row, "memory": peak(), **figures(words, folder, printed, peak(), plan)}
        except subprocess.TimeoutExpired:
            return {**row, "state": "skipped", "said": CUT_OFF}
        except (StepragError, ArithmeticError) as error:
            return {**row, "state": "skipped" if REMEDY.search(str(error)) else "failed", "said": str(error)}

    def ran(self, name: str, words: list[str], end: float) -> str:
        """What a command printed. Raises StepragError or TimeoutExpired."""
        log, output = (self.out / "logs" / f"{name}.{kind}" for kind in ("log", "out"))
        environment = {**os.environ, "DEVICE": self.device, HIDDEN: "" if self.device == "cpu" else the_gpu()}
        words = [*STARTS[words[0]], *words[1:]]
        with log.open("wb") as errors, output.open("wb") as out, running(words, errors, environment, out) as process:
            code = process.wait(max(0.0, end - time.monotonic()))
        if code not in (0, PART_DONE) and words[0] != "bash":  # gpu_check's says whether all hold
            raise StepragError(last_line(log))
        return output.read_text("utf-8")


def figures(words: list[str], folder: Path, printed: str, memory: int, plan: Row) -> Row:
    """What was measured in words; of a training also what was planned, as `shares` of what was measured."""
    if words[0] == "bash":
        states = [line.split(" | ")[1] for line in printed.splitlines() if line.startswith("| `")]
        said = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return {"said": said or "it did not start", "state": "failed" if "**FAILED**" in said or not said else "passed"}
    if words[0] == "python":
        took = json.loads(printed)["wall"]
        return {"said": f"{len(Path(words[-2], 'corpus.jsonl').read_text('utf-8').splitlines()) / took:.0f} passages/s"}
    if words[1] == "tunnel":
        return {"said": "its page is logs/tunnel.out"}
    manifest = read_json(folder / "manifest.json")
    if words[1] == "index":
        found, rate = manifest["measured"], manifest["corpus"]["rows"] / manifest["seconds"]
        return {"said": f"{rate:.0f} passages/s, recall@10 {found['recall_at_10']:.4f}, {found['search_ms']:.2g} ms"}
    if words[1] == "infer":
        times = [row["time"] for _, row in read_rows(folder / "metrics.jsonl") if row.get("event") in ("begun", "done")]
        took = (datetime.fromisoformat(times[-1]) - datetime.fromisoformat(times[0])).total_seconds()
        calls, tokens = (manifest["usage"][key] / took for key in ("calls", "completion_tokens"))
        return {"said": f"{calls:.1f} calls/s, {tokens:.0f} tokens/s"}
    step, hours = seconds(GpuRun(folder, 0)) / max(1, manifest["steps"] - 1), plan["hours"] or 0
    pairs = {"GiB": (plan["memory_total"], memory / 1024), "s a step": (hours * 3600 / manifest["steps"], step)}
    told = [f"{value:.3g} {key} (planned {said:.3g})" for key, (said, value) in pairs.items() if value]
    if rows := manifest.get("rows"):
        told.append(f"{manifest['tokens_an_epoch'] / rows * manifest['config']['batch_size'] / step:.0f} tokens/s")
    shares = {key: said / value for key, (said, value) in pairs.items() if said and value}
    return {"said": ", ".join(told).replace("(planned 0)", "(not planned)"), "shares": shares}


def picture(rows: list[Row], file: Path) -> None:
    """Planned over measured, with the goal of 10 % shaded."""
    shares = {f"{row['check']}, {key}": share for row in rows for key, share in row.get("shares", {}).items()}
    if shares and can_draw():
        axes = (figure := new_figure(7, 1 + 0.4 * len(shares))).add_subplot(xlabel="planned over measured")
        axes.barh(list(shares), list(shares.values()))
        axes.axvspan(0.9, 1.1, alpha=0.3)
        save_png(figure, file, 90)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpu_day", description="What the claims about GPUs need, on one card.")
    parser.add_argument("--part", type=int, choices=PARTS, help="this one, and what those before it left [all]")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-day"), help="rows, table, picture, logs")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the table between this file's marks too")
    parser.add_argument("--dry-run", action="store_true", help="on the processor, with tiny shapes")
    given = parse_arguments(parser, argv)
    day = Day(given.out, given.out.with_name(f"{given.out.name}.work"), "cpu" if given.dry_run else "cuda")
    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    if not (day.out / "rows.jsonl").exists():
        (day.out / "logs").mkdir(parents=True)
        write_records(day.out / "rows.jsonl", [{"checks": [each["name"] for each in listed], "on": day.device}])
    if day.rows[0]["on"] != day.device:
        raise ConfigError(f"{day.out} has rows of {day.rows[0]['on']}, and this is {day.device}; give another --out")
    for number in [given.part] if given.part else PARTS:
        day.part(number, listed)
    table = table_of(day.out / "rows.jsonl")
    (day.out / "gpu_day.md").write_text(table, encoding="utf-8")
    picture(day.rows, day.out / "gpu_day.png")
    if given.into:
        put_into(given.into, table, "gpu_day")
    sys.stdout.write(table)
    return int(any(row.get("state") == "failed" for row in day.rows))


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
