"""The chat service beside the agent without it, on an engine of fixed speed: what does the service add?

    python benchmarks/serve_load.py --index DIR [--clients 1 16 64] [--turns 64] [--slots 8] [--token_ms 5]
    python benchmarks/serve_load.py --index DIR --clients 1 --token_ms 0.2 --conversations 1000 1000 1000

The engine is a double that writes a token every `token_ms` on each of `slots` slots, so the engine's limit is known and
the machine's noise is not the engine's. "Bare" plays the same questions in this process, as `steprag infer` does,
without streaming. "Service" asks a service in a process of its own by its turns API, and follows the events. Both take
turns, and the ratio is of rounds side by side. First event and first token are seconds from the request. With
`--conversations`, so many are begun by 64 clients, once for each number, and the service's memory is read behind each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from apps.chat.config import ChatConfig
from indexes import open_retriever
from inference.inference import answer_one
from steprag.agent.checkpoints import checked_profile
from steprag.agent.open import make_environment, open_agent
from steprag.batch.journal import Journal
from steprag.config.load import load_config
from steprag.engines.launch import free_port
from steprag.types import Question

TOKEN = "a-token-of-the-benchmark"
STEPS = (
    "I need one fact. So the next query is <query> capital of Albania </query>",
    "Based on the query, the relevant evidence is <evidence> Tirana is the capital of Albania </evidence>",
    "That is it. So the answer is <answer> Tirana </answer>",
)
ROUNDS = 3


def capital(messages: list[dict[str, str]]) -> str:
    """The next of the steps."""
    prompt = messages[-1]["content"]
    return STEPS[min(prompt.count("<query>") + prompt.count("<evidence>"), 2)]


def engine(port: int, slots: int, token_ms: float, say: Callable[[list[dict[str, str]]], str] = capital) -> None:
    """Serves the double until it is killed; `say` makes its replies."""
    free = asyncio.Semaphore(slots)

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = say(body["messages"])
        words = [word if not place else f" {word}" for place, word in enumerate(text.split(" "))]
        usage = {"prompt_tokens": 100, "completion_tokens": len(words), "total_tokens": 100 + len(words)}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "double"}
        async with free:
            if not body.get("stream"):
                await asyncio.sleep(len(words) * token_ms / 1000)
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                return web.json_response({**head, "choices": [choice], "usage": usage})
            reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            with suppress(ConnectionResetError):  # the client left
                await reply.prepare(request)
                start = time.perf_counter()
                for place, word in enumerate(words, 1):
                    await asyncio.sleep(max(0.0, start + place * token_ms / 1000 - time.perf_counter()))
                    choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                    await reply.write(f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode())
                last = {"index": 0, "delta": {}, "finish_reason": "stop"}
                await reply.write(f"data: {json.dumps({**head, 'choices': [last], 'usage': usage})}\n\n".encode())
                await reply.write(b"data: [DONE]\n\n")
            return reply

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "double"}]})

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", complete), web.get("/v1/models", models)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


@contextmanager
def apart(target: Callable[..., None], *given: Any) -> Iterator[int]:
    """Has `target(port, *given)` serve a double in a process of its own; the port."""
    port = free_port("127.0.0.1")
    process = multiprocessing.get_context("spawn").Process(target=target, args=(port, *given), daemon=True)
    process.start()
    try:
        yield port
    finally:
        process.kill()
        process.join()


def asking(address: str, concurrency: int) -> dict[str, str]:
    """Keys that have a policy ask a double."""
    return {"policy.base_url": f"{address}/v1", "policy.model": "double", "policy.engine": "openai",
            "policy.concurrency": str(concurrency)}  # fmt: skip


def as_options(keys: dict[str, str]) -> list[str]:
    return [part for key, value in keys.items() for part in (f"--{key}", value)]


async def bare(index: str, options: dict[str, Any], questions: list[str], clients: int) -> float:
    """Seconds for all questions, `clients` at once, without the service."""
    config = load_config(ChatConfig, None, options)
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        environment = make_environment(checked_profile(config.prompt, config.policy), retriever, config.episode)
        with tempfile.TemporaryDirectory() as folder:
            async with (
                open_agent(config, retriever, environment=environment) as agent,
                Journal(Path(folder) / "calls.sqlite") as journal,
            ):
                gate, start = asyncio.Semaphore(clients), time.perf_counter()

                async def one(place: int, text: str) -> None:
                    question = Question(str(place), text, ())
                    mine = journal.question(question).agent(agent)
                    async with gate:
                        await answer_one(question, 0, mine.environment, mine.policy.policy)

                await asyncio.gather(*(one(place, text) for place, text in enumerate(questions)))
                return time.perf_counter() - start


async def served(url: str, questions: list[str], clients: int) -> tuple[float, list[float], list[float]]:
    """Seconds for all questions by so many clients; seconds to each turn's first event and first token."""
    firsts, tokens, rest = [], [], list(questions)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:

        async def client() -> None:
            while rest:
                question, start = rest.pop(), time.perf_counter()
                async with session.post(f"{url}/api/turns", json={"question": question}) as reply:
                    turn = (await reply.json())["turn"]
                seen = heard = False
                async with session.get(f"{url}/api/turns/{turn}/events") as events:
                    async for line in events.content:
                        if not seen and line.startswith(b"data"):
                            seen = True
                            firsts.append(time.perf_counter() - start)
                        if not heard and b'"step.delta"' in line:
                            heard = True
                            tokens.append(time.perf_counter() - start)

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return time.perf_counter() - start, firsts, tokens


