"""Endpoints that mean harm: endless, slow, packed, redirecting, repeating the key that they were sent, or
failing four calls in ten in every way that endpoints do.
"""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import json
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from data_generation.config import GenerateConfig
from indexes.retrieval.remote import RemoteRetriever
from steprag.agent.judge import VerdictFormat
from steprag.agent.open import open_agent
from steprag.config.load import load_config
from steprag.config.sections import PolicyConfig, RetrieverConfig
from steprag.errors import ConfigError, PolicyError, PolicyUnavailable, RetrieverError
from steprag.net import bounded_http
from steprag.net.bounded_http import _begun, without
from steprag.net.hosts import checked_url
from steprag.policy.client import OpenAIPolicy
from steprag.policy.refusals import ProviderProblem
from steprag.policy.streams import ChunkedReply
from steprag.records.jsonl import read_records
from steprag.runs.run import read_manifest
from steprag.tree import Failure, Tree
from steprag.types import Message, Passage, Question
from tests.fakes import QUESTION, DictRetriever, Endpoint, Replying, beginner, chat_reply, listening
from tests.levels import SEED, rounds
from tests.test_journal import generate_with

KEY = "sk-canary-0123456789abcdef"
Answer = Callable[[Replying], None]


@contextmanager
def endpoint(answer: Answer) -> Iterator[str]:
    """A server whose every POST, and every GET but `/health`, is answered by `answer`."""

    class Harmful(Replying):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.given()
            self.close_connection = True
            try:
                answer(self)
            except (BrokenPipeError, ConnectionResetError):  # the client has had enough
                return

        def do_GET(self) -> None:
            if self.path == "/health":
                self.reply({"fingerprint": "f", "mode": "dense"})
            else:
                self.do_POST()

    with listening(Harmful) as address:
        yield address


def writing(piece: bytes, pause: float = 0.0) -> Answer:
    """Sends a head without a length, and then a piece after a pause for as long as anybody listens."""

    def answer(handler: Replying) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(piece)
            time.sleep(pause)

    return answer


