"""Runs as spans, as a collector gets them: a real HTTP server that decodes OTLP by the SDK's own types."""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.errors import PART_DONE
from steprag.policy import traces
from tests.chat_parts import chat, working
from tests.fakes import Replying, Start, answer, chat_reply, evidence, in_turn, listening, options, query, serve
from tests.ray_parts import retriever_service
from tests.tool_parts import tools_file

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
pytest.importorskip("openinference.instrumentation", reason="the extra `otel` is not installed")
KEY = "sk-a-secret-that-no-span-holds"


@dataclass
class Collector:
    """What it was sent: spans as flat objects, and the bodies' bytes."""

    spans: list[dict[str, Any]] = field(default_factory=list)
    bytes: bytes = b""

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.bytes += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = facts(resource.resource.attributes)
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.append({
                    "name": span.name, "id": span.span_id, "parent": span.parent_span_id, "trace": span.trace_id,
                    "status": (span.status.code, span.status.message), "about": about, **facts(span.attributes),
                    "links": [(link.trace_id, link.span_id) for link in span.links],
                })  # fmt: skip

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The spans of one of OpenInference's kinds, sent by now."""
        for sender in traces._senders:
            sender.provider.force_flush()
        return [span for span in self.spans if span["openinference.span.kind"] == kind]


def facts(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture(scope="module")
def sending() -> Iterator[Collector]:
    """The collector of this module's spans: a process has one tracer."""
    collector = Collector()

    class Handler(Replying):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.given())
            self.reply(b"")

    with listening(Handler) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        traces._tracer.cache_clear()
        assert traces._tracer()
        yield collector
    traces._tracer.cache_clear()


@pytest.fixture
def collector(sending: Collector) -> Collector:
    sending.of("CHAIN")
    sending.spans.clear()
    sending.bytes = b""
    return sending


SCRIPT = [query("capital Tirana"), evidence("Read in no passage."), answer("lek")]


@pytest.fixture
def play(questions: Path, tmp_path: Path) -> Iterator[Start]:
    """Runs a command over one question, with a retriever that loads nothing; the policy says `texts`, in turn."""

    def played(command: str, folder: str, *more: str, texts: Sequence[str] = SCRIPT, index: Path | None = None) -> int:
        with serve(chat_reply(in_turn(*texts))) as endpoint:
            where: Any = index or address
            asked = options(endpoint, questions, where, tmp_path / folder, "--limit", "1", *more)
            return main([command, *asked])

    with retriever_service() as address:
        yield played


