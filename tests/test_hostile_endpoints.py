"""Endpoints that mean harm: endless, slow, packed, redirecting, and repeating the key that they were sent."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx2
import pytest

from data_generation.config import GenerateConfig
from indexes.retrieval.remote import RemoteRetriever
from steprag.agent.judge import ScoreFormat
from steprag.config.load import load_config
from steprag.config.sections import PolicyConfig, RetrieverConfig
from steprag.errors import ConfigError, PolicyError, PolicyUnavailable, RetrieverError
from steprag.net import bounded_http
from steprag.net.bounded_http import BoundedClient, _begun, checked_url
from steprag.policy.client import OpenAIPolicy
from steprag.types import Message
from tests.fakes import listening

KEY = "sk-canary-0123456789abcdef"
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def endpoint(answer: Answer) -> Iterator[str]:
    """A server whose every POST, and every GET but `/health`, is answered by `answer`."""

    class Harmful(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.close_connection = True
            try:
                answer(self)
            except (BrokenPipeError, ConnectionResetError):  # the client has had enough
                return

        def do_GET(self) -> None:
            if self.path == "/health":
                send(self, b'{"fingerprint": "f", "mode": "dense"}')
            else:
                self.do_POST()

    with listening(Harmful) as address:
        yield address


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        time.sleep(0.1)


def bomb(handler: BaseHTTPRequestHandler) -> None:
    send(handler, gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip")


def redirect(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"", 307, Location="http://127.0.0.1:9/v1")


def asked(address: str, timeout: float = 20.0) -> None:
    config = PolicyConfig(engine="openai", model="m", base_url=f"{address}/v1", timeout=timeout, retries=0)

    async def ask() -> None:
        async with OpenAIPolicy(config, config.base_url, "m", ScoreFormat()) as policy:
            await policy.sample((Message(role="user", content="?"),), ("score",), n=1, seed=0)

    asyncio.run(ask())


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
    for answer, timeout, problem in ((endless, 20.0, "more than 1,048,576 bytes"), (bomb, 20.0, "packed reply"),
                                     (trickle, 0.5, "no whole reply within 0.5 s")):  # fmt: skip
        with endpoint(answer) as address, pytest.raises((PolicyError, RetrieverError), match=problem):
            use(address, timeout)


def test_redirects_are_not_followed() -> None:
    with endpoint(redirect) as address, pytest.raises(PolicyUnavailable, match=r"redirects \(307\), .*base_url"):
        asked(address)


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_a_key_that_an_endpoint_repeats_is_not_shown(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("STEPRAG_RETRIEVER_TOKEN", KEY)

    def echo(handler: BaseHTTPRequestHandler) -> None:
        said = handler.headers["Authorization"]
        send(handler, f'{{"error": {{"message": "bad key {said}"}}, "detail": "bad key {said}"}}'.encode(), status)

    with endpoint(echo) as address:
        for use in (asked, searched):
            with pytest.raises((PolicyError, PolicyUnavailable, RetrieverError), match=r"bad key Bearer \[key\]") as it:
                use(address)
            assert KEY not in str(it.value)


def test_a_key_in_pieces_is_found() -> None:
    async def read(cuts: tuple[int, ...]) -> bytes:
        said = f"a {KEY} b {KEY[:9]} c {KEY}{KEY}".encode()
        places = (0, *cuts, len(said))

        class Pieces(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                async def pieces() -> object:
                    for start, end in zip(places, places[1:], strict=False):
                        yield said[start:end]

                return httpx2.Response(200, content=pieces())  # pyright: ignore[reportArgumentType]

        async with BoundedClient("http://example.org", seconds=5, secret=KEY, transport=Pieces()) as client:
            return (await client.get("http://somewhere/")).content

    wanted = f"a [key] b {KEY[:9]} c [key][key]".encode()
    for cut in range(1, 80):
        assert asyncio.run(read((cut,))) == wanted
    assert asyncio.run(read(tuple(range(1, 80)))) == wanted
    assert _begun(b"xx sk-can", KEY.encode()) == 6


def test_passages_that_nobody_asked_for_are_cut_and_scores_are_finite() -> None:
    def reply(score: str, count: int) -> Answer:
        item = f'{{"document": {{"id": "a", "title": "t", "text": "x"}}, "score": {score}}}'
        return lambda handler: send(handler, f'{{"result": [[{",".join([item] * count)}]]}}'.encode())

    with endpoint(reply("1.5", 500)) as address:
        retriever = RemoteRetriever(address, RetrieverConfig(retries=0))
        assert len(asyncio.run(retriever.search("q", 3))) == 3
    for score in ("NaN", "1e999", "1" + "0" * 400, "9" * 5000, '"x"', "[" * 90_000):
        with endpoint(reply(score, 1)) as address, pytest.raises(RetrieverError, match="not Search-R1's"):
            searched(address)


@pytest.mark.parametrize("value", ["²³", "99999999999999999999", "-1", "soon"])
def test_odd_waits_are_no_crash(value: str) -> None:
    def busy(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(429)
        handler.wfile.write(b"")
        handler.send_header("Content-Type", "text/plain; charset=hex")
        handler._headers_buffer.append(f"Retry-After: {value}\r\n".encode())
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"no")

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


def test_a_recipe_that_names_both_key_and_endpoint_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "theirs.yaml"
    recipe.write_text(
        "policy: {engine: openai, api_key_env: AWS_SECRET_ACCESS_KEY, base_url: 'http://evil.example/v1'}"
    )
    load_config(GenerateConfig, str(recipe))
    assert "sends what $AWS_SECRET_ACCESS_KEY holds to http://evil.example/v1" in capsys.readouterr().err
    recipe.write_text("policy: {engine: openai, base_url: 'http://evil.example/v1'}")
    load_config(GenerateConfig, str(recipe))
    assert not capsys.readouterr().err


PROXIES = [f(name) for name in ("http_proxy", "https_proxy", "all_proxy") for f in (str.lower, str.upper)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_is_not_asked_for_this_machine(host: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b'{"error": {"message": "here I am"}, "detail": "here I am"}', 400)

    for name in PROXIES:
        monkeypatch.setenv(name, f"{scheme}://127.0.0.1:9")  # where nobody listens
    with endpoint(refuse) as address:
        own = address.replace("127.0.0.1", host)
        for use in (asked, scored, searched):
            with pytest.raises((PolicyError, RetrieverError), match="here I am"):
                use(own)


def scored(address: str) -> None:
    config = PolicyConfig(engine="vllm", model="m", base_url=f"{address}/v1", retries=0)

    async def ask() -> None:
        async with OpenAIPolicy(config, config.base_url, "m", ScoreFormat()) as policy:
            await policy.score((Message(role="user", content="?"),), "1")

    asyncio.run(ask())


def test_a_proxy_is_asked_for_other_machines_unless_no_proxy_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b'{"error": {"message": "by way of the proxy"}}', 400)

    with endpoint(refuse) as address:
        monkeypatch.setenv("http_proxy", address)
        with pytest.raises(PolicyError, match="by way of the proxy"):
            asked("http://model.invalid:8000")
        monkeypatch.setenv("no_proxy", "model.invalid")
        with pytest.raises(PolicyUnavailable, match="nothing answers"):
            asked("http://model.invalid:8000")
