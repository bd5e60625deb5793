"""The table of scripts/gpu_check.sh, and what the script refuses before it installs anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu_day import Day
from benchmarks.gpu_table import BEGIN, END, main, put_into, table_of
from steprag.errors import ConfigError, StepragError
from steprag.records.jsonl import read_rows
from tests.test_gpu import GpuRun, apart, numbers

ROOT = Path(__file__).parents[1]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
"""The environment of a pytest that is not one of ours side by side."""
CHECKS = """
def test_grpo_loss(record_property):
    for name in ("device", "compares", "figures", "speed", "memory"):
        record_property(name, f"the {name}")

def test_low(record_property):
    record_property("figures", "recall 0.2 (≥ 0.9)")
    assert False, "recall 0.2 (≥ 0.9)"

def test_broken(record_property):
    record_property("compares", "this")
    raise ValueError("it ended\\nmore")

def test_absent():
    import pytest
    pytest.skip("no such package")

def test_long():
    import os, pathlib, signal, time
    while '"check": "long"' not in pathlib.Path("checks.jsonl").read_text():  # what the one that writes heard last
        time.sleep(0.01)
    os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGINT)
    time.sleep(60)

def test_last():
    pass
"""


@pytest.fixture(scope="session", params=["one after the other", "side by side"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pytest wrote of checks of which the fifth interrupts it, as `timeout` does."""
    folder = tmp_path_factory.mktemp("checks")
    (folder / "test_checks.py").write_text(CHECKS, encoding="utf-8")
    side = ["-p", "xdist", "-n", "1"] if request.param == "side by side" else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.gpu_table", *side, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=200,
                           env={**OUTSIDE, "GPU_CHECK_OUT": str(folder), "PYTHONPATH": str(ROOT),
                                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})  # fmt: skip
    assert ended.returncode == pytest.ExitCode.INTERRUPTED, ended.stdout + ended.stderr
    return folder / "checks.jsonl"


def test_the_table_tells_what_held_what_failed_and_what_was_not_run(report: Path) -> None:
    table = table_of(report)
    assert table.startswith("On the device; torch ")
    for line in (
        "| `grpo-loss` | ok | 0 |",
        "| `low` | **FAILED** | 0 |",
        "| `broken` | **FAILED** | 0 |",
        "| `absent` | not run | 0 |",
        "| `long` | not run | 0 |",
        "| `last` | not run | 0 |",
        "- `grpo-loss`: the compares. the figures. the speed. MiB of the GPU: the memory.",
        "- `low`: recall 0.2 (≥ 0.9).",
        "- `broken`: this. ValueError: it ended.",
        "- `absent`: no such package.",
        "- `long`: time was up while it ran.",
        "- `last`: time was up before it began.",
    ):
        assert line in table
    assert max(map(len, table.splitlines())) <= 120