def bomb(handler: Replying) -> None:
    handler.reply(gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip")


def asked(address: str, timeout: float = 20.0, engine: Any = "openai") -> None:
    config = PolicyConfig(engine=engine, model="m", base_url=f"{address}/v1", timeout=timeout, retries=0)
    question = (Message(role="user", content="?"),)

    async def ask() -> None:
        async with OpenAIPolicy(config, config.base_url, "m", VerdictFormat()) as policy:
            if engine == "vllm":
                await policy.score(question, "1")
            else:
                await policy.sample(question, ("score",), n=1, seed=0)

    asyncio.run(ask())


def scored(address: str) -> None:
    asked(address, engine="vllm")


def searched(address: str, timeout: float = 20.0) -> None:
    retriever = RemoteRetriever(address, RetrieverConfig(timeout=timeout, retries=0))

    async def search() -> None:
        try:
            await retriever.search("q", 3)
        finally:
            await retriever.aclose()

    asyncio.run(search())


@pytest.mark.parametrize("use", [asked, searched])
def test_replies_are_bounded_in_bytes_and_time(use: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "REPLY_BYTES", 1 << 20)
    for answer, timeout, problem in ((writing(b" " * 65536), 20.0, "more than 1,048,576 bytes"),
                                     (bomb, 20.0, "packed reply"),
                                     (writing(b" ", 0.1), 0.5, "no whole reply within 0.5 s")):  # fmt: skip
        with endpoint(answer) as address, pytest.raises((PolicyError, RetrieverError), match=problem):
            use(address, timeout)


def test_redirects_are_not_followed() -> None:
    def redirect(handler: Replying) -> None:
        handler.reply(b"", 307, Location="http://127.0.0.1:9/v1")

    with endpoint(redirect) as address, pytest.raises(PolicyUnavailable, match=r"redirects, .*base_url \(307"):
        asked(address)


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_a_key_that_an_endpoint_repeats_is_not_shown(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", KEY)

    def echo(handler: Replying) -> None:
        said = f"bad key {handler.headers['Authorization']}, {handler.headers['Accept-Encoding']}"
        handler.reply({"error": {"message": said}, "detail": said}, status)

    with endpoint(echo) as address:
        for use in (asked, searched):
            told = r"bad key Bearer \[key\], identity"  # nothing packed is asked for
            with pytest.raises((PolicyError, PolicyUnavailable, RetrieverError), match=told) as it:
                use(address)
            assert KEY not in str(it.value)


def test_a_key_in_pieces_is_found() -> None:
    async def read(cuts: tuple[int, ...]) -> bytes:
        said = f"a {KEY} b {KEY[:9]} c {KEY}{KEY}".encode()
        places = (0, *cuts, len(said))

        async def pieces() -> AsyncIterator[bytes]:
            for start, end in pairwise(places):
                yield said[start:end]

        return b"".join([part async for part in without(KEY.encode(), pieces())])

    wanted = f"a [key] b {KEY[:9]} c [key][key]".encode()
    for cut in range(1, 80):
        assert asyncio.run(read((cut,))) == wanted
    assert asyncio.run(read(tuple(range(1, 80)))) == wanted
    assert _begun(b"xx sk-can", KEY.encode()) == 6


def test_passages_that_nobody_asked_for_are_cut_and_scores_are_finite() -> None:
    def reply(score: str, count: int) -> Answer:
        item = f'{{"document": {{"id": "a", "title": "t", "text": "x"}}, "score": {score}}}'
        return lambda handler: handler.reply(f'{{"result": [[{",".join([item] * count)}]]}}'.encode())

    with endpoint(reply("1.5", 500)) as address:
        retriever = RemoteRetriever(address, RetrieverConfig(retries=0))
        assert len(asyncio.run(retriever.search("q", 3))) == 3
    for score in ("NaN", "1e999", "-1e999", "1" + "0" * 400, '"x"', "true", "null"):
        with endpoint(reply(score, 1)) as address:
            (found,) = asyncio.run(RemoteRetriever(address, RetrieverConfig(retries=0)).search("q", 3))
        assert found == Passage("a", "t", "x", None)
    for score in ("9" * 5000, "[" * 90_000):
        with endpoint(reply(score, 1)) as address, pytest.raises(RetrieverError, match="not Search-R1's"):
            searched(address)


@pytest.mark.parametrize("value", ["²³", "99999999999999999999", "-1", "soon"])
def test_odd_waits_are_no_crash(value: str) -> None:
    def busy(handler: Replying) -> None:
        handler.reply(b"no", 429, Content_Type="text/plain; charset=hex", Retry_After=value.encode().decode("latin-1"))

    with endpoint(busy) as address, pytest.raises(RetrieverError, match="429 no"):
        searched(address)


@pytest.mark.parametrize("url", [
    "http://me:secret@host/v1", "https://secret@host/v1", "http://host/v1?key=secret", "http://host/#secret",
    "ftp://secret/", "http://", "host:8000/secret", "http://ho\x00st/secret", "http://[secret/", "http://h:99999/secret",
])  # fmt: skip
def test_addresses_with_keys_in_them_are_refused_without_saying_them(url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as refused:
        checked_url(url, "base_url")
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError) as told:
        load_config(GenerateConfig, None, {"policy.base_url": url, "policy.engine": "openai"})
    assert "secret" not in str(told.value)
    if url.startswith("http"):
        with pytest.raises(ConfigError) as told:
            RemoteRetriever(url, RetrieverConfig())
        assert "secret" not in str(told.value)


PROXIES = [f(name) for name in ("http_proxy", "https_proxy", "all_proxy") for f in (str.lower, str.upper)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_is_not_asked_for_this_machine(host: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: Replying) -> None:
        handler.reply({"error": {"message": "here I am"}, "detail": "here I am"}, 400)

    for name in PROXIES:
        monkeypatch.setenv(name, f"{scheme}://127.0.0.1:9")  # where nobody listens
    with endpoint(refuse) as address:
        own = address.replace("127.0.0.1", host)
        for use in (asked, scored, searched):
            with pytest.raises((PolicyError, RetrieverError), match="here I am"):
                use(own)


def test_a_proxy_is_asked_for_other_machines_unless_no_proxy_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: Replying) -> None:
        handler.reply({"error": {"message": "by way of the proxy"}}, 400)

    with endpoint(refuse) as address:
        monkeypatch.setenv("http_proxy", address)
        with pytest.raises(PolicyError, match="by way of the proxy"):
            asked("http://model.invalid:8000")
        monkeypatch.setenv("no_proxy", "model.invalid")
        with pytest.raises(PolicyUnavailable, match="nothing answers"):
            asked("http://model.invalid:8000")


SHARE = 0.4
FAULTS = ("busy", "error", "reset", "stalled", "truncated", "broken", "nested", "not_utf8", "garbage", "no_http",
          "no_choices", "wrong_types")  # fmt: skip


def odd(fault: str, body: bytes) -> object:
    """A body that says it is JSON, and is none or is no completion."""
    return {
        "broken": body[: len(body) // 2],
        "nested": b"[" * 100_000,
        "not_utf8": b'{"a": "\xff\xfe"}',
        "no_choices": {**json.loads(body), "choices": []},
        "wrong_types": {"choices": [{"message": 7}], "usage": "none"},
    }[fault]


class Faulty(Replying):
    """Answers like `chat_reply`, but for a share of requests that it picks by lot. `stall`: seconds, longer than the
    client waits, by as much as a busy machine may be late.
    """

    protocol_version = "HTTP/1.1"
    rng, share, stall = random.Random(5), SHARE, 5.0
    answer = staticmethod(chat_reply(beginner))
    seen: Counter[str]

    def note(self, request: dict[str, Any], fault: str) -> None:
        """Told of each request before it is answered."""
        self.seen[fault] += 1

    def do_GET(self) -> None:
        self.reply({"object": "list", "data": [{"id": "double", "object": "model"}]})

    def do_POST(self) -> None:
        request = json.loads(self.given())
        fault = self.rng.choice(FAULTS) if self.rng.random() < self.share else "none"
        self.note(request, fault)
        status, said = self.answer(request)
        body = json.dumps(said).encode()
        match fault:
            case "busy":
                self.reply({"error": {"message": "slow down"}}, 429, Retry_After="0.05")
            case "error":
                self.reply({"error": {"message": "oops"}}, 500)
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.close_connection = True
                self.connection.close()
            case "stalled":
                time.sleep(self.stall)
                self.reply(body)
            case "truncated" | "no_http":
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                half = head.encode() + body[: len(body) // 2]
                self.wfile.write(half if fault == "truncated" else b"220 mail.example ESMTP\r\n\r\n")
                self.close_connection = True
            case "garbage":
                self.reply(b"<html>bad gateway</html>", Content_Type="text/html")
            case "broken" | "nested" | "not_utf8" | "no_choices" | "wrong_types":
                self.reply(odd(fault, body))
            case _:
                self.reply(body, status)

    def reply(self, body: object, status: int = 200, **headers: str) -> None:
        try:
            super().reply(body, status, **{"Content_Type": "application/json", **headers})
        except (BrokenPipeError, ConnectionResetError):  # the client gave up waiting
            self.close_connection = True


class Resetting(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Resets are ours."""


@contextmanager
def faulty() -> Iterator[tuple[Endpoint, Counter[str]]]:
    seen: Counter[str] = Counter()
    handler = type("Handler", (Faulty,), {"seen": seen, "rng": random.Random(SEED)})
    with listening(handler, Resetting) as address:
        yield Endpoint(f"{address}/v1", []), seen


@pytest.mark.timeout(900)
def test_faults_are_data(tmp_path: Path) -> None:
    """No crash; every question is finished or has a typed reason; what fails is no reward of zero."""
    calls, retries = rounds(150, 2_000, 10_000), rounds(1, 4, 4)
    out = tmp_path / "run"
    questions = [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(calls // 5)]
    with faulty() as (endpoint, seen):
        keys = {
            "policy.engine": "openai", "policy.model": "double", "policy.base_url": endpoint.url, "policy.timeout": 4,
            "policy.retries": retries, "policy.concurrency": 32,
        }  # fmt: skip
        config = load_config(GenerateConfig, None, keys)
        generate_with(out, open_agent(config, DictRetriever()), keys, questions)
        assert sum(seen.values()) >= calls
        assert set(FAULTS) < set(seen)
        done = [tree.question.id for tree in read_records(out / "trees.jsonl", Tree)]
        failed = list(read_records(out / "failures.jsonl", Failure))
        assert sorted([*done, *(failure.id for failure in failed)]) == sorted(q.id for q in questions)
        assert {failure.reason for failure in failed} <= {"PolicyError"}
        assert all(failure.detail for failure in failed)
        for tree in read_records(out / "trees.jsonl", Tree):
            assert all((node.prediction_f1 is None) == (node.action != "answer") for node in tree.nodes)
        manifest = read_manifest(out)
        assert manifest["spent"]["calls"] == seen["none"] + _read_late(seen, manifest)


class Leaving(Faulty):
    """Answers ten requests; then nothing listens there any more."""

    def do_POST(self) -> None:
        request = json.loads(self.given())
        self.seen["none"] += 1
        if self.seen["none"] <= 10:
            self.reply(chat_reply(beginner)(request)[1])
            return
        self.close_connection = True
        if self.seen["none"] == 11:
            self.server.shutdown()
            self.server.server_close()


def test_an_endpoint_that_goes_away_ends_the_run_and_costs_no_question(tmp_path: Path) -> None:
    questions = [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(20)]
    handler = type("Handler", (Leaving,), {"seen": Counter()})
    with listening(handler) as address:
        keys = {"policy.engine": "openai", "policy.model": "double", "policy.base_url": f"{address}/v1",
                "policy.retries": 2, "policy.concurrency": 4}  # fmt: skip
        config = load_config(GenerateConfig, None, keys)
        with pytest.raises(PolicyUnavailable, match=f"double at {address}/v1: nothing answers .*Cannot connect"):
            generate_with(tmp_path / "run", open_agent(config, DictRetriever()), keys, questions)
    assert read_manifest(tmp_path / "run")["spent"]["calls"] == 10
    assert not (tmp_path / "run" / "failures.jsonl").read_text()


def _read_late(seen: Counter[str], manifest: dict[str, dict[str, int]]) -> int:
    """Stalled replies may come just in time: no more than there were."""
    late = manifest["spent"]["calls"] - seen["none"]
    return late if 0 <= late <= seen["stalled"] else -1


@pytest.mark.parametrize(("told", "least", "most"), [
    ("7", 7, 7), ("Mon, 01 Jan 99999 00:00:00 GMT", 0.3, 0.5), ("Mon, 01 Jan 999999999999999 00:00:00 GMT", 0.3, 0.5),
    ("soon", 0.3, 0.5), ("nan", 0.3, 0.5), ("-3", 0.3, 0.5), ("9999999", 0.3, 0.5),
    ("3s", 3, 3), ("90", 90, 90), (" 1.5 ", 1.5, 1.5), ("2 minutes", 120, 120), ("1m30s", 90, 90), ("6ms", 0, 0.01),
    ({"retry-after-ms": "250", "Retry-After": "7"}, 0.25, 0.25), ({"retry-after-ms": "x", "retry-after": "7"}, 7, 7),
    ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-remaining-requests": "0",
      "x-ratelimit-reset-tokens": "8m", "x-ratelimit-remaining-tokens": "70"}, 90, 90),
    ({"x-ratelimit-reset-requests": "6ms"}, 0.006, 0.006),
    ({"X-RateLimit-Reset": "1, 1400000", "X-RateLimit-Remaining": "0, 1999"}, 1, 1),
])  # fmt: skip
def test_how_long_an_endpoint_may_ask_to_wait(told: str | dict[str, str], least: float, most: float) -> None:
    headers = {"Retry-After": told} if isinstance(told, str) else told
    assert least <= bounded_http.pause(0, headers) <= most


def test_an_endpoint_may_name_the_moment_to_wait_for() -> None:
    moment = time.time() + 60
    iso = datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    for headers in (
        {"Retry-After": email.utils.formatdate(moment, usegmt=True)},
        {"X-RateLimit-Reset": f"{moment:.0f}"}, {"X-RateLimit-Reset": f"{1000 * moment:.0f}"},
        {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": iso},
    ):  # fmt: skip
        assert 30 < bounded_http.pause(0, headers) < 62, headers


@pytest.mark.parametrize(("words", "seconds"), [
    ("Quota exceeded for metric. Please retry in 39.4s.", 39.4), ("Please try again after 1 seconds", 1.0),
    ("Please retry after 10 seconds.", 10.0), ("Please try again in 6ms", 0.0), ("try again in 5m3s", 0.0), ("no", 0.0),
])  # fmt: skip
def test_what_its_words_ask_for_without_a_header(words: str, seconds: float) -> None:
    assert ProviderProblem(429, words).wait == seconds
    assert bounded_http.pause(0, {"Retry-After": "7"}, seconds) == 7
    assert not seconds or bounded_http.pause(0, {}, seconds) == seconds


@pytest.mark.parametrize("call", [
    {"index": [1], "function": {"name": "a", "arguments": "{}"}}, {"index": None, "function": {"name": "a"}},
    {"index": 0, "function": {"name": "a", "arguments": {"q": 1}}}, {"index": 0, "function": {"name": 7}}, 3,
])  # fmt: skip
def test_odd_pieces_of_tool_calls_are_read_or_refused(call: object) -> None:
    chunks = ChunkedReply()
    try:
        for at in (0, 1):
            chunks.add({"choices": [{"index": 0, "delta": {"tool_calls": [call, {"index": at, "function": {}}]}}]})
        chunks.reply()
    except ValueError as error:
        assert "tool" in str(error)
