"""Progress: what is seen, and that no killed process holds it up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steprag.console.progress import Progress

KILLED = """
import os, signal
from steprag.console.progress import Progress, say
from tqdm import tqdm
say("begun")
tqdm(disable=True)
if (child := os.fork()) == 0:
    for bar in (tqdm, type(Progress("work", 2, "units")._bar)):
        bar.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with Progress("work", 2, "units") as progress:
    progress.advance(2)
"""


def test_a_process_killed_over_its_bar_stops_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=30,
                          cwd=Path(__file__).parent.parent)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "work: 2/2 units" in done.stderr


@pytest.mark.parametrize(("total", "expected"), [(2, "work: 2/2 units in 0 s"), (None, "")])
def test_the_last_line_says_it_all(total: int | None, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("work", total, "units") as progress:
        progress.advance(notes="1 failed")
        progress.advance(notes="2 failed")
    said = capsys.readouterr().err
    assert expected in said
    assert said.endswith("2 failed\n") == bool(total)
