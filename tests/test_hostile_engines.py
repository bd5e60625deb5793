"""Engines that are served to this machine: no web page reaches them, and those of our own want a key."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from steprag.agent.grammars import TRANSCRIPT
from steprag.config import load_config
from steprag.engines import host_gate as gating
from steprag.engines.host_gate import host_gate
from steprag.engines.launch import EngineSpec, command
from steprag.engines.server import serving_us
from steprag.errors import ConfigError
from steprag.policy.client import open_policy
from steprag.types import Message
from tests.fakes import listening

ROOT = Path(__file__).parent.parent
KEY = "sk-canary-0123456789"


@contextmanager
def gated() -> Iterator[tuple[str, int, list[dict[str, str]]]]:
    """URL and port of a gate before an engine that tells the length of what it was sent, and the headers it saw."""
    seen: list[dict[str, str]] = []

    class Engine(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            body = str(len(self.rfile.read(int(self.headers["Content-Length"])))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with listening(Engine) as engine, host_gate(engine, KEY, "127.0.0.1", 0) as url:
        yield url, int(url.rsplit(":", 1)[1]), seen


def said(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(sent)
        pieces = iter(lambda: client.recv(65536), b"")
        return b"".join(pieces)


def request(*headers: str, body: bytes = b"") -> bytes:
    lines = ("POST /v1/chat/completions HTTP/1.1", *headers, f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_programs_of_this_machine_reach_the_engine_with_its_key() -> None:
    with gated() as (url, port, seen):
        for size in (0, 10, 3 << 20):
            asked = urllib.request.Request(f"{url}/v1/x", b"x" * size, {"Authorization": "Bearer mine"}, method="POST")
            with urllib.request.urlopen(asked, timeout=30) as reply:
                assert int(reply.read()) == size
        assert [headers["authorization"] for headers in seen] == [f"Bearer {KEY}"] * 3
        for name in ("localhost", f"127.0.0.1:{port}", "[::1]:80", "LOCALHOST"):
            assert said(port, request(f"Host: {name}")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("headers", [
    ("Host: evil.example",), ("Host: evil.example:8080", "Host: localhost"), (), ("Host: localhost.evil.example",),
    ("Host: localhost", "Origin: http://evil.example"), ("Host: localhost", "Origin: null"),
    ("Host: localhost", "Origin: http://["), ("host : evil.example",),
    ("Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"),
])  # fmt: skip
def test_no_page_of_a_stranger_reaches_the_engine(headers: tuple[str, ...]) -> None:
    with gated() as (_, port, seen):
        reply = said(port, request(*headers, body=b"{}"))
        assert reply.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
        assert b"Access-Control" not in reply
        assert json.loads(reply.split(b"\r\n\r\n")[1])["error"]["code"] in ("wrong_host", "wrong_origin", "bad_request")
        assert not seen


def test_a_second_request_on_a_connection_is_not_handed_on() -> None:
    with gated() as (_, port, seen):
        reply = said(port, request("Host: localhost") + request("Host: evil.example"))
        assert reply.count(b"HTTP/1.1") == 1
        assert len(seen) == 1
        assert seen[0]["connection"] == "close"


def test_half_headers_and_crowds_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gating, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(gating, "MOST", 3)
    with gated() as (_, port, seen):
        assert said(port, b"POST / HTTP/1.1\r\nHost: loc") == b""
        assert said(port, b"POST / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (80 << 10) + b"\r\n\r\n") == b""
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for one in held:
            one.close()
        monkeypatch.setattr(gating, "MOST", 512)
        assert said(port, request("Host: localhost")).startswith(b"HTTP/1.1 200")
        assert len(seen) == 1


def test_an_engine_that_is_gone_is_said_and_a_port_that_is_taken_too() -> None:
    with listening(BaseHTTPRequestHandler) as gone:
        taken = int(gone.rsplit(":", 1)[1])
        with (
            pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{taken}"),
            host_gate("", None, "127.0.0.1", taken),
        ):
            pass
    with host_gate(gone, KEY, "127.0.0.1", 0) as url:
        assert said(int(url.rsplit(":", 1)[1]), request("Host: localhost")).startswith(b"HTTP/1.1 502")


def test_the_key_of_an_engine_of_ours_stands_in_no_command_line() -> None:
    pytest.importorskip("xllamacpp")
    built = command(EngineSpec(key=KEY))
    assert KEY not in " ".join(built.argv)
    assert KEY not in repr(EngineSpec(key=KEY))
    assert KEY in built.env.values()


@pytest.mark.slow
def test_an_engine_of_ours_answers_nobody_else() -> None:
    from data_generation.config import GenerateConfig

    config = load_config(GenerateConfig).policy

    async def sampled() -> str:
        async with open_policy(config, TRANSCRIPT) as policy, policy.beside(config, TRANSCRIPT) as other:
            asked = (Message(role="user", content="who?"),)
            await other.sample(asked, ("answer",), n=1, seed=1)
            return (await policy.sample(asked, ("answer",), n=1, seed=1)).completions[0].text

    assert asyncio.run(sampled())
    with serving_us(EngineSpec()) as endpoint:
        body = b'{"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}'
        for path in ("/chat/completions", "/completions"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(endpoint.base_url + path, body, timeout=30)


@pytest.mark.slow
def test_policy_serve_answers_names_of_this_machine_alone() -> None:
    start = "import sys; from steprag.engines.policy_command import main; main(['serve', '--port', '0'])"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().removesuffix("/v1").rsplit(":", 1)[1])
        body = b'{"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}'
        try:
            assert said(port, request("Host: evil.example", body=body)).startswith(b"HTTP/1.1 403")
            reply = said(port, request("Host: localhost", "Content-Type: application/json", body=body))
            assert reply.startswith(b"HTTP/1.1 200")
            assert b'"choices"' in reply
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
