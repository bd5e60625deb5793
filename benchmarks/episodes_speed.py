"""Inference against latencies of 50 to 800 ms, 64 requests allowed at once: episodes on their own against lock-step.

    python benchmarks/episodes_speed.py [--questions 640] [--memory 1000 10000 100000]

"lock-step" plays 64 questions at a time and makes all of them wait for the slowest before the next step, as batch loops
do. "steprag" is what `steprag infer` does, journal and predictions on disk included. Both ask, with `steprag`'s own
client, an HTTP endpoint in another process that writes the scripted steps of `search_speed.py`: the same seeds and so
the same episodes. Shares are of what 64 slots could have answered, by the endpoint's own times; the retriever answers
at once. `--memory` runs so many questions without endpoint and latency, a process each, and prints what was resident at
most, scores and intervals included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import re
import resource
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
from search_speed import Latent, Shelf, questions, share, step

from inference.config import InferConfig
from inference.evaluate import evaluate
from inference.inference import answer_all
from steprag.agent.environment import Environment
from steprag.agent.open import Agent, make_environment, open_agent
from steprag.agent.profiles import load_profile
from steprag.config import load_config
from steprag.errors import StepFormatError
from steprag.policy.client import Model, open_policy
from steprag.policy.gate import Gate
from steprag.policy.protocols import Policy
from steprag.runs import open_run
from steprag.types import Message, Question, Sample

AT_ONCE = 64


class Varied(Latent):
    """Draws by prompt as well: all questions are sampled with the same seeds."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        prompt = "".join(message["content"] for message in messages)
        return await super().sample(messages, allowed, n=n, seed=zlib.crc32(f"{seed} {prompt}".encode()))


def draw(request: dict[str, Any]) -> tuple[str, random.Random]:
    """The step that answers a request, and the generator that goes on to draw its latency."""
    rng = random.Random(zlib.crc32(f"{request['seed']} {request['messages']}".encode()))
    allowed = re.findall(r"^(\w+) ::= .*</", request["structured_outputs"]["grammar"], re.MULTILINE)
    return step(tuple(allowed), rng), rng


def endpoint(port: int, shortest: float, longest: float) -> None:
    """Serves until it is killed: an OpenAI-compatible endpoint, and the times of its requests at /waits."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    waits: list[tuple[float, float]] = []

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0}]})

    async def chat(request: Request) -> JSONResponse:
        text, rng = draw(await request.json())
        waits.append((time.perf_counter(), rng.uniform(shortest, longest)))
        await asyncio.sleep(waits[-1][1])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440}
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": "scripted",
                             "choices": [choice], "usage": usage})  # fmt: skip

    async def taken(_: Request) -> JSONResponse:
        return JSONResponse(waits)

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])]
    app = Starlette(routes=[*routes, Route("/waits", taken)])
    uvicorn.run(app, port=port, log_level="error", timeout_keep_alive=60)


@contextlib.contextmanager
def serving(shortest: float, longest: float) -> Iterator[str]:
    """The endpoint in a process of its own; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=endpoint, args=(port, shortest, longest))
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            with contextlib.suppress(httpx2.HTTPError):
                httpx2.get(f"{url}/v1/models")
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.join()


def config_of(url: str | None) -> InferConfig:
    there = {"policy.base_url": f"{url}/v1", "policy.model": "scripted", "policy.engine": "vllm"} if url else {}
    return load_config(InferConfig, None, {"policy.concurrency": AT_ONCE, **there})


def on_their_own(count: int, url: str | None) -> float:
    """Seconds of `steprag infer` over so many questions; of the policy in this process where there is no `url`."""
    config = config_of(url)

    @contextlib.asynccontextmanager
    async def here() -> AsyncIterator[Agent]:
        environment = make_environment(load_profile("transcript"), Shelf(), config.episode)
        yield Agent(environment, Model(Varied(), Gate(config.policy)))

    opened = open_agent(config, Shelf()) if url else here()
    with tempfile.TemporaryDirectory() as folder, open_run(f"{folder}/r", "infer", identity={}, config={}) as run:
        start = time.perf_counter()
        asyncio.run(answer_all(run, questions(count), config, opened))
        seconds = time.perf_counter() - start
        evaluate(run.path)
        return seconds


async def lock_step(count: int, url: str) -> float:
    """Seconds of the batch loop over the same questions."""
    profile, asked = load_profile("transcript"), questions(count)
    environment = Environment(profile, Shelf(), 3, 7)
    start = time.perf_counter()
    async with open_policy(config_of(url).policy, profile.grammar) as policy:
        for first in range(0, count, AT_ONCE):
            await play_batch(environment, policy, asked[first : first + AT_ONCE])
    return time.perf_counter() - start


async def play_batch(environment: Environment, policy: Policy, asked: list[Question]) -> None:
    states = [environment.start(question.question) for question in asked]
    while states:
        shown = [environment.observe(state) for state in states]
        samples = await asyncio.gather(
            *(policy.sample(seen.messages, seen.allowed, n=1, seed=len(state.steps))
              for seen, state in zip(shown, states, strict=True))
        )  # fmt: skip
        left = []
        for state, sample in zip(states, samples, strict=True):
            with contextlib.suppress(StepFormatError):
                after = await environment.apply(state, environment.parse(state, sample.completions[0]))
                left += [] if environment.ended(after) else [after]
        states = left


def peak(count: int) -> float:
    """Resident MiB at most in a run over so many questions."""
    on_their_own(count, None)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=640)
    parser.add_argument("--memory", type=int, nargs="+", default=[], help="numbers of questions")
    given = parser.parse_args()
    for count in given.memory:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            sys.stdout.write(f"memory      {count:>7,} questions: {pool.apply(peak, (count,)):.0f} MiB\n")
        sys.stdout.flush()
    with serving(0.05, 0.8) as url:
        start = time.perf_counter()
        locked = asyncio.run(lock_step(given.questions, url))
        between = time.perf_counter()
        free = on_their_own(given.questions, url)
        waits = httpx2.get(f"{url}/waits").json()
    for name, begun, seconds in (("lock-step", start, locked), ("steprag", between, free)):
        calls = sum(begun <= at < begun + seconds for at, _ in waits)
        rate = f"{given.questions / seconds:.1f} questions a second, {calls} calls"
        sys.stdout.write(
            f"{name:<12}{rate}, {share(waits, AT_ONCE, begun, begun + seconds):.1%} of the possible calls\n"
        )
    middle = share(waits, AT_ONCE, between + free / 8, between + free * 6 / 8)
    sys.stdout.write(f"{'':<12}{locked / free:.2f} times lock-step; in the middle of the run {middle:.1%}\n")


if __name__ == "__main__":
    main()
