"""How fast the search is beside its policy: expansions a second, cost a node as a tree grows, how full the slots are.

    python benchmarks/search_speed.py [--trees 300] [--parts fixed mixed]

The policy is scripted and in this process. "expansions": requests a second of one core, journal and trees on disk.
"growing": microseconds a node in trees of about 100, 10,000 and 100,000 nodes. "fixed", "mixed": the share of the
possible calls a second that 64 slots reach against latencies of 200 ms and of 50 to 800 ms: over the whole run,
beginning and end included, and in its middle (the last trees of a run leave slots empty, however long it is).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

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
class Latent:
    """A policy that writes any allowed step after a while; `waits` holds each request's start and its latency."""

    shortest: float = 0.0
    longest: float = 0.0
    calls: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    say: Callable[[tuple[str, ...], random.Random], str] = step

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        rng = random.Random(seed)
        if self.longest:
            wait = rng.uniform(self.shortest, self.longest)
            self.waits.append((time.perf_counter(), wait))
            await asyncio.sleep(wait)
        self.calls += 1
        texts = (self.say(allowed, rng) for _ in range(n))
        return Sample(tuple(Completion(text, "stop") for text in texts), Usage(1, 400, 40 * n, 0))


def share(waits: Sequence[Sequence[float]], slots: int, first: float, last: float) -> float:
    """Of the requests that `slots` could have answered between two moments, the share that they did; `waits` holds each
    one's start and latency.
    """
    inside = sum(max(0.0, min(start + wait, last) - max(start, first)) for start, wait in waits)
    return inside / (slots * (last - first))


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


def generate(policy: Latent, count: int, keys: dict[str, object]) -> float:
    """Seconds that `count` trees took, journal and all."""
    config = load_config(GenerateConfig, None, {"search.rollouts": 8, "search.hopeless": None, **keys})

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[OpenAgent]:
        environment = make_environment(load_profile("transcript"), Shelf(), config.episode)
        yield OpenAgent(environment, Model(policy, Gate(config.policy)))

    with tempfile.TemporaryDirectory() as folder, open_run(f"{folder}/r", "generate", identity={}, config={}) as run:
        start = time.perf_counter()
        asyncio.run(search_all(run, questions(count), config, opened()))
        return time.perf_counter() - start


async def grown(nodes: int) -> tuple[int, float]:
    """A tree of about so many nodes, and the seconds it took."""
    keys = {
        "search.rollouts": 10**9,
        "search.children": 6,
        "episode.depth": 25,
        "search.hopeless": None,
        "search.wave": 1,
    }
    config = load_config(GenerateConfig, None, keys)
    searcher = make_searcher(Environment(load_profile("transcript"), Shelf(), 3, 25), Latent(), None, config)
    growth = root_only(questions(1)[0], searcher.environment)
    start = time.perf_counter()
    while len(growth.nodes) < nodes and not growth.root.closed:
        await run_wave(growth, searcher)
    return len(growth.nodes), time.perf_counter() - start


def expansions(trees: int) -> str:
    policy, start = Latent(), time.process_time()
    seconds = generate(policy, trees, {"policy.concurrency": 64})
    core = (time.process_time() - start) / seconds
    return f"{policy.calls / seconds:,.0f} a second with journal and trees on disk ({core:.0%} of a core)"


def growing(_: int) -> str:
    grew = [asyncio.run(grown(size)) for size in (100, 10_000, 100_000)]
    return ", ".join(f"{nodes:,} nodes {1e6 * seconds / nodes:.0f} µs a node" for nodes, seconds in grew)


def slots(trees: int, shortest: float, longest: float) -> str:
    policy, start = Latent(shortest, longest), time.perf_counter()
    seconds = generate(policy, trees, {"policy.concurrency": 64})
    whole = share(policy.waits, 64, start, start + seconds)
    middle = share(policy.waits, 64, start + seconds / 8, start + seconds * 6 / 8)
    return f"{whole:.1%} of the possible calls, in the middle {middle:.1%} ({policy.calls} calls)"


PARTS: dict[str, Callable[[int], str]] = {
    "expansions": expansions,
    "growing": growing,
    "fixed": partial(slots, shortest=0.2, longest=0.2),
    "mixed": partial(slots, shortest=0.05, longest=0.8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=300, help="trees of each measurement [300]")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure [all]")
    given = parser.parse_args()
    for part in given.parts:
        sys.stdout.write(f"{part:<12}{PARTS[part](given.trees)}\n")
        sys.stdout.flush()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"{'memory':<12}{resident:.0f} MiB resident at most\n")


if __name__ == "__main__":
    main()
