"""Generation and inference end to end, over HTTP, with a scripted policy and a real index of a tiny encoder; the index
beside a results file, which spares the reading and never says what the file does not hold.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import data_generation.generate
import inference.inference
from data_generation.tally import Earlier
from indexes import open_retriever
from indexes.commands.build import build_index
from steprag.agent.retriever import Retriever
from steprag.batch.results import Place, Results, index_of, places_of, read_at
from steprag.batch.tree_results import TREES
from steprag.cli import main
from steprag.config.sections import RetrieverConfig
from steprag.errors import DataError, RetrieverError
from steprag.records.jsonl import dump_line, read_records, write_json, write_records
from steprag.records.training_rows import Pair, Trajectory
from steprag.runs.run import read_manifest
from steprag.scores.metrics import normalise
from steprag.tree import Failure, Node, Tree
from steprag.types import Message, Prediction, Question, Usage
from tests.fakes import QUESTION, WORLD, Endpoint, answer, beginner, chat_reply, listening, options, serve
from tests.indexing import small


@pytest.fixture
def index(world_index: Path) -> Path:
    return world_index


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    write_records(file, [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",), {"type": "bridge"}) for i in range(12)])
    return file


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve(chat_reply()) as running:
        yield running


def test_questions_become_trees_pairs_and_scores(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path
) -> None:
    trees, scored = tmp_path / "trees", tmp_path / "scored"
    assert main(["generate", *options(endpoint, questions, index, trees, "--search.rollouts", "5")]) == 0
    grown = list(read_records(trees / "trees.jsonl", Tree))
    assert [tree.question.id for tree in grown] == [f"q{i}" for i in range(12)]
    manifest = read_manifest(trees)
    assert manifest["status"] == "done"
    assert manifest["usage"]["calls"] == len(endpoint.requests) == sum(tree.usage.calls for tree in grown)
    assert manifest["identity"]["prompt"]["profile"] == "transcript"

    assert main(["pairs", "--trees", str(trees), "--pairs.margin", "0.01"]) == 0
    sent = {json.dumps(request["messages"]) for request in endpoint.requests}
    rows: list[tuple[Message, ...]] = [pair.prompt for pair in read_records(trees / "pairs/pairs.train.jsonl", Pair)]
    rows += [row.prompt for row in read_records(trees / "pairs/sft.train.jsonl", Trajectory)]
    assert rows
    assert all(json.dumps(list(prompt)) in sent for prompt in rows), "a prompt to train on that was never sent"

    before = len(endpoint.requests)
    assert main(["infer", *options(endpoint, questions, index, scored)]) == 0
    predictions = list(read_records(scored / "predictions.jsonl", Prediction))
    assert len(predictions) == 12
    scores = json.loads((scored / "metrics.json").read_text())
    assert scores["questions"] == 12
    assert sum(scores["finish"].values()) == 12
    assert scores["em_interval"][0] <= scores["em"] <= scores["em_interval"][1]
    roots = {
        r["messages"][1]["content"] for r in endpoint.requests[before:] if "\n" not in r["messages"][1]["content"][:-20]
    }
    assert {request["temperature"] for request in endpoint.requests[before:]} == {0.0}, "greedy unless asked otherwise"
    assert roots <= {node.messages[1]["content"] for tree in grown for node in tree.nodes[:1] if node.messages}


def test_finished_questions_are_not_asked_again(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trees"
    command = ["generate", *options(endpoint, questions, index, out)]
    assert main(command) == 0
    whole, calls = (out / "trees.jsonl").read_bytes(), len(endpoint.requests)
    lines = whole.splitlines(keepends=True)
    (out / "trees.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:100])  # as a kill leaves it
    assert main(command) == 0
    assert (out / "trees.jsonl").read_bytes() == whole
    assert len(endpoint.requests) == calls, "a call that the journal holds was made again"
    assert main(command) == 0
    assert len(endpoint.requests) == calls


@pytest.mark.parametrize("at_once", [1, 16])
def test_trees_do_not_depend_on_concurrency(endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path,
                                            at_once: int) -> None:  # fmt: skip
    for name, concurrency in (("a", 4), ("b", at_once)):
        more = ("--policy.concurrency", str(concurrency))
        assert main(["generate", *options(endpoint, questions, index, tmp_path / name, *more)]) == 0
    assert (tmp_path / "a/trees.jsonl").read_bytes() == (tmp_path / "b/trees.jsonl").read_bytes()


def test_a_failed_request_fails_its_question_only(questions: Path, index: Path, tmp_path: Path) -> None:
    steady, broken = chat_reply(), {"on": True}

    def reply(request: dict[str, object]) -> tuple[int, object]:
        if broken["on"] and "(3)" in json.dumps(request["messages"]):
            return 400, {"error": {"message": "content filter", "type": "invalid_request_error"}}
        return steady(request)

    with serve(reply) as endpoint:
        out = tmp_path / "trees"
        command = ["generate", *options(endpoint, questions, index, out)]
        assert main(command) == 3
        failures = list(read_records(out / "failures.jsonl", Failure))
        assert [(failure.id, failure.reason) for failure in failures] == [("q3", "ContentFiltered")]
        assert "content filter" in failures[0].detail
        assert read_manifest(out)["status"] == "partial"
        assert "q3" not in {tree.question.id for tree in read_records(out / "trees.jsonl", Tree)}
        scored = tmp_path / "scored"
        assert main(["infer", *options(endpoint, questions, index, scored)]) == 3
        scores = json.loads((scored / "metrics.json").read_text())
        assert (scores["questions"], scores["failed"]) == (12, 1)
        assert scores["strict_em"] == pytest.approx(scores["em"] * 11 / 12)
        broken["on"] = False
        assert main(command) == 0
        assert len(list(read_records(out / "trees.jsonl", Tree))) == 12
        assert (out / "failures.jsonl").read_text() == ""


@pytest.mark.parametrize(("status", "error", "code", "words"), [
    (401, {"message": "bad key"}, 5, "is refused"),
    (429, {"message": "pay", "code": "insufficient_quota"}, 5, "quota is used up"),
    (404, {"message": "no such model"}, 2, "not found"),
])  # fmt: skip
def test_hopeless_errors_stop_the_run(questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                      status: int, error: dict[str, str], code: int, words: str) -> None:  # fmt: skip
    with serve(lambda request: (status, {"error": error})) as endpoint:
        assert main(["generate", *options(endpoint, questions, index, tmp_path / "t")]) == code
        assert len(endpoint.requests) <= 4
    assert words in capsys.readouterr().err
    assert read_manifest(tmp_path / "t")["status"] == "failed"


def test_what_answers_is_no_endpoint(
    monkeypatch: pytest.MonkeyPatch, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Page(BaseHTTPRequestHandler):
        body = b""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.body)))
            self.end_headers()
            self.wfile.write(self.body)

    with listening(Page) as address:
        page = Endpoint(address, [])
        for number, body in enumerate((b"<!doctype html>", b"[]", b'{"data": ["a"]}', b'{"da')):
            monkeypatch.setattr(Page, "body", body)
            assert main(["infer", *options(page, questions, index, tmp_path / str(number))]) == 2
            assert "usually ends in /v1" in capsys.readouterr().err


def test_nothing_answers_or_the_list_lacks_the_model(endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    nowhere = Endpoint("http://127.0.0.1:9/v1", [])
    assert main(["infer", *options(nowhere, questions, index, tmp_path / "a")]) == 2
    assert "no model answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert main(["infer", *options(endpoint, questions, index, tmp_path / "b", "--model", "other")]) == 0
    assert "serves double, not 'other'; the first request will tell" in capsys.readouterr().err


def test_constraints_go_out_in_the_engines_dialect(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path
) -> None:
    for engine, field in (("llamacpp", "grammar"), ("vllm", "structured_outputs"), ("openai", None)):
        more = ("--policy.engine", engine, "--limit", "1")
        main(["infer", *options(endpoint, questions, index, tmp_path / engine, *more)])
        request = endpoint.requests[-1]
        assert {"grammar", "structured_outputs"} & set(request) == ({field} if field else set())
    assert endpoint.requests[0]["grammar"].startswith('root ::= (thought " ")? (query | answer)\n')
    sent = [request["structured_outputs"] for request in endpoint.requests if "structured_outputs" in request]
    assert sent[0] == {"grammar": endpoint.requests[0]["grammar"]}


def test_what_may_be_sampled_is_said_to_every_engine_that_has_defaults_of_its_own(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"top_k", "min_p", "repeat_penalty", "repetition_penalty"}
    all_tokens = {
        "llamacpp": {"top_k": 0, "min_p": 0, "repeat_penalty": 1},
        "vllm": {"top_k": -1, "min_p": 0, "repetition_penalty": 1},
        "openai": {},
    }
    for engine, said in all_tokens.items():
        asked = ("--policy.engine", engine, "--limit", "1")
        main(["infer", *options(endpoint, questions, index, tmp_path / engine, *asked)])
        assert {name: value for name, value in endpoint.requests[-1].items() if name in names} == said
    few = ("--policy.top_k", "20", "--policy.min_p", "0.1", "--limit", "1")
    main(["infer", *options(endpoint, questions, index, tmp_path / "few", *few, "--policy.engine", "sglang")])
    assert (endpoint.requests[-1]["top_k"], endpoint.requests[-1]["min_p"]) == (20, 0.1)
    assert (
        main(["infer", *options(endpoint, questions, index, tmp_path / "no", *few, "--policy.engine", "openai")]) == 2
    )
    assert "engine openai takes neither" in capsys.readouterr().err


def test_another_configuration_does_not_touch_the_run(endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    out = tmp_path / "trees"
    assert main(["generate", *options(endpoint, questions, index, out)]) == 0
    before = (out / "trees.jsonl").read_bytes()
    assert main(["generate", *options(endpoint, questions, index, out, "--episode.depth", "5")]) == 2
    assert "episode.depth = 7, and is now asked for 5" in capsys.readouterr().err
    assert (out / "trees.jsonl").read_bytes() == before


@pytest.mark.parametrize("command", ["generate", "infer"])
def test_a_run_that_is_refused_closes_its_retriever(
    command: str, endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that still load when a command has ended spoil the models that the process loads next."""
    opened: list[Retriever] = []

    def recorded(path: str, config: RetrieverConfig) -> Retriever:
        opened.append(open_retriever(path, config))
        return opened[-1]

    for stage in (data_generation.generate, inference.inference):
        monkeypatch.setattr(stage, "open_retriever", recorded)
    asked = [command, *options(endpoint, questions, index, tmp_path / "run")]
    assert main([*asked, "--limit", "1"]) == 0
    assert main([*asked, "--limit", "1", "--episode.depth", "5"]) == 2
    assert len(opened) == 2
    for retriever in opened:
        with pytest.raises(RetrieverError, match="closed"):
            asyncio.run(retriever.search("iron", 1))


