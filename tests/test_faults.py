"""An endpoint that fails four calls in ten, in every way that endpoints do."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_generation.config import GenerateConfig
from steprag.agent.open import open_agent
from steprag.config.load import load_config
from steprag.errors import PolicyUnavailable
from steprag.records.jsonl import read_records
from steprag.runs.run import read_manifest
from steprag.tree import Failure, Tree
from steprag.types import Question
from tests.fakes import QUESTION, DictRetriever, Endpoint, beginner, chat_reply, listening
from tests.levels import SEED, rounds
from tests.test_journal import generate_with

SHARE = 0.4
FAULTS = ("busy", "error", "reset", "stalled", "truncated", "broken", "nested", "not_utf8", "garbage", "no_http",
          "no_choices", "wrong_types")  # fmt: skip


def odd(fault: str, body: str) -> str | bytes:
    """A body that says it is JSON, and is none or is no completion."""
    return {
        "broken": body[: len(body) // 2],
        "nested": "[" * 100_000,
        "not_utf8": b'{"a": "\xff\xfe"}',
        "no_choices": json.dumps({**json.loads(body), "choices": []}),
        "wrong_types": json.dumps({"choices": [{"message": 7}], "usage": "none"}),
    }[fault]


class Faulty(BaseHTTPRequestHandler):
    """Answers like `chat_reply`, but for a share of requests that it picks by lot."""

    protocol_version = "HTTP/1.1"
    rng = random.Random(5)
    seen: Counter[str]
    early: list[float]

    def do_GET(self) -> None:
        self.reply(200, json.dumps({"object": "list", "data": [{"id": "double", "object": "model"}]}))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.rng.choice(FAULTS) if self.rng.random() < SHARE else "none"
        self.seen[fault] += 1
        body = json.dumps(chat_reply(beginner)(request)[1])
        match fault:
            case "busy":
                self.reply(429, json.dumps({"error": {"message": "slow down"}}), {"Retry-After": "0.05"})
            case "error":
                self.reply(500, json.dumps({"error": {"message": "oops"}}))
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.close_connection = True
                self.connection.close()
            case "stalled":
                time.sleep(2.0)
                self.reply(200, body)
            case "truncated" | "no_http":
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                sent = head + body[: len(body) // 2] if fault == "truncated" else "220 mail.example ESMTP\r\n\r\n"
                self.wfile.write(sent.encode())
                self.close_connection = True
            case "garbage":
                self.reply(200, "<html>bad gateway</html>", {"Content-Type": "text/html"})
            case "broken" | "nested" | "not_utf8" | "no_choices" | "wrong_types":
                self.reply(200, odd(fault, body))
            case _:
                self.reply(200, body)

    def reply(self, status: int, body: str | bytes, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):  # the client gave up waiting
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


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
            "policy.engine": "openai", "policy.model": "double", "policy.base_url": endpoint.url, "policy.timeout": 1.6,
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
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen["none"] += 1
        if self.seen["none"] <= 10:
            self.reply(200, json.dumps(chat_reply(beginner)(request)[1]))
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
        with pytest.raises(PolicyUnavailable, match=f"double at {address}/v1/: nothing answers .*Cannot connect"):
            generate_with(tmp_path / "run", open_agent(config, DictRetriever()), keys, questions)
    assert read_manifest(tmp_path / "run")["spent"]["calls"] == 10
    assert not (tmp_path / "run" / "failures.jsonl").read_text()


def _read_late(seen: Counter[str], manifest: dict[str, dict[str, int]]) -> int:
    """Stalled replies may come just in time: no more than there were."""
    late = manifest["spent"]["calls"] - seen["none"]
    return late if 0 <= late <= seen["stalled"] else -1
