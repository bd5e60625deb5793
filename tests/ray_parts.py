"""What tests of slots need: a retriever over HTTP that loads nothing, and work that kills its process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from data_generation.config import GenerateConfig
from data_generation.generate import open_search
from steprag.agent.open import OpenAgent
from steprag.batch.journal import Journal
from steprag.batch.worklist import StageFactory, Work
from steprag.engines.launch import free_port
from steprag.tree import Failure, Tree
from steprag.types import Question
from tests.fakes import DictRetriever, Replying, listening

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed: pip install -e '.[ray]'"
)
MARK = "STEPRAG_TEST_CLUSTER"
"""In the environment of a cluster's processes: its address."""


@contextmanager
def a_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A Ray cluster of one node with four processors; the variables that lead a command to it.

    Its processes have a mark in their environment, by which they are ended: `ray stop` would end everybody's.
    """
    (folder / "token").write_text(secrets.token_hex(32))
    address, log = f"127.0.0.1:{free_port('127.0.0.1')}", folder / "ray.log"
    joining = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
    program = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--include-dashboard", "false"]
    sizes = ["--port", address.split(":")[1], "--num-cpus", "4", "--object-store-memory", str(100 * 2**20)]
    mark = {MARK: address}
    with log.open("wb") as stream:
        node = subprocess.Popen(
            [*program, *sizes], env={**os.environ, **joining, **mark}, stdout=stream, stderr=stream,
            start_new_session=True,
        )  # fmt: skip
    try:
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()[-1000:]
            time.sleep(0.2)
        yield {"RAY_ADDRESS": address, **joining}
    finally:
        while left := [each for each in psutil.process_iter() if _marked(each, mark)]:
            for each in left:
                with suppress(psutil.Error):
                    each.kill()
            psutil.wait_procs(left, 10)


def _marked(process: psutil.Process, mark: Mapping[str, str]) -> bool:
    try:
        return mark.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@contextmanager
def retriever_service() -> Iterator[str]:
    """The address of a service that ranks the passages of `tests.fakes.WORLD`."""
    world = DictRetriever()

    class Handler(Replying):
        def do_GET(self) -> None:
            self.reply({"fingerprint": world.fingerprint, "mode": "dense"})

        def do_POST(self) -> None:
            request = json.loads(self.given())
            found = asyncio.run(world.search(request["queries"][0], request["topk"]))
            self.reply({"result": [[{"document": {"id": p.id, "title": p.title, "text": p.text}, "score": p.score}
                                    for p in found]]})  # fmt: skip

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
) -> AsyncIterator[tuple[OpenAgent, StageFactory[GenerateConfig, Tree]]]:
    """As `open_search`; a question in `deaths` kills the process that works on it, so often. `notes` counts it."""
    async with open_search(config, index=index) as (agent, searching):

        async def deadly(config: GenerateConfig, agent: OpenAgent, journal: Journal) -> Work[Tree]:
            search = await searching(config, agent, journal)

            async def work(question: Question) -> Tree | Failure:
                if dies(notes, question.id, deaths.get(question.id, 0)):
                    await asyncio.sleep(0.2)  # others have calls in flight by then
                    os.kill(os.getpid(), signal.SIGKILL)
                return await search(question)

            return work

        yield agent, deadly
