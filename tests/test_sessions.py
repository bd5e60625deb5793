"""A question's requests carry its name, so that a router sends them to one replica."""

from __future__ import annotations

import json
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

import pytest

from data_generation.config import GenerateConfig
from steprag.cli import main
from steprag.config.load import load_config
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.fakes import QUESTION, Endpoint, believing_reply, listening, options, serve

HEADER = "X-Session-ID"
Seen = list[tuple[str | None, int, str]]
"""Session, replica and path of every request."""


@contextmanager
def router(replicas: list[Endpoint]) -> Iterator[tuple[Endpoint, Seen]]:
    """One address before several endpoints. It hashes the session header, and takes turns where there is none."""
    seen: Seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(0, None)

        def do_POST(self) -> None:
            session = self.headers.get(HEADER)
            hashed = int(sha256(session.encode()).hexdigest(), 16) if session is not None else len(seen)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((session, hashed % len(replicas), self.path))
            self._pass_on(hashed % len(replicas), body)

        def _pass_on(self, place: int, body: bytes | None) -> None:
            address = replicas[place].url.removesuffix("/v1") + self.path
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as reply:
                data = reply.read()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Upstream", f"replica-{place}")
            self.end_headers()
            self.wfile.write(data)

    with listening(Handler) as address:
        yield Endpoint(f"{address}/v1", []), seen


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("generate", ["--search.rollouts", "3", "--search.score", "true", "--policy.engine", "llamacpp"]),
        ("infer", []),
    ],
)
def test_no_question_meets_two_replicas(world_index: Path, tmp_path: Path, command: str, more: list[str]) -> None:
    file = tmp_path / "questions.jsonl"
    names = [f"frage/nº {i}\n" for i in range(9)]
    write_records(file, [Question(name, f"{QUESTION} ({i})", ("lek",)) for i, name in enumerate(names)])
    with ExitStack() as stack:
        replicas = [stack.enter_context(serve(believing_reply())) for _ in range(3)]
        front, seen = stack.enter_context(router(replicas))
        run = options(front, file, world_index, tmp_path / "run", *more, "--policy.session_header", HEADER)
        assert main([command, *run]) == 0
    met: dict[str | None, set[int]] = defaultdict(set)
    asked = [each for each in seen if each[0] is not None]
    for session, replica, _ in asked:
        met[session].add(replica)
    assert {unquote(session or "") for session in met} == set(names)
    assert all(len(places) == 1 for places in met.values())
    assert len({replica for _, replica, _ in asked}) == 3, "the router had nothing to choose"
    said = json.loads((tmp_path / "run/manifest.json").read_text())["config"]["policy"]["session_header"]
    assert said == HEADER
    if command == "infer":
        assert len(asked) == len(seen)
    else:  # one question checks that the endpoint can score, before any tree grows
        assert {path for session, _, path in seen if session is None} <= {"/tokenize", "/v1/chat/completions"}


def test_without_the_key_no_request_carries_a_name(world_index: Path, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    write_records(file, [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(4)])
    with ExitStack() as stack:
        front, seen = stack.enter_context(router([stack.enter_context(serve(believing_reply())) for _ in range(2)]))
        assert main(["infer", *options(front, file, world_index, tmp_path / "run")]) == 0
    assert {session for session, _, _ in seen} == {None}


def test_a_header_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["infer", "--index", "i", "--out", str(tmp_path / "run"), "--policy.session_header", "a: b"]
    assert main([*command, "--questions", "q"]) == 2
    assert "policy.session_header" in capsys.readouterr().err


def test_a_run_of_earlier_versions_named_a_key_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_config(GenerateConfig, None, {}, {"policy": {"replica_header": None}}) == GenerateConfig()
    assert main(["infer", "--index", "i", "--out", "o", "--questions", "q", "--policy.replica_header", "X"]) == 2
    assert "replica_header" in capsys.readouterr().err
