"""The two loads of real use, an hour each unless STEPRAG_LOAD_MINUTES says else: benchmarks/loads.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(0)  # they end themselves
@pytest.mark.parametrize("load", ["research_week", "service_day"])
def test_a_load_of_real_use_holds_its_bounds(load: str, tmp_path: Path) -> None:
    out = tmp_path / "load"
    ended = subprocess.run([sys.executable, "-m", f"benchmarks.{load}", "--out", str(out)], check=False).returncode
    assert ended == 0, (out / "figures.json").read_text()
