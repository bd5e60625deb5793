"""A search whose policy and retriever are a script in this process, for `growth.py`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from data_generation.config import GenerateConfig
from data_generation.expand import make_searcher
from data_generation.generate import search_all
from data_generation.growth import root_only
from data_generation.search import run_wave
from steprag.agent.environment import Environment
from steprag.agent.open import OpenAgent, make_environment
from steprag.agent.profiles import load_profile
from steprag.config.load import load_config
from steprag.policy.gate import Gate
from steprag.policy.open import Model
from steprag.runs.run import open_run
from steprag.types import Completion, Message, Passage, Question, Sample, Usage

FACTS = tuple(Passage(str(i), f"Thing {i}", f"Thing {i} is next to thing {i + 1}.", 1.0) for i in range(100))


def step(allowed: tuple[str, ...], rng: random.Random) -> str:
    action, number = rng.choice(allowed), rng.randrange(10**6)
    return {
        "query": f"I look further. So the next query is <query> thing {number} </query>",
        "evidence": f"Based on the query, the relevant evidence is <evidence> fact {number} </evidence>",
        "answer": f"That is it. So the answer is <answer> {number % 7} </answer>",
    }[action]


@dataclass
class InstantPolicy:
    """A policy that writes any allowed step at once."""

    calls: int = 0
    say: Callable[[tuple[str, ...], random.Random], str] = step

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        rng = random.Random(seed)
        self.calls += 1
        texts = (self.say(allowed, rng) for _ in range(n))
        return Sample(tuple(Completion(text, "stop") for text in texts), Usage(1, 400, 40 * n, 0))


@dataclass
class Shelf:
    """A retriever that answers at once."""

    fingerprint: str = "shelf"

    async def ready(self) -> None:
        return None

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        start = hash(query) % 90
        return FACTS[start : start + top_k]

    async def aclose(self) -> None:
        return None


def questions(count: int) -> list[Question]:
    return [Question(f"q{i}", f"What is thing {i} next to?", ("3",)) for i in range(count)]


def generate(policy: InstantPolicy, count: int, keys: dict[str, object]) -> None:
    """Grows `count` trees, journal and all."""
    config = load_config(GenerateConfig, None, {"search.rollouts": 8, "search.hopeless": None, **keys})

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[OpenAgent]:
        environment = make_environment(load_profile("transcript"), Shelf(), config.episode)
        yield OpenAgent(environment, Model(policy, Gate(config.policy)))

    with tempfile.TemporaryDirectory() as folder, open_run(f"{folder}/r", "generate", identity={}, config={}) as run:
        asyncio.run(search_all(run, questions(count), config, opened()))


async def grown(nodes: int) -> int:
    """Grows a tree of about so many nodes; how many it has."""
    keys = {"search.rollouts": 10**9, "search.children": 6, "episode.depth": 25, "search.hopeless": None,
            "search.wave": 1}  # fmt: skip
    config = load_config(GenerateConfig, None, keys)
    searcher = make_searcher(Environment(load_profile("transcript"), Shelf(), 3, 25), InstantPolicy(), None, config)
    growth = root_only(questions(1)[0], searcher.environment)
    while len(growth.nodes) < nodes and not growth.root.closed:
        await run_wave(growth, searcher)
    return len(growth.nodes)
