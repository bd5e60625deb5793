"""The tour of the library runs as it stands in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).parent.parent / "docs" / "tour.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_blocks_of_the_tour_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TOUR.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{TOUR}, block {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "Tirana" in said.splitlines()[0]
    assert names["episode"].state.steps
    assert len(names["tree"].nodes) > 5
    assert names["tree"].usage.calls >= 5
    sent = {str(node.messages) for node in names["tree"].nodes if node.messages}
    assert all(str(pair.prompt) in sent for pair in names["pairs"])