def test_a_failure_stands_until_its_question_has_another_outcome(questions: Path, index: Path, tmp_path: Path) -> None:
    run, plain = tmp_path / "run", chat_reply()

    def failing(request: dict[str, Any]) -> tuple[int, object]:
        return (500, {}) if any(f"({n})" in str(request) for n in (3, 5)) else plain(request)

    with serve(failing) as endpoint:
        command = ["infer", *options(endpoint, questions, index, run, "--policy.concurrency", "1")]
        assert main(command) == 3
    spent = read_manifest(run)["spent"]["calls"]
    with serve(plain) as endpoint:
        command = ["infer", *options(endpoint, questions, index, run, "--policy.concurrency", "1")]
        assert main([*command, "--budget.calls", str(spent + 1)]) == 4
        assert main(["evaluate", "--predictions", str(run), "--json"]) == 0
        scores = json.loads((run / "metrics.json").read_text())
        assert (scores["questions"], scores["failed"], scores["ended"]) == (12, 2, True)
        assert scores["strict_em"] == pytest.approx(scores["em"] * 10 / 12)
        assert main(["compare", str(run)]) == 0
        assert main(command) == 0
    assert list(read_records(run / "failures.jsonl", Failure)) == []
    scores = json.loads((run / "metrics.json").read_text())
    assert (scores["questions"], scores["failed"], scores["ended"]) == (12, 0, True)
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(bool(event.get("part")) for event in events) == 1, "the question that the budget cut in two"


