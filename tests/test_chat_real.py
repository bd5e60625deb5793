"""`steprag serve` as a user starts it: the embedded model, a real index, kills of the service and of its engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from apps.chat.turns.events import next_state
from apps.commands import main
from steprag import atlas
from steprag.engines.models import shipped_adapters
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_records
from steprag.records.turns import Turn
from steprag.types import Prediction
from tests.chat_parts import parsed
from tests.fakes import descendants, wait_for

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-the-tests"
MODEL = ("--adapter", next(iter(shipped_adapters())), "--policy.concurrency", "1")
"""Of an index of other passages than all of Atlas nobody's model answers unless it is named."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 passages of Atlas."""
    folder = tmp_path_factory.mktemp("atlas")
    lines = atlas.path("corpus").read_text().splitlines()[:300]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["index", "build", "--corpus", str(folder / "corpus.jsonl"), "--out", str(folder / "index")]) == 0
    return folder / "index"


@contextmanager
def service(index: Path, out: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """A service in a process of its own, ended by SIGTERM."""
    command = [sys.executable, "-m", "apps.chat.serve", "--index", str(index), "--out", str(out)]
    env = {**os.environ, "STEPRAG_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--serve.port", "0", *more], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout
        url = process.stdout.readline().partition("/#")[0]
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as client:
            yield process, client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask(client: httpx2.Client, question: str) -> str:
    return client.post("/api/turns", json={"question": question}).json()["turn"]


def follow(client: httpx2.Client, turn: str, most: int | None = None) -> list[dict[str, Any]]:
    events = []
    with client.stream("GET", f"/api/turns/{turn}/events") as reply:
        for event in parsed(reply.iter_lines()):
            events.append(event)
            if len(events) == most:
                break
    return events


def test_a_turn_over_http_is_what_infer_predicts(index: Path, tmp_path: Path) -> None:
    questions = read_questions(atlas.path("test"))[:2]
    (tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "question": q.question, "golden_answers": ["x"]}) + "\n"
                for n, q in enumerate(questions))
    )  # fmt: skip
    with service(index, tmp_path / "chat", *MODEL) as (_, client):
        for question in questions:
            state = ""
            for event in follow(client, ask(client, question.question)):
                state = next_state(state, event)
    turns = list(read_records(tmp_path / "chat/turns.jsonl", Turn))
    argv = ["infer", "--questions", str(tmp_path / "questions.jsonl"), "--index", str(index), "--out",
            str(tmp_path / "infer"), *MODEL]  # fmt: skip
    assert main(argv) == 0
    predictions = list(read_records(tmp_path / "infer/predictions.jsonl", Prediction))
    for turn, predicted in zip(turns, predictions, strict=True):
        assert [step.text for step in turn.steps] == [step.text for step in predicted.steps]
        assert (turn.prediction, turn.finish, turn.passages) == (
            predicted.prediction,
            predicted.finish,
            predicted.passages,
        )


def test_a_killed_service_goes_on_and_a_cancelled_turn_frees_its_slot(index: Path, tmp_path: Path) -> None:
    question = read_questions(atlas.path("test"))[4].question
    tmp_path.chmod(0o755)
    with service(index, tmp_path, *MODEL) as (process, client):
        turn = ask(client, question)
        client.post("/api/files/some", params={"name": "a.txt"}, content="Lima is a city.")
        follow(client, turn, most=40)
        process.kill()
        process.wait(30)
    with service(index, tmp_path, *MODEL) as (process, client):
        events = follow(client, turn)
        assert events[-1]["type"] == "turn.finished"
        cancelled = ask(client, "Who wrote the laws of Denmark?")
        follow(client, cancelled, most=10)
        assert client.delete(f"/api/turns/{cancelled}").status_code == 204
        assert follow(client, cancelled)[-1]["type"] == "turn.cancelled"
        assert follow(client, ask(client, question))[-1]["type"] == "turn.finished"
        for path in (tmp_path, *tmp_path.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
        second = subprocess.run(
            [sys.executable, "-m", "apps.chat.serve", "--index", str(index), "--out", str(tmp_path),
             "--serve.port", "0"], capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
        assert second.returncode == 2
        assert "is in use by another process" in second.stderr
    finishes = [one.finish for one in read_records(tmp_path / "turns.jsonl", Turn)]
    assert len(finishes) == 3
    assert finishes[1] == "cancelled"


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_other_engines_stream_and_answer_after_a_cancelled_turn(engine: str, index: Path, tmp_path: Path) -> None:
    if engine == "vllm" and not (Path(__file__).parents[1] / ".venv-vllm/bin/vllm").exists():
        pytest.skip("no vLLM: bash scripts/setup_vllm.sh")
    options = ["--policy.concurrency", "1", "--policy.engine", engine, "--adapter", "atlas-warmstart",
               "--serve.seconds", "600"]  # fmt: skip
    with service(index, tmp_path, *options, "--serve.mode", "direct") as (_, client):
        turn = ask(client, "Who wrote the laws of Denmark?")
        assert [event["type"] for event in follow(client, turn, most=5)][-2:] == ["step.delta", "step.delta"]
        assert client.delete(f"/api/turns/{turn}").status_code == 204
        assert follow(client, turn)[-1]["type"] == "turn.cancelled"
        told = follow(client, ask(client, "Which currency is used in Albania?"))
    assert told[-1]["type"] == "turn.finished"
    deltas = "".join(event["text"] for event in told if event["type"] == "step.delta")
    taken = [event["text"] for event in told if event["type"] == "step.finished"]
    assert taken == [deltas] or told[-1]["refused"].startswith(deltas)  # transformers knows no grammar
    assert deltas


def test_an_engine_that_dies_is_told_and_the_service_stays(index: Path, tmp_path: Path) -> None:
    with service(index, tmp_path, *MODEL) as (process, client):
        turn = ask(client, read_questions(atlas.path("test"))[4].question)
        follow(client, turn, most=10)
        engines = descendants(process.pid)
        assert engines
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        assert follow(client, turn)[-1]["type"] == "turn.failed"
        assert follow(client, ask(client, "And now?"))[-1]["type"] == "turn.failed"
        assert client.get("/healthz").status_code == 200
        wait_for(lambda: client.get("/api/info").json()["playing"] == 0)
