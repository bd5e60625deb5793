"""What tests of slots need: a retriever over HTTP that loads nothing, and work that kills its process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from data_generation.config import GenerateConfig
from data_generation.generate import open_search
from steprag.agent.open import Agent
from steprag.batch.journal import Journal
from steprag.batch.workers import Work, Working
from steprag.types import Failure, Question, Tree
from tests.fakes import DictRetriever, listening


@contextmanager
def retriever_service() -> Iterator[str]:
    """The address of a service that ranks the passages of `tests.fakes.WORLD`."""
    world = DictRetriever()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"fingerprint": world.fingerprint, "mode": "dense"})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = asyncio.run(world.search(request["queries"][0], request["topk"]))
            self._send({"result": [[{"document": {"id": p.id, "title": p.title, "text": p.text}, "score": p.score}
                                    for p in found]]})  # fmt: skip

        def _send(self, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with listening(Handler) as address:
        yield address


def dies(notes: Path, question_id: str, times: int) -> bool:
    """Whether a question has not killed so many processes yet; then it is noted that it does."""
    died = len(list(notes.glob(f"{question_id}.*")))
    if died < times:
        (notes / f"{question_id}.{died}").touch()
    return died < times


@asynccontextmanager
async def open_deadly(
    config: GenerateConfig, *, index: str, deaths: Mapping[str, int], notes: Path
) -> AsyncIterator[tuple[Agent, Working[GenerateConfig, Tree]]]:
    """As `open_search`; a question in `deaths` kills the process that works on it, so often. `notes` counts it."""
    async with open_search(config, index=index) as (agent, searching):

        async def deadly(config: GenerateConfig, agent: Agent, journal: Journal) -> Work[Tree]:
            search = await searching(config, agent, journal)

            async def work(question: Question) -> Tree | Failure:
                if dies(notes, question.id, deaths.get(question.id, 0)):
                    await asyncio.sleep(0.2)  # others have calls in flight by then
                    os.kill(os.getpid(), signal.SIGKILL)
                return await search(question)

            return work

        yield agent, deadly
