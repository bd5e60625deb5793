"""Tools files of the tests, and what calls over them bring."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

from indexes import open_retriever
from steprag.errors import RetrieverError
from steprag.types import Passage

DESK = [sys.executable, str(Path(__file__).parent / "mcp_desk.py")]


def tools_file(folder: Path, **entries: dict[str, Any]) -> Path:
    file = folder / "tools.yaml"
    file.write_text(json.dumps({"tools": entries}))
    return file


def asked(file: Path, *queries: str, most: int = 3) -> list[tuple[Passage, ...] | str]:
    """What each query brings, or what its error says, one after the other."""

    async def ask() -> list[tuple[Passage, ...] | str]:
        found: list[tuple[Passage, ...] | str] = []
        async with aclosing(open_retriever(file)) as box:
            await box.ready()
            for query in queries:
                try:
                    found.append(await box.search(query, most))
                except RetrieverError as error:
                    found.append(str(error))
        return found

    return asyncio.run(ask())


def texts(found: tuple[Passage, ...] | str) -> list[str]:
    assert not isinstance(found, str), found
    return [passage.text for passage in found]
