"""The table of scripts/gpu_check.sh, and what the script refuses before it installs anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu_table import BEGIN, END, main, put_into, table_of
from steprag.errors import ConfigError, StepragError
from tests.test_gpu import GpuRun, apart, numbers

ROOT = Path(__file__).parents[1]
REPORT = """<testsuites><testsuite><properties><property name="device" value="H100, 570.1 MiB"/></properties>
<testcase name="test_grpo_loss" time="61.6"><properties><property name="compares" value="what it compares"/>
<property name="figures" value="0.0 (≤ 0.1)"/><property name="speed" value="2.0 × the processor"/>
<property name="memory" value="GPU 300"/></properties></testcase>
<testcase name="test_low" time="2"><properties><property name="figures" value="recall 0.2 (≥ 0.9)"/></properties>
<failure message="AssertionError: recall 0.2 (≥ 0.9)&#10;assert False">…</failure></testcase>
<testcase name="test_broken" time="2"><properties><property name="compares" value="this"/></properties>
<failure message="steprag.errors.StepragError: it ended&#10;more">…</failure></testcase>
<testcase name="test_unready" time="0"><error message="failed on setup">…</error></testcase>
<testcase name="test_absent" time="0"><skipped type="pytest.skip" message="no such package">…</skipped></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "junit.xml"
    file.write_text(REPORT, encoding="utf-8")
    return file


def test_the_table_tells_what_held_what_failed_and_what_was_not_run(report: Path) -> None:
    table = table_of(report)
    assert table.startswith("On H100, 570.1 MiB; torch ")
    for line in (
        "| `grpo-loss` | ok | 62 |",
        "| `low` | **FAILED** | 2 |",
        "| `broken` | **FAILED** | 2 |",
        "| `unready` | **FAILED** | 0 |",
        "| `absent` | not run | 0 |",
        "- `grpo-loss`: what it compares. 0.0 (≤ 0.1). 2.0 × the processor. MiB of the GPU: GPU 300.",
        "- `low`: recall 0.2 (≥ 0.9).",
        "- `broken`: this. steprag.errors.StepragError: it ended.",
        "- `absent`: no such package.",
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
    (tmp_path / "mine.txt").touch()
    code, words = said("cpu", "--out", str(tmp_path))
    assert (code, words) == (2, f"{tmp_path} holds something else; give another --out\n")
    assert (tmp_path / "mine.txt").exists()
