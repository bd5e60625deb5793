"""StepRAG as a library: the names that `import steprag` offers, and the tour in the docs that runs as it stands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import steprag

TOUR = Path(__file__).parent.parent / "docs" / "tour.md"
NOTEBOOK = TOUR.with_suffix(".ipynb")


def notebook() -> str:
    """The tour as a notebook: a cell for every block, and one for the text before it."""
    cells = []
    for place, part in enumerate(re.split(r"```python\n(.*?)```\n", TOUR.read_text(encoding="utf-8"), flags=re.DOTALL)):
        code = {"cell_type": "code", "execution_count": None, "outputs": []} if place % 2 else {"cell_type": "markdown"}
        cells.append({**code, "id": f"tour-{place}", "metadata": {}, "source": part.strip().splitlines(keepends=True)})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def test_the_notebook_is_the_tour() -> None:
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook(), "STEPRAG_ACCEPT=1 python -m tests.test_tour"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_blocks_of_the_tour_run_in_order_within_a_running_loop(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TOUR.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}

    async def run() -> None:
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{TOUR}, block {number}", "exec"), names)

    asyncio.run(run())
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
    assert ended.stdout == "module 'steprag' has no attribute 'Qestion'\n", ended.stderr


if __name__ == "__main__" and os.environ.get("STEPRAG_ACCEPT"):
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