def p95(values: list[float]) -> float:
    return sorted(values)[max(0, int(0.95 * len(values)) - 1)]


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def resident(pid: int) -> float:
    """MiB of memory that a process holds; 0 of one that is gone."""
    file, lines = Path(f"/proc/{pid}/status"), list[str]()
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = file.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


async def listed(url: str) -> tuple[float, int]:
    """Seconds of the list of conversations, and how many it has."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        start = time.perf_counter()
        async with session.get(f"{url}/api/conversations") as reply:
            rows = (await reply.json())["conversations"]
        return time.perf_counter() - start, len(rows)


def remember(url: str, pid: int, counts: list[int]) -> None:
    """Begins conversations, and shows what the service holds of them."""
    show(f"memory before: {resident(pid):.0f} MiB")
    for place, count in enumerate(counts):
        asyncio.run(served(url, [f"What is the capital of country {place} of {n}?" for n in range(count)], 64))
        seconds, rows = asyncio.run(listed(url))
        show(f"{count} more conversations: {resident(pid):.0f} MiB, {rows} listed in {1000 * seconds:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--token_ms", type=float, default=5.0)
    parser.add_argument("--conversations", type=int, nargs="*", default=[])
    given = parser.parse_args()
    words = sum(len(text.split(" ")) for text in STEPS)
    show(f"engine's limit: {given.slots / (words * given.token_ms / 1000):.1f} turns a second")
    with tempfile.TemporaryDirectory() as folder, apart(engine, given.slots, given.token_ms) as port:
        options = asking(f"http://127.0.0.1:{port}", given.slots)
        command = [sys.executable, "-m", "apps.chat.serve", "--index", given.index, "--out", folder,
                   "--serve.port", "0", "--serve.waiting", "1000", *as_options(options)]  # fmt: skip
        env = {**os.environ, "STEPRAG_TOKEN": TOKEN}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as service:
            assert service.stdout
            url = service.stdout.readline().partition("/#")[0]
            show("clients  bare turns/s  served turns/s  ratio  first event p50/p95 ms  first token p50/p95 ms")
            for clients in given.clients:
                alone, through, firsts, tokens = [], [], [], []
                count = max(clients, given.turns if clients > 1 else given.turns // 8)
                for each in range(ROUNDS):
                    questions = [f"What is the capital of country {each} {clients} {n}?" for n in range(count)]
                    alone.append(count / asyncio.run(bare(given.index, options, questions, min(clients, given.slots))))
                    seconds, first, token = asyncio.run(served(url, questions, clients))
                    through.append(count / seconds)
                    firsts += first
                    tokens += token
                limit = statistics.median(alone)
                show(
                    f"{clients:7} {limit:13.1f} {statistics.median(through):15.1f} "
                    f"{statistics.median(through) / limit:6.2f} "
                    f"{1000 * statistics.median(firsts):12.0f} /{1000 * p95(firsts):6.0f} "
                    f"{1000 * statistics.median(tokens):15.0f} /{1000 * p95(tokens):6.0f}"
                )
            if given.conversations:
                remember(url, service.pid, given.conversations)
            service.terminate()


if __name__ == "__main__":
    main()
