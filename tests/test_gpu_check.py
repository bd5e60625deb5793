"""The table of scripts/gpu_check.sh, and what the script refuses before it installs anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_table import BEGIN, END, main, put_into, table_of
from steprag.errors import ConfigError, StepragError
from tests.test_gpu import GpuRun, apart, numbers

ROOT = Path(__file__).parents[1]
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
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}  # not its parent
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=200,
                           env={**own, "GPU_CHECK_OUT": str(folder), "PYTHONPATH": str(ROOT),
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
