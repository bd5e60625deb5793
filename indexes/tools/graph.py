"""A graph of facts as a tool: a thing's neighbours by its name, and SPARQL for who writes it (`graph_worker`)."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from indexes.web.extraction import BoundedProcess
from steprag import atlas
from steprag.agent.tools import ToolSpec, spec_of
from steprag.engines.models import sha256_of
from steprag.errors import ConfigError, DataError, RetrieverError
from steprag.extras import remedy
from steprag.records.json_text import decoded
from steprag.records.jsonl import as_utf8, existing
from steprag.types import Passage

WORKER = Path(__file__).with_name("graph_worker.py")
KINDS = (".nt", ".ttl", ".turtle", ".tsv")
MEGABYTES = 8192
"""Memory of the process: its address space, of which a graph fills a part."""


class GraphTool:
    """The facts of a file, held by a process that is killed where a call takes longer than its time."""

    def __init__(self, name: str, file: str, description: str, seconds: float) -> None:
        """Raises ConfigError where the file is none of KINDS, or pyoxigraph is missing."""
        self._file = atlas.FACTS if file == "atlas" else existing(file, "graph file")
        if self._file.suffix.lower() not in KINDS:
            raise ConfigError(f"tools.{name}.graph: {file} is none of {', '.join(KINDS)}; convert it")
        if importlib.util.find_spec("pyoxigraph") is None:
            raise ConfigError(f"tools.{name} is a graph, which needs an extra: {remedy('graph')}")
        schema = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
        self.spec: ToolSpec = spec_of(name, description or "Facts about a thing by its name; or SPARQL.", schema)
        self.fingerprint = f"graph:{sha256_of(self._file)[:16]}"
        command = (sys.executable, "-I", "-X", "utf8", str(WORKER), str(self._file.resolve()), str(MEGABYTES))
        self._worker = BoundedProcess(command, seconds)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="graph")

    async def ready(self) -> None:
        """Waits until the file is read. Raises DataError where it cannot be."""
        await self.call({"text": ""}, 1)

    async def call(self, arguments: Mapping[str, Any], top_k: int) -> Sequence[Passage]:
        """The things that the text names, each with its facts, or what the query finds. Raises RetrieverError."""
        asked = json.dumps({"text": arguments["text"], "top_k": top_k}).encode()
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._worker.ask, asked)
        if reply is None:
            why = "took too long" if self._worker.late else "ended: is the graph too large?"
            raise RetrieverError(f"tool {self.spec.name}: the call {why}")
        told = decoded(reply)
        if "broken" in told:
            raise DataError(self._file, told["broken"], line=told["line"], remedy="mend it, or name another")
        found = [(as_utf8(title), as_utf8(text)) for title, text in told["found"]]
        return [Passage(hashlib.sha256(text.encode()).hexdigest()[:16], title, text) for title, text in found]

    async def aclose(self) -> None:
        """Ends the process, behind a call that it still answers."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._worker.end)
        self._thread.shutdown(wait=False)
