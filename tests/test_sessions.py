"""How endpoints are asked: a question's requests carry its name, so that a router sends them to one replica; and what
an endpoint with a rate limit sees in any span of time.
"""

from __future__ import annotations

import asyncio
import selectors
import urllib.request
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from apps.commands import main
from data_generation.config import GenerateConfig
from steprag.config.load import load_config
from steprag.config.sections import PolicyConfig
from steprag.policy.gate import BURST_SECONDS, CHARS_A_TOKEN, Gate
from steprag.records.jsonl import write_records
from steprag.runs.run import read_manifest
from steprag.types import Question, Usage
from tests.fakes import QUESTION, Endpoint, Replying, believing_reply, listening, options, serve

HEADER = "X-Session-ID"
Seen = list[tuple[str | None, int, str]]
"""Session, replica and path of every request."""


@contextmanager
def router(replicas: list[Endpoint]) -> Iterator[tuple[Endpoint, Seen]]:
    """One address before several endpoints. It hashes the session header, and takes turns where there is none."""
    seen: Seen = []

    class Handler(Replying):
        def do_GET(self) -> None:
            self._pass_on(0, None)

        def do_POST(self) -> None:
            session = self.headers.get(HEADER)
            hashed = int(sha256(session.encode()).hexdigest(), 16) if session is not None else len(seen)
            body = self.given()
            seen.append((session, hashed % len(replicas), self.path))
            self._pass_on(hashed % len(replicas), body)

        def _pass_on(self, place: int, body: bytes | None) -> None:
            address = replicas[place].url.removesuffix("/v1") + self.path
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as reply:
                self.reply(reply.read(), Content_Type="application/json")

    with listening(Handler) as address:
        yield Endpoint(f"{address}/v1", []), seen


@pytest.mark.parametrize(("command", "more"), [
    ("generate", ["--search.rollouts", "3", "--search.score", "true", "--policy.engine", "llamacpp"]),
    ("infer", []),
])  # fmt: skip
def test_no_question_meets_two_replicas(world_index: Path, tmp_path: Path, command: str, more: list[str]) -> None:
    """Without the key no request carries a name."""
    file, out = tmp_path / "questions.jsonl", tmp_path / "run"
    names = [f"frage/nº {i}\n" for i in range(9)]
    write_records(file, [Question(name, f"{QUESTION} ({i})", ("lek",)) for i, name in enumerate(names)])
    with ExitStack() as stack:
        replicas = [stack.enter_context(serve(believing_reply())) for _ in range(3)]
        front, seen = stack.enter_context(router(replicas))
        assert main([command, *options(front, file, world_index, tmp_path / "plain", *more)]) == 0
        assert {session for session, _, _ in seen} == {None}
        seen.clear()
        assert main([command, *options(front, file, world_index, out, *more, "--policy.session_header", HEADER)]) == 0
    met: dict[str | None, set[int]] = defaultdict(set)
    asked = [each for each in seen if each[0] is not None]
    for session, replica, _ in asked:
        met[session].add(replica)
    assert {unquote(session or "") for session in met} == set(names)
    assert all(len(places) == 1 for places in met.values())
    assert len({replica for _, replica, _ in asked}) == 3, "the router had nothing to choose"
    assert read_manifest(out)["config"]["policy"]["session_header"] == HEADER
    if command == "infer":
        assert len(asked) == len(seen)
    else:  # one question checks that the endpoint can score, before any tree grows
        assert {path for session, _, path in seen if session is None} <= {"/tokenize", "/v1/chat/completions"}


@pytest.mark.parametrize(("key", "value"), [("session_header", "a: b"), ("replica_header", "X")])
def test_a_header_that_is_none_and_a_key_that_is_gone_are_refused(
    key: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["infer", "--index", "i", "--out", "o", "--questions", "q", f"--policy.{key}", value]) == 2
    assert key in capsys.readouterr().err
    earlier = {"policy": {key: None}, "retriever": {"cache": None}}
    assert load_config(GenerateConfig, None, {}, earlier) == GenerateConfig(), "as earlier runs said"


class SkippingSelector(selectors.DefaultSelector):
    """Does not wait: it moves the loop's clock on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 1e-6  # a clock never stands still
        return super().select(0)


def in_no_time(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` on a loop whose clock jumps to the next timer, so that a minute takes no time."""
    selector = SkippingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def ask(gate: Gate, log: list[tuple[float, int]], prompt: int, usage: Usage) -> None:
    async with gate.turn(prompt * CHARS_A_TOKEN):
        log.append((asyncio.get_running_loop().time(), usage.prompt_tokens + usage.completion_tokens))
        await asyncio.sleep(0.2)
        gate.settle(prompt * CHARS_A_TOKEN, usage)


def most_in_a_minute(log: list[tuple[float, int]]) -> int:
    """The most in any span of sixty seconds."""
    return max(sum(amount for at, amount in log if start <= at < start + 60) for start, _ in log)


@pytest.mark.parametrize(("limit", "concurrency"), [(60, 64), (600, 8), (30, 1)])
def test_requests_a_minute(limit: int, concurrency: int) -> None:
    log: list[tuple[float, int]] = []

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=concurrency, rate={"requests": limit}))  # type: ignore[arg-type]
        await asyncio.gather(*(ask(gate, log, 10, Usage(1, 10, 5)) for _ in range(3 * limit)))

    in_no_time(run())
    assert len(log) == 3 * limit
    assert most_in_a_minute([(at, 1) for at, _ in log]) <= limit + max(1, limit * BURST_SECONDS / 60)
    assert log[-1][0] == pytest.approx(180, rel=0.05)  # and no slower than allowed


@pytest.mark.parametrize("completion", [0, 30, 400])
def test_tokens_a_minute_count_what_was_really_used(completion: int) -> None:
    """Completions are not known beforehand and single requests are larger than a second's share."""
    log: list[tuple[float, int]] = []
    limit = 6_000

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=4, rate={"tokens": limit}))  # type: ignore[arg-type]
        await asyncio.gather(*(ask(gate, log, 300, Usage(1, 330, completion)) for _ in range(100)))

    in_no_time(run())
    assert most_in_a_minute(log) <= limit + 4 * (330 + completion)
    assert log[-1][0] == pytest.approx(100 * (330 + completion) / limit * 60, rel=0.1)


def test_a_guess_that_was_too_high_is_given_back() -> None:
    log: list[tuple[float, int]] = []

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=1, rate={"tokens": 6_000}))  # type: ignore[arg-type]
        await asyncio.gather(*(ask(gate, log, 1_000, Usage(1, 100, 0)) for _ in range(100)))

    in_no_time(run())
    assert log[-1][0] < 130  # 100 tokens each are 100 s; the guesses would be 1,000 s


def test_slots_bound_the_requests_in_flight() -> None:
    inside = most = 0

    async def one(gate: Gate) -> None:
        nonlocal inside, most
        async with gate.turn(0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    async def run() -> None:
        gate = Gate(PolicyConfig(concurrency=3))
        await asyncio.gather(*(one(gate) for _ in range(20)))

    in_no_time(run())
    assert most == 3
