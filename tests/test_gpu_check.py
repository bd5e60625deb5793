"""The check of GPUs, without one: its commands, its arithmetic, what a failure looks like, and its table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.config import IndexConfig
from inference.config import InferConfig
from steprag.cli import guarded
from steprag.config import load_config
from steprag.errors import ConfigError, StepragError
from steprag.experiments import gpu_check
from steprag.experiments.gpu_bench import SMALL, Bench, Device, GpuCheck, GpuFound, GpuRun
from steprag.experiments.gpu_check import BEGIN, CHECKS, END, as_table, check_all, chosen, put_into
from steprag.experiments.gpu_training import apart, numbers
from training.config import TrainConfig

CONFIGS = {"train": TrainConfig, "index build": IndexConfig, "infer": InferConfig}
FILES = {"pairs", "questions", "index", "corpus", "vectors_from", "dataset_name", "limit", "trees"}
"""Options that are no configuration."""


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class Scripted(Bench):
    """Reads every command as the program would, and leaves what it would have: losses that differ by `off`."""

    def __init__(self, out: Path, device: Device, off: float = 0.0) -> None:
        super().__init__(out, device, SMALL)
        self.off, self.commands = off, list[tuple[str, dict[str, Any]]]()

    def arm(self, name: str, command: str, on: Device, options: Mapping[str, Any]) -> GpuRun:
        config = {key: value for key, value in options.items() if key not in FILES}
        if command in CONFIGS:
            load_config(CONFIGS[command], None, {key: str(value) for key, value in config.items()})
        self.commands.append((command, dict(options)))
        folder, off = self.out / name, self.off * len(self.commands)
        folder.mkdir()
        write_lines(folder / "metrics.jsonl", [
            {"event": "begun"}, {"step": 1, "loss": 0.6931 + off, "grad_norm": 0.2 + off, "seconds": 2.0},
            {"step": 2, "loss": 0.6, "grad_norm": 0.2, "seconds": 3.0 + len(self.commands)},
            {"event": "done", "seconds": 1.0}])  # fmt: skip
        step = "query" if off < 0.1 else f"query {len(self.commands)}"
        write_lines(folder / "episodes.jsonl", [{"steps": [step]}])
        write_lines(folder / "predictions.jsonl", [{"prediction": step}])
        write_lines(folder / "pairs.train.jsonl", [{"prompt": [{"content": "Where?"}]}] * 9)
        measured = {"recall_at_10": 1.0 - off, "search_ms": 1.0}
        (folder / "manifest.json").write_text(json.dumps({"seconds": 4.0, "measured": measured}))
        return GpuRun(folder, 100)


def vectors(off: float) -> np.ndarray:
    """Rows of length 1, turned by an angle."""
    return np.tile(np.array([np.cos(off), np.sin(off)], np.float32), (4, 1))


@pytest.mark.parametrize("check", [c for c in CHECKS if c.name != "service"], ids=lambda check: check.name)
@pytest.mark.parametrize(("off", "holds"), [(0.0, True), (0.3, False)])
def test_a_check_holds_where_both_devices_agree_and_fails_where_not(
    check: GpuCheck, off: float, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Scripted(tmp_path, "cuda", off)
    angle = iter([0.0, off, off, off])
    monkeypatch.setattr("steprag.experiments.gpu_serving._vectors", lambda _: vectors(next(angle)))
    found = check.run(bench)
    assert found.holds == holds, found.figures
    assert found.figures
    assert len([command for command, _ in bench.commands if command in CONFIGS]) >= 2, "nothing is compared"


def test_long_prompts_are_pairs_with_passages_before_the_question(tmp_path: Path) -> None:
    rows = (Scripted(tmp_path, "cpu").long_pairs / "pairs.train.jsonl").read_text().splitlines()
    assert len(rows) == SMALL.steps * SMALL.rows
    texts = [json.loads(row)["prompt"][-1]["content"] for row in rows]
    assert all(text.endswith("\n\nWhere?") and len(text.split()) > SMALL.prompt_words for text in texts)
    assert len(set(texts)) == len(texts)


def test_losses_that_are_no_numbers_or_lack_steps_are_said(tmp_path: Path) -> None:
    arms = [GpuRun(tmp_path / name, 0) for name in ("one", "two", "none")]
    for arm, losses in zip(arms, ([0.5, 0.4], [0.5, float("nan")], [0.5]), strict=True):
        arm.out.mkdir()
        write_lines(arm.out / "metrics.jsonl", [{"step": n, "loss": loss} for n, loss in enumerate(losses)])
    assert numbers(arms[0]) == [0.5, 0.4]
    with pytest.raises(StepragError, match="two/metrics.jsonl:2: NaN is no number"):
        apart(arms[0], arms[1])
    with pytest.raises(StepragError, match="different numbers of steps"):
        apart(arms[0], arms[2])
    with pytest.raises(StepragError, match="its reward is not logged"):
        numbers(arms[0], "reward")


def check_of(name: str, found: GpuFound | StepragError, missing: str | None = None) -> GpuCheck:
    def run(_: Bench) -> GpuFound:
        if isinstance(found, StepragError):
            raise found
        return found

    return GpuCheck(name, f"what {name} compares", lambda _: missing, run)


def test_a_failure_stands_in_the_table_and_keeps_no_check_from_running(tmp_path: Path) -> None:
    checks = [
        check_of("low", GpuFound(False, "recall 0.2 (≥ 0.9)")),
        check_of("broken", StepragError("it | ended")),
        check_of("absent", GpuFound(True, ""), "no such package"),
        check_of("good", GpuFound(True, "0.0 (≤ 0.1)", "2.0 × the processor", "GPU 300")),
    ]
    rows = check_all(checks, Bench(tmp_path, "cpu", SMALL))
    assert [row.state for row in rows] == [gpu_check.MISSED, gpu_check.MISSED, "not run", "ok"]
    table = as_table(rows, "a GPU")
    assert "| `low` | **FAILED** |" in table
    assert "| `absent` | not run |" in table
    assert "- `low`: what low compares. recall 0.2 (≥ 0.9)." in table
    assert "- `broken`: what broken compares. it | ended." in table
    assert "- `absent`: no such package." in table
    assert "- `good`: what good compares. 0.0 (≤ 0.1). 2.0 × the processor. MiB of the GPU: GPU 300." in table


def test_the_table_is_put_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(f"# GPUs\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    for table in ("| a |\n", "| b |\n"):
        put_into(page, table)
    assert page.read_text() == f"# GPUs\n\n{BEGIN}\n| b |\n{END}\n\nMore.\n"
    with pytest.raises(ConfigError, match="has no lines"):
        put_into(tmp_path / "other.md", "| c |\n")


def test_what_cannot_be_checked_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert guarded(gpu_check.main, [*out, "--device", "cpu", "--checks", "nothing"]) == 2
    assert "--checks nothing: no such check; they are sft, dpo" in capsys.readouterr().err
    assert guarded(gpu_check.main, [*out, "--device", "tpu"]) == 2
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "mine.txt").touch()
    assert guarded(gpu_check.main, [*out, "--device", "cpu"]) == 2
    assert "holds something else" in capsys.readouterr().err
    (tmp_path / "proof/logs").mkdir(parents=True)  # as steprag reproduce leaves behind
    assert guarded(gpu_check.main, ["--out", str(tmp_path / "proof"), "--device", "cpu"]) == 2
    assert (tmp_path / "proof/logs").is_dir()
    assert chosen(None) == list(CHECKS)


@pytest.mark.slow
def test_on_the_processor_the_real_commands_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    arguments = ["--device", "cpu", "--out", str(tmp_path / "out"), "--into", str(page)]
    assert guarded(gpu_check.main, [*arguments, "--checks", "encoder", "gpu-flat"]) == 0
    table = capsys.readouterr().out
    assert "| `encoder` | ok |" in table
    assert "- `encoder`: passages' vectors: processor in float32 and GPU. least cosine: float32 " in table
    assert "- `gpu-flat`: the type is a GPU's." in table
    assert max(map(len, table.splitlines())) <= 120
    assert table in page.read_text()