def test_the_table_is_put_between_the_marks_of_a_page(report: Path, tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(f"# GPUs\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    for _ in range(2):
        assert main([str(report), "--out", str(tmp_path / "table.md"), "--into", str(page)]) == 0
    assert page.read_text() == f"# GPUs\n\n{BEGIN}\n{(tmp_path / 'table.md').read_text()}{END}\n\nMore.\n"
    with pytest.raises(ConfigError, match="has no lines"):
        put_into(tmp_path / "other.md", "| c |\n")


def test_losses_that_are_no_numbers_or_lack_steps_are_said(tmp_path: Path) -> None:
    arms = [GpuRun(tmp_path / name, 0) for name in ("one", "two", "none")]
    for arm, losses in zip(arms, (["0.5", "0.4"], ["0.5", "NaN"], ["0.5"]), strict=True):
        arm.out.mkdir()
        rows = [f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in enumerate(losses)]
        (arm.out / "metrics.jsonl").write_text("".join(rows))
    assert numbers(arms[0]) == [0.5, 0.4]
    with pytest.raises(StepragError, match="two/metrics.jsonl:2: NaN is no number"):
        apart(arms[0], arms[1])
    with pytest.raises(StepragError, match="different numbers of steps"):
        apart(arms[0], arms[2])
    with pytest.raises(StepragError, match="its reward is not logged"):
        numbers(arms[0], "reward")


def test_the_script_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    def said(device: str, *options: str) -> tuple[int, str]:
        ended = subprocess.run(["bash", str(ROOT / "scripts/gpu_check.sh"), *options], capture_output=True, text=True,
                               env={"PATH": "/usr/bin:/bin", "DEVICE": device}, check=False)  # fmt: skip
        return ended.returncode, ended.stderr

    assert said("tpu") == (2, "DEVICE=tpu: cpu or cuda\n")
    code, words = said("cuda", "--fast")
    assert code == 2
    assert "bash scripts/gpu_check.sh [--checks NAME …]" in words
    assert said("cpu", "--python", "/no/python") == (2, "no Python at /no/python\n")
    code, words = said("cpu", "--python", "/bin/false", "--out", str(tmp_path / "out"))
    assert (code, words.startswith("/bin/false lacks the core")) == (2, True)
    (tmp_path / "mine.txt").touch()
    code, words = said("cpu", "--out", str(tmp_path))
    assert (code, words) == (2, f"{tmp_path} holds something else; give another --out\n")
    assert (tmp_path / "mine.txt").exists()


def test_a_gpu_day_writes_what_failed_and_leaves_what_does_not_fit(tmp_path: Path, capsys: Any) -> None:
    def states(limit: float, *listed: tuple[str, int, str]) -> list[tuple[str, str, str]]:
        own = (
            {"name": name, "part": 1, "seconds": takes, "run": f"python -c '{code}'"} for name, takes, code in listed
        )
        day.part(1, [*own, {"name": "later", "part": 2}], limit)
        return [(row["check"], row["state"], row["said"]) for row in day.rows if "check" in row]

    day = Day(tmp_path, tmp_path / "work", "cpu")
    (tmp_path / "logs").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"checks": ["broken", "large"], "on": "cpu"}\n')
    broken = ("broken", 0, "raise ValueError(7)"), ("lacking", 0, 'raise SystemExit("pip install it")')
    ended = states(100, ("large", 900, ""), *broken, ("no figures", 0, "print([])"))
    assert ended[:2] == [("broken", "failed", "ValueError: 7"), ("lacking", "skipped", "pip install it")]
    assert ended[2][:2] == ("no figures", "failed")
    assert "large: left for the next part; it may take 900 s" in capsys.readouterr().err
    assert [len(states(0.1, *broken, ("slow", 0, "import time; time.sleep(60)"))) for _ in range(3)] == [4, 5, 5]
    assert states(0.1)[-1] == ("slow", "skipped", "time was up while it ran")


@pytest.mark.slow
@pytest.mark.landing
@pytest.mark.timeout(1200)
def test_every_measurement_of_a_gpu_day_runs_on_the_processor(tmp_path: Path) -> None:
    def started(*options: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, str]]]:
        line = ["bash", str(ROOT / "scripts/gpu_day.sh"), "--python", sys.executable, "--out", str(out), *options]
        ended = subprocess.run([*line, "--dry-run"], capture_output=True, text=True, check=False, env=OUTSIDE)
        return ended, [row for _, row in read_rows(out / "rows.jsonl") if "check" in row]

    out, page = tmp_path / "day", tmp_path / "gpu.md"
    page.write_bytes((ROOT / "docs/gpu.md").read_bytes())
    ended, first = started("--part", "1")
    assert [row["check"] for row in first] == ["gpu_check"], ended.stderr
    ended, rows = started("--into", str(page))
    listed = [each["name"] for each in yaml.safe_load((ROOT / "benchmarks/gpu_day.yaml").read_text("utf-8"))]
    assert (ended.returncode, rows[0]) == (0, first[0]), ended.stderr
    assert [row["check"] for row in rows] == listed
    lacking = {row["check"] for row in rows if row["state"] != "passed"}
    assert lacking <= {"gpu-flat", "gpu-cagra", "dpo by LLaMA-Factory"} | {name for name in listed if "nf4" in name}
    packages = re.compile("faiss-gpu|LLaMA-Factory|bitsandbytes")
    assert all(packages.search(row["said"]) for row in rows if row["check"] in lacking)
    table = page.read_text("utf-8").split("<!-- gpu_day: begin -->\n")[1].split("<!-- gpu_day: end -->")[0]
    assert table == (out / "gpu_day.md").read_text("utf-8") == ended.stdout
    assert (out / "gpu_day.png").stat().st_size
    assert started()[1] == rows