def test_an_unfinished_run_is_told_from_a_whole_one(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    one_by_one = ("--policy.concurrency", "1")  # so that some questions end within the budget
    assert main(["infer", *options(endpoint, questions, index, run, *one_by_one, "--budget.calls", "12")]) == 4
    capsys.readouterr()
    assert main(["evaluate", "--predictions", str(run)]) == 0
    assert "unfinished the run did not come to its end" in capsys.readouterr().out
    assert main(["compare", str(run)]) == 2
    assert f"{run} was not run to its end (budget): run it again to go on" in capsys.readouterr().err
    assert main(["compare", str(run), "--force"]) == 0


def test_a_start_that_does_nothing_leaves_what_is_known(
    questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, plain = tmp_path / "run", chat_reply()
    with serve(lambda request: (500, {}) if "(3)" in str(request) else plain(request)) as endpoint:
        command = ["infer", *options(endpoint, questions, index, run)]
        assert main(command) == 3
        spent = read_manifest(run)["spent"]
    capsys.readouterr()
    assert main(command) == 2, "nothing listens there any more"
    assert (read_manifest(run)["spent"], read_manifest(run)["status"]) == (spent, "failed")
    assert main(["compare", str(run)]) == 0, "each question has an outcome"
    with serve(plain) as endpoint:
        assert main(["infer", *options(endpoint, questions, index, run)]) == 0
    write_records(run / "failures.jsonl", [Failure("q3", "PolicyError", "from before a kill")])
    assert main(["infer", *options(endpoint, questions, index, run)]) == 0
    assert list(read_records(run / "failures.jsonl", Failure)) == []


@pytest.mark.parametrize("key", ["abc\ndef", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_named_and_not_shown(
    key: str, endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert main(["infer", *options(endpoint, questions, index, tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "the key in $OPENAI_API_KEY holds what cannot be sent" in said
    assert key not in said


def test_a_run_without_any_answer_is_scored_as_such(
    questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with serve(lambda request: (500, {})) as endpoint:
        assert main(["infer", *options(endpoint, questions, index, run)]) == 3
    scores = json.loads((run / "metrics.json").read_text())
    assert (scores["questions"], scores["failed"], scores["em"], scores["strict_em"]) == (12, 12, None, 0.0)
    assert "no question has a prediction; failures.jsonl says why" in capsys.readouterr().out
    assert read_manifest(run)["status"] == "partial"
    assert main(["compare", str(run)]) == 2
    assert "has no predictions to compare (12 questions failed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "infer"])
def test_a_run_does_not_go_on_with_other_weights_of_the_same_name(
    command: str, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = (("runs/dpo", ("--budget.calls", "3"), 4), ("runs/sft", (), 2), ("", ("--budget.calls", "4"), 4),
              ("runs/sft", (), 2), ("runs/dpo", (), 0))  # fmt: skip
    for root, more, code in starts:
        with serve(chat_reply(), root=root) as endpoint:
            assert main([command, *options(endpoint, questions, index, tmp_path / "run", *more)]) == code
    said = "was begun with {'root': 'runs/dpo'} served as the policy, which is now {'root': 'runs/sft'}"
    assert said in capsys.readouterr().err


def test_episodes_that_end_without_an_answer_score_nothing_but_count(
    questions: Path, index: Path, tmp_path: Path
) -> None:
    def script(prompt: str, draw: int) -> str:
        return "No idea." if "(5)" in prompt else beginner(prompt, 2) if "Read" in prompt else answer("lek")

    with serve(chat_reply(script)) as endpoint:
        assert main(["infer", *options(endpoint, questions, index, tmp_path / "r")]) == 0
    scores = json.loads((tmp_path / "r/metrics.json").read_text())
    assert scores["finish"] == {"answer": 11, "no_action": 1}
    assert scores["em"] == pytest.approx(11 / 12)
    assert scores["by_type"] == {"bridge": {"questions": 12, "em": pytest.approx(11 / 12)}}
    assert main(["evaluate", "--predictions", str(tmp_path / "r"), "--json"]) == 0


def test_a_plan_from_a_few_questions_foretells_the_run(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    price = ("--policy.price.prompt", "2", "--policy.price.completion", "8")
    some, whole = tmp_path / "some", tmp_path / "whole"
    assert main(["generate", *options(endpoint, questions, index, some, "--limit", "8", *price)]) == 0
    asked = len(endpoint.requests)
    capsys.readouterr()
    assert main(["plan", "--questions", str(questions), "--like", str(some), "--json", *price]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(endpoint.requests) == asked, "a plan must not cost anything"
    assert main(["generate", *options(endpoint, questions, index, whole, *price)]) == 0
    spent = read_manifest(whole)["spent"]
    calls, *_, dollars = [line for line in report["forecast"] if line["what"] in ("calls", "dollars")]
    assert spent["calls"] <= report["calls_at_most"]
    assert calls["low"] * 0.8 <= spent["calls"] <= calls["high"] * 1.2
    assert dollars["amount"] == pytest.approx(calls["amount"] * (10 * 2 + 5 * 8) / 1e6)
    capsys.readouterr()
    assert (
        main(["plan", "--questions", str(questions), "--like", str(some), "--took", str(whole), "--json", *price]) == 0
    )
    took = {line["what"]: line for line in json.loads(capsys.readouterr().out)["forecast"]}
    assert took["calls"]["took"] == spent["calls"]
    assert took["dollars"]["took"] == pytest.approx(spent["usd"])
    assert took["calls"]["off"] == pytest.approx(spent["calls"] / calls["amount"] - 1)
    assert main(["plan", "--questions", str(questions), "--like", str(some), "--episode.depth", "5"]) == 2
    assert "another episode.* configuration" in capsys.readouterr().err


def test_a_night_between_two_starts_is_no_time_at_work(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    for limit in ("4", "8"):
        assert main(["generate", *options(endpoint, questions, index, run, "--limit", limit)]) == 0
        for event in (events := [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]):
            event["time"] = str(datetime.fromisoformat(event["time"]) - timedelta(hours=12))
        write_records(run / "metrics.jsonl", events)
    capsys.readouterr()
    assert main(["plan", "--questions", str(questions), "--like", str(run), "--json"]) == 0
    minutes = next(line for line in json.loads(capsys.readouterr().out)["forecast"] if line["what"] == "minutes")
    assert 0 < minutes["amount"] < 10


def test_a_second_round_knows_what_the_first_one_holds(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again, other = tmp_path / "first", tmp_path / "again", tmp_path / "other"
    assert main(["generate", *options(endpoint, questions, index, first, "--limit", "6")]) == 0
    assert main(["generate", *options(endpoint, questions, index, again, "--after", str(first))]) == 0
    for place, tree in enumerate(read_records(again / "trees.jsonl", Tree)):
        grown = tuple(node.id for node in tree.nodes if node.parent is not None)
        assert tree.known == (grown if place < 6 else ())
    more = ("--seed", "1", "--after", str(first), str(again))
    assert main(["generate", *options(endpoint, questions, index, other, *more)]) == 0
    earlier = {tree.question.id: steps(tree) for tree in read_records(again / "trees.jsonl", Tree)}
    for tree in read_records(other / "trees.jsonl", Tree):
        known = [path for node_id, path in steps(tree).items() if path in earlier[tree.question.id].values()]
        assert len(known) == len(tree.known or ())
    counts = read_manifest(other)["counts"]
    assert 0 < counts["known"] < counts["nodes"] / 2
    assert main(["generate", *options(endpoint, questions, index, other, "--seed", "1")]) == 2
    assert "after" in capsys.readouterr().err


def steps(tree: Tree) -> dict[int, tuple[object, ...]]:
    """For every node but the root the actions and contents that lead to it; a refused completion's text."""
    paths: dict[int, tuple[object, ...]] = {0: ()}
    for node in tree.nodes[1:]:
        content = node.text if node.content is None else normalise(node.content)
        paths[node.id] = (*paths[node.parent or 0], (node.action, content))
    return {node_id: path for node_id, path in paths.items() if path}


def test_a_rate_limit_holds_for_the_whole_run(endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    more = ("--limit", "2", "--policy.rate.requests", "600")
    assert main(["generate", *options(endpoint, questions, index, tmp_path / "r", *more)]) == 0
    assert len(endpoint.requests) > 15
    assert time.monotonic() - started >= (len(endpoint.requests) - 11) / 10


def test_ask_shows_each_step_with_its_sources(
    endpoint: Endpoint, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--base_url", endpoint.url, "--model", "double", "--policy.engine", "openai")
    assert main(["ask", QUESTION, "--index", str(index), *model, "--seed", "5"]) in (0, 3)
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert steps[0] == "query"
    assert steps[-1] in ("answer", "no")
    found = lines[1 : 1 + 3]
    assert [line.split()[0] for line in found] == ["1.", "2.", "3."]
    assert all(any(f"{p.title} [{p.id}]" in line for p in WORLD) for line in found)


def test_a_damaged_passage_store_ends_the_run_and_fails_no_question(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, out = shutil.copytree(index, tmp_path / "damaged"), tmp_path / "out"
    passages = damaged / "passages.jsonl"
    passages.write_bytes(b"\x00" * passages.stat().st_size)
    assert main(["infer", *options(endpoint, questions, damaged, out)]) == 2
    assert str(passages) in capsys.readouterr().err.splitlines()[-1]
    assert not (out / "failures.jsonl").exists()


@pytest.mark.parametrize("command", ["infer", "generate"])
def test_an_encoder_that_does_not_load_ends_the_run_before_the_first_call(
    endpoint: Endpoint, questions: Path, encoder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, corpus = shutil.copytree(encoder, tmp_path / "encoder"), tmp_path / "corpus.jsonl"
    write_records(corpus, [{"id": p.id, "title": p.title, "text": p.text} for p in WORLD])
    index = build_index(str(corpus), tmp_path / "index", small(mine)).path
    (mine / "modules.json").write_text("{}")
    before = len(endpoint.requests)
    assert main([command, *options(endpoint, questions, index, tmp_path / "out")]) == 2
    assert str(mine) in capsys.readouterr().err.splitlines()[-1]
    assert len(endpoint.requests) == before


def test_a_budget_of_calls_holds_exactly_whatever_is_in_flight(questions: Path, index: Path, tmp_path: Path) -> None:
    answered = chat_reply()

    def slow(request: dict[str, Any]) -> tuple[int, object]:
        time.sleep(0.05)
        return answered(request)

    with serve(slow) as endpoint:
        asked = ["infer", *options(endpoint, questions, index, tmp_path / "out", "--policy.concurrency", "4")]
        for limit in (6, 11):
            assert main([*asked, "--budget.calls", str(limit)]) == 4
            assert len(endpoint.requests) == limit


@pytest.mark.parametrize(("prompt", "completion", "cached", "code"), [
    (-9_000, 5, 0, 3), (10**400, 5, 0, 3), (10, 10**400, 0, 3), (0, 5, -7, 3),
    (0, 5, 7, 0),  # more tokens from the cache than there are end no run
])  # fmt: skip
def test_usage_that_can_be_no_count_is_a_broken_reply_that_the_next_start_survives(
    questions: Path, index: Path, tmp_path: Path, prompt: int, completion: int, cached: int, code: int
) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0,
             "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip
    answered, out = chat_reply(), tmp_path / "out"

    def believed(request: dict[str, Any]) -> tuple[int, object]:
        status, body = answered(request)
        return status, {**body, "usage": usage}  # pyright: ignore

    with serve(believed) as endpoint:
        assert main(["infer", *options(endpoint, questions, index, out)]) == code
        assert not code or {f.reason for f in read_records(out / "failures.jsonl", Failure)} == {"PolicyError"}
    with serve(answered) as endpoint:
        assert main(["infer", *options(endpoint, questions, index, out)]) == 0
    assert all(value >= 0 for value in json.loads((out / "metrics.json").read_text())["usage"].values())


_opened: list[str] = []
_watching: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Python's audit hook for files that are opened to be read from their first byte; it cannot be taken away again."""
    if _watching and event == "open" and arguments[1] in ("r", "rb") and Path(str(arguments[0])).name in _watching:
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch)


@contextmanager
def counted(name: str) -> Iterator[Callable[[], int]]:
    """How often a file of that name was opened for reading in the block."""
    _opened.clear()
    _watching.append(name)
    try:
        yield lambda: len(_opened)
    finally:
        _watching.clear()


def tree(name: str, solved: bool = False) -> Tree:
    scores = (1.0, 0.0) if solved else (None, None)
    root = Node(id=0, parent=None, depth=0)
    leaves = (Node(i, 0, 1, "answer", f"text {i}", f"x{i}", prediction_f1=scores[i - 1]) for i in (1, 2))
    return Tree(1, Question(name, f"What is {name}? é", ("a",)), "rollouts", Usage(2, 10, 5, 0), (root, *leaves))


def filled(path: Path, *names: str) -> Results[Tree]:
    results = Results(path, TREES)
    with results.appending() as keep:
        for name in names:
            keep(tree(name, solved=name == "b"))
    return results


def test_a_finished_run_is_started_without_reading_its_results(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, scored = tmp_path / "trees", tmp_path / "scored"
    generate = ["generate", *options(endpoint, questions, index, trees)]
    infer = ["infer", *options(endpoint, questions, index, scored)]
    assert main(generate) == main(infer) == 0
    before = json.loads((trees / "manifest.json").read_text())["counts"]
    with counted("trees.jsonl") as reads:
        assert main(generate) == 0
    assert reads() == 0
    assert json.loads((trees / "manifest.json").read_text())["counts"] == before
    with counted("predictions.jsonl") as reads:
        assert main(infer) == 0
    assert reads() == 1  # to score them


def test_a_run_of_an_earlier_version_is_read_once_and_then_not_again(
    endpoint: Endpoint, questions: Path, index: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trees"
    command = ["generate", *options(endpoint, questions, index, out)]
    assert main(command) == 0
    before, held = (out / "manifest.json").read_text(), index_of(out / "trees.jsonl").read_bytes()
    index_of(out / "trees.jsonl").unlink()
    with counted("trees.jsonl") as reads:
        assert main(command) == 0
        assert reads() == 1
        assert main(command) == 0
        assert reads() == 1
    assert index_of(out / "trees.jsonl").read_bytes() == held
    assert json.loads((out / "manifest.json").read_text())["counts"] == json.loads(before)["counts"]


def test_what_is_appended_is_found_again(tmp_path: Path) -> None:
    file = tmp_path / "trees.jsonl"
    filled(file, "b", "a")
    again = filled(file, "c")
    assert [name in again for name in "abcd"] == [True, True, True, False]
    assert sum(counts["solved"] for counts in again.counts()) == 1
    for place in places_of(file, TREES):
        assert read_at(place, file, Tree).question.id == place.id
    again.put_in_order(["a", "b"])
    assert [each.question.id for each in read_records(file, Tree)] == ["a", "b", "c"]
    assert [(p.id, p.line) for p in read_records(index_of(file), Place)] == [("a", 1), ("b", 2), ("c", 3)]
    with counted("trees.jsonl") as reads:
        assert len(Results(file, TREES)) == 3
        assert reads() == 0


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: index_of(file).write_bytes(index_of(file).read_bytes()[:-30]),
        lambda file: index_of(file).write_bytes(index_of(file).read_bytes()[:40]),
        lambda file: index_of(file).write_text("<html>"),
        lambda file: index_of(file).write_bytes(index_of(file).read_bytes().replace(b'"version":1', b'"version":0')),
        lambda file: file.write_text(file.read_text() + dump_line(tree("d")) + "\n"),
        lambda file: file.write_text(dump_line(tree("d")) + "\n\n" + dump_line(tree("a")) + "\n"),
        lambda file: file.unlink(),
    ],
    ids=["torn index", "one torn line", "a web page", "an older version", "a line more", "another file", "no file"],
)
def test_an_index_that_does_not_hold_is_made_anew(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    file = tmp_path / "trees.jsonl"
    filled(file, "b", "a")
    old = index_of(file).stat().st_mtime_ns
    harm(file)
    if file.exists() and b"version" in index_of(file).read_bytes()[-20:]:
        os.utime(file, ns=(old + 10**9, old + 10**9))  # a clock of the file system may be coarse
    there = [each.question.id for each in read_records(file, Tree)] if file.exists() else []
    results = filled(file, "e")
    assert [p.id for p in places_of(file, TREES)] == [*there, "e"]
    results.put_in_order(["e"])
    assert [each.question.id for each in read_records(file, Tree)] == ["e", *there]
    assert [p.start for p in places_of(file, TREES)][:2] == [0, len(dump_line(tree("e")).encode()) + 1][
        : len(there) + 1
    ]


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trees.jsonl"
    file.write_text(dump_line(tree("a")) + '\n\n{"id":"b"}\n')
    with pytest.raises(DataError, match=r"trees\.jsonl:3: Tree: format"):
        Results(file, TREES)


def test_an_earlier_run_is_found_behind_blank_lines_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "trees.jsonl"
    file.write_text("\n" + dump_line(tree("a")) + "\n\n" + dump_line(tree("b")) + "\n")
    write_json(tmp_path / "manifest.json", {})
    assert Earlier([tmp_path]).mark(tree("b")).known == (1, 2)
    assert [p.line for p in places_of(file, TREES)] == [2, 4]
    assert not index_of(file).exists()
