"""The two loads of real use, an hour each unless STEPRAG_LOAD_MINUTES says else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.loads import slope


def test_the_slope_of_groups_is_that_within_them() -> None:
    assert slope([[(0, 5), (1, 7), (2, 9)], [(0, 90), (4, 98)]]) == (2.0, 0.0)


@pytest.mark.long
@pytest.mark.timeout(0)  # they bound themselves
@pytest.mark.parametrize("load", ["research_week", "service_day"])
def test_a_load_of_real_use_keeps_its_bounds(load: str, tmp_path: Path) -> None:
    out = tmp_path / "load"
    ended = subprocess.run([sys.executable, "-m", f"benchmarks.{load}", "--out", str(out)], check=False).returncode
    assert ended == 0, (out / "figures.json").read_text()
