"""Slots on a Ray cluster of this machine: one process's bytes, whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from data_generation.config import GenerateConfig
from data_generation.generate import search_all, search_identity
from steprag.agent.open import open_agent
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.worklist import WorkerPlan
from steprag.config.load import load_config
from steprag.errors import DataError, PolicyRefused, StepFormatError, StepragError
from steprag.records.jsonl import read_records
from steprag.runs.run import open_run, read_manifest
from steprag.tree import Failure, Tree
from steprag.types import Question
from tests.fakes import QUESTION, DictRetriever, Endpoint, Start, chat_reply, options, serve
from tests.ray_parts import needs_ray, open_deadly, retriever_service
from tests.test_shards import content

COUNT = 12
pytestmark = pytest.mark.timeout(900)  # a busy machine starts Ray in minutes
SMALL = ["--search.rollouts", "4", "--search.extra", "0", "--policy.concurrency", "6"]
Reply = tuple[int, object]


class Busy:
    """Answers after a moment; counts how many requests it had at once."""

    def __init__(self, seconds: float = 0.02) -> None:
        self._seconds, self._lock, self.now, self.most = seconds, threading.Lock(), 0, 0

    def __call__(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self._seconds)
        with self._lock:
            self.now -= 1
        return chat_reply()(request)


@pytest.fixture
def begin(start: Start) -> Iterator[Start]:
    """As `start`, with a small search and an index behind a URL."""
    with retriever_service() as address:
        small = {"generate": SMALL, "infer": SMALL[-2:]}
        yield lambda command, *more, **given: start(command, *more, *small[command], **{"index": address, **given})


def asked() -> list[Question]:
    return [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",), {"type": "bridge"}) for i in range(COUNT)]


def plain(begin: Start, command: str = "generate") -> Counter[str]:
    """What the run of one process asks; it lies in the folder plain."""
    with serve(chat_reply()) as endpoint:
        assert begin(command, "plain", at=endpoint) == 0
        return sent(endpoint)


def sent(endpoint: Endpoint) -> Counter[str]:
    return Counter(json.dumps(request, sort_keys=True) for request in endpoint.requests)


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
@pytest.mark.parametrize(("command", "file"), [("generate", "trees.jsonl"), ("infer", "predictions.jsonl")])
def test_two_slots_give_the_run_of_one_process(begin: Start, tmp_path: Path, command: str, file: str) -> None:
    one, rayed, busy, wanted = tmp_path / "plain", tmp_path / "ray", Busy(), plain(begin, command)
    with serve(busy) as endpoint:
        assert begin(command, "ray", "--ray", "2", at=endpoint) == 0
        assert sent(endpoint) == wanted
        assert 1 < busy.most <= 6, "the concurrency is not that of the whole run"
        assert (rayed / file).read_bytes() == (one / file).read_bytes()
        assert content(rayed) == content(one)
        assert not list(rayed.glob("calls-*")), "journals of slots are left behind"
        for key in ("identity", "status", "counts", "usage", "spent", "calls_lost"):
            assert read_manifest(rayed)[key] == read_manifest(one)[key]
        assert main(["run", "check", str(rayed)]) == 0, "files are not those that the manifest lists"
        (rayed / file).unlink()
        assert begin(command, "ray", at=endpoint) == 0
        assert sent(endpoint) == wanted, "this process paid again for what slots had"


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
def test_the_number_of_slots_may_change_and_a_budget_is_one_for_all(
    begin: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, wanted = tmp_path / "run", plain(begin)
    calls = sum(wanted.values())
    with serve(Busy(0.25)) as endpoint:
        for slots, limit in ((2, calls // 4), (1, calls // 2)):
            before = len(endpoint.requests)
            assert begin("generate", "run", "--budget.calls", str(limit), "--ray", str(slots), at=endpoint) == 4
            assert f"budget.calls = {limit} is reached" in capsys.readouterr().err
            assert before < len(endpoint.requests) < calls
            assert read_manifest(run)["spent"]["calls"] == len(endpoint.requests)
            assert len(endpoint.requests) <= limit + 6 / 0.25 + 6, "more than a second's traffic and what is in flight"
        assert begin("generate", "run", at=endpoint) == 0
        assert sent(endpoint) == wanted, "a call was made twice"
    assert (run / "trees.jsonl").read_bytes() == (tmp_path / "plain/trees.jsonl").read_bytes()


def searched(
    out: Path, endpoint: Endpoint, service: str, deaths: Mapping[str, int] | None = None, slots: int = 0
) -> None:
    """What `steprag generate` does once its inputs are read, with slots that questions kill."""
    keys = {"policy.base_url": endpoint.url, "policy.model": "double", "policy.engine": "openai", "policy.retries": 0,
            "search.rollouts": 4, "search.extra": 0, "policy.concurrency": 6}  # fmt: skip
    config = load_config(GenerateConfig, None, keys)
    notes = out.parent / "notes"
    notes.mkdir(exist_ok=True)
    opening = partial(open_deadly, index=service, deaths=deaths or {}, notes=notes)
    order, models = [question.id for question in asked()], {"policy": config.policy}
    on_ray = WorkerPlan(slots, opening, "world", order, models) if slots else None
    with open_run(out, "generate", identity=search_identity(config), config=config.model_dump()) as run:
        asyncio.run(search_all(run, asked(), config, open_agent(config, DictRetriever()), None, on_ray))


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
def test_a_killed_slot_is_replaced_and_a_question_that_kills_every_slot_fails_alone(tmp_path: Path) -> None:
    one, run = tmp_path / "plain", tmp_path / "run"
    with retriever_service() as service, serve(chat_reply()) as endpoint, serve(Busy()) as busy:
        searched(one, endpoint, service)
        searched(run, busy, service, {"q1": 1, "q3": 99}, slots=2)
        failed = list(read_records(run / "failures.jsonl", Failure))
        assert [(failure.id, failure.reason) for failure in failed] == [("q3", "WorkerLost")]
        assert len(list((tmp_path / "notes").glob("q3.*"))) == 4
        lines = {line for line in (one / "trees.jsonl").read_bytes().splitlines() if b'"id":"q3"' not in line}
        assert set((run / "trees.jsonl").read_bytes().splitlines()) == lines
        searched(run, busy, service)  # what no slot can do, this process does
        assert (run / "trees.jsonl").read_bytes() == (one / "trees.jsonl").read_bytes()
        twice = sent(busy) - sent(endpoint)
    assert sum(twice.values()) <= read_manifest(run)["calls_lost"]
    assert {tree.question.id for tree in read_records(run / "trees.jsonl", Tree)} == {q.id for q in asked()}
    with closing(Journal(run / JOURNAL, reading=True)) as reading:
        assert len(reading.questions()) == COUNT


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(("by", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)], ids=["killed", "interrupted"])
def test_a_run_whose_command_is_ended_goes_on_without_slots(
    begin: Start, questions: Path, tmp_path: Path, by: signal.Signals, code: int
) -> None:
    """The command starts a cluster of its own, which goes with it."""
    run, wanted = tmp_path / "run", plain(begin)
    with retriever_service() as service, serve(Busy(0.25)) as endpoint:
        words = options(endpoint, questions, Path("index"), run, *SMALL, "--index", service, "--ray", "2")
        command = [sys.executable, "-m", "apps.commands", "generate", *words]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()}) as process:
            while len(endpoint.requests) < 40 and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(by)
            assert process.wait(60) == code
        assert bool(list(run.glob("calls-*"))) == (by == signal.SIGKILL)
        assert begin("generate", "run", at=endpoint, index=service) == 0
        again = sum((sent(endpoint) - wanted).values())
    assert again <= read_manifest(run)["calls_lost"] <= (6 if by == signal.SIGKILL else 0)
    assert (run / "trees.jsonl").read_bytes() == (tmp_path / "plain/trees.jsonl").read_bytes()
    assert content(run) == content(tmp_path / "plain")


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
def test_what_ends_a_slot_ends_the_run_in_one_line(begin: Start, capsys: pytest.CaptureFixture[str]) -> None:
    refused = 401, {"error": {"message": "no such key", "code": "invalid_api_key"}}
    with serve(lambda request: refused) as endpoint:
        assert begin("generate", "run", "--ray", "1", at=endpoint) == 5
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("steprag: ")
    assert said.endswith("the key in $OPENAI_API_KEY is refused (401: no such key)")


def test_what_cannot_go_on_a_cluster_is_one_line(
    begin: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin("infer", "run", "--ray", "two") == 2
    assert "--ray two: expected the number of processes" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "steprag.batch.ray_slots", raising=False)
    assert begin("infer", "run", "--ray", "2") == 2
    assert "the extra `ray` (ray is not installed)" in capsys.readouterr().err


@needs_ray
def test_a_cluster_that_is_not_there_and_models_that_each_slot_would_start_are_refused(
    begin: Start, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["generate", "--questions", str(questions), "--ray", "2"]
    with retriever_service() as service:
        for out, models, said in (
            ("alone", [], "start the policy and give policy.base_url"),
            ("judged", ["--policy.base_url", "http://127.0.0.1:1/v1", "--reward.name", "judge"],
             "start the judge and give judge.base_url"),
        ):  # fmt: skip
            assert main([*run, "--index", service, "--out", str(tmp_path / out), *models]) == 2
            assert said in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert begin("infer", "slots", "--ray", "1") == 2
    assert "steprag: no Ray cluster ($RAY_ADDRESS: 127.0.0.1:1): " in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [PolicyRefused("no"), DataError("file", "bad", line=3, remedy="mend it"), StepFormatError("no_tag", "none")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_processes_whole(error: StepragError) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - what Ray does with our own
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