def test_an_episode_is_an_agent_with_its_calls_and_searches(
    play: Start, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert play("infer", "run", "--policy.price.prompt", "1", "--policy.price.completion", "2") == 0
    (root,), (agent,), calls, (search,) = map(collector.of, ("CHAIN", "AGENT", "LLM", "RETRIEVER"))
    assert (root["name"], root["parent"], root["about"]["service.name"]) == ("infer", b"", "steprag")
    assert json.loads(root["metadata"]) == {"run": "run", "question": "q0", "dataset": None}
    assert {span["trace"] for span in collector.spans} == {root["trace"]}
    assert (agent["parent"], agent["output.value"], root["output.value"]) == (root["id"], "lek", "lek")
    assert {span["parent"] for span in (*calls, search)} == {agent["id"]}
    assert [call["llm.output_messages.0.message.content"] for call in calls] == SCRIPT
    assert (calls[0]["llm.model_name"], calls[0]["llm.input_messages.0.message.role"]) == ("double", "system")
    assert (calls[0]["llm.token_count.prompt"], calls[0]["llm.token_count.completion"]) == (10, 5)
    assert calls[0]["llm.cost.total"] == pytest.approx(20e-6)
    assert json.loads(calls[0]["llm.invocation_parameters"])["temperature"] == 0
    (found,) = json.loads((tmp_path / "run" / "predictions.jsonl").read_text())["passages"]
    assert [search[f"retrieval.documents.{n}.document.id"] for n in range(len(found))] == [one["id"] for one in found]
    assert search["retrieval.documents.0.document.score"] == found[0]["score"]
    assert KEY.encode() not in collector.bytes


def test_a_tree_has_simulations_and_a_judge_is_an_evaluator(play: Start, collector: Collector) -> None:
    with serve(chat_reply(lambda prompt, draw: "0.5")) as judge:
        asked = ["--judge.base_url", judge.url, "--judge.model", "double", "--judge.engine", "openai"]
        small = ["--search.rollouts", "1", "--search.children", "1"]
        assert play("generate", "run", "--reward.name", "judge", *small, *asked) == 0
    chains, judges = collector.of("CHAIN"), collector.of("EVALUATOR")
    ids = {name: [span["id"] for span in chains if span["name"] == name] for name in ("generate", "simulation")}
    assert {span["parent"] for span in chains if span["name"] == "simulation"} == {*ids["generate"]}
    assert {span["parent"] for span in judges} == {*ids["simulation"]}
    calls = collector.of("LLM")
    assert {span["parent"] for span in calls} == {*ids["simulation"], *(span["id"] for span in judges)}


def test_what_failed_is_a_status_and_a_second_start_links_to_the_first(play: Start, collector: Collector) -> None:
    with serve(lambda _: (500, {"error": {"message": "out of order"}})) as broken:
        assert play("infer", "run", "--policy.base_url", broken.url) == PART_DONE
    (first,), (call,) = collector.of("CHAIN"), collector.of("LLM")
    assert (first["status"][0], call["status"][0], "out of order" in first["status"][1]) == (2, 2, True)
    collector.spans.clear()
    play("infer", "run", texts=["no tags"])
    (second,), (agent,) = collector.of("CHAIN"), collector.of("AGENT")
    assert second["links"] == [(first["trace"], first["id"])]
    assert second["trace"] != first["trace"]
    assert agent["status"] == (2, "no answer: no_action")


def test_a_call_of_a_tool_is_one_and_what_is_masked_is_not_sent(
    play: Start, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tools_file(tmp_path, capital={"python": "tests.my_tools:capital"})
    assert play("infer", "run", texts=[query("capital: Peru"), *SCRIPT[1:]], index=index) == 0
    (tool,) = collector.of("TOOL")
    assert (tool["name"], tool["input.value"]) == ("capital", "capital: Peru")
    assert "Lima" in tool["retrieval.documents.0.document.content"]
    assert SCRIPT[1].encode() in collector.bytes
    monkeypatch.setenv("OPENINFERENCE_HIDE_OUTPUTS", "true")
    monkeypatch.setenv("OPENINFERENCE_HIDE_INPUTS", "true")
    traces._tracer.cache_clear()
    collector.bytes = b""
    assert play("infer", "masked", texts=[query("capital: Peru"), *SCRIPT[1:]], index=index) == 0
    assert len(collector.of("TOOL")) == 2
    assert SCRIPT[1].encode() not in collector.bytes
    assert b"Peru" not in collector.bytes
    traces._tracer.cache_clear()


def test_a_turn_of_the_chat_is_an_agent_of_its_conversation(collector: Collector) -> None:
    with chat(working()) as served:
        served.whole("Which currency?")
    (turn,), searches = collector.of("AGENT"), collector.of("RETRIEVER")
    assert (turn["input.value"], turn["output.value"], turn["status"][0]) == ("Which currency?", "lek", 1)
    assert turn["session.id"]
    assert [search["parent"] for search in searches] == [turn["id"]] * 2


def test_a_collector_that_is_gone_costs_nothing(questions: Path, tmp_path: Path) -> None:
    gone = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with serve(chat_reply(in_turn(*SCRIPT))) as endpoint, retriever_service() as address:
        asked = options(endpoint, questions, Path(address), tmp_path / "run", "--limit", "1", "--index", address)
        command = [sys.executable, "-m", "apps.commands", "infer", *asked]
        ended = subprocess.run(command, env={**os.environ, **gone}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("traces: ") == 1
    assert "Traceback" not in ended.stderr


def test_work_that_is_cancelled_before_it_begins_says_nothing(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """A Ctrl-C in the moment in which a wave of simulations was made."""

    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    traces._tracer.cache_clear()

    async def work() -> None: ...

    async def cancelled() -> None:
        task = asyncio.ensure_future(traces.traced(work(), "chain", "simulation"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    gc.collect()
    assert not [one for one in recwarn if "never awaited" in str(one.message)]
    traces._tracer.cache_clear()
