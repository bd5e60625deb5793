"""StepRAG as a library: the names that `import steprag` offers, and the tour in the docs that runs as it stands."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import steprag

TOUR = Path(__file__).parent.parent / "docs" / "tour.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_blocks_of_the_tour_run_in_order_within_a_running_loop(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TOUR.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}

    async def notebook() -> None:
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{TOUR}, block {number}", "exec"), names)

    asyncio.run(notebook())
    said = capsys.readouterr().out
    assert "Tirana" in said.splitlines()[0]
    assert names["answer"].steps
    assert len(names["tree"].nodes) > 5
    assert names["tree"].usage.calls >= 5
    sent = {str(node.messages) for node in names["tree"].nodes if node.messages}
    assert all(str(pair.prompt) in sent for pair in names["pairs"])
    assert (names["folder"] / "dpo" / "adapter_model.safetensors").exists()
    assert names["scores"]["questions"] == 2


def test_the_librarys_names_are_there_and_nothing_is_imported_before_they_are_used() -> None:
    assert [name for name in steprag.__all__ if not hasattr(steprag, name)] == []
    assert {name for name in steprag.__all__ if name not in dir(steprag)} == set()
    code = (
        "import sys, steprag\n"
        "assert {n for n in sys.modules if n.startswith('steprag')} == {'steprag'}, sys.modules.keys()\n"
        "steprag.Question('q', 'Who?', ('x',), {})\n"
        "from steprag import *\n"
        "assert not {'torch', 'faiss', 'transformers'} & set(sys.modules)\n"
        "try: steprag.Qestion\n"
        "except AttributeError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout == "No steprag attribute Qestion\n", ended.stderr
