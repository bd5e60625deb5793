"""Generation and inference end to end, over HTTP, with a scripted policy and a real index of a tiny encoder; the index
beside a results file, which spares the reading and never says what the file does not hold.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import data_generation.generate
import inference.inference
from apps.commands import main
from data_generation.tally import Earlier
from indexes import open_retriever
from indexes.commands.build import build_index
from steprag.agent.retriever import Retriever
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import Place, Results, index_of, places_of, read_at
from steprag.batch.tree_results import TREES
from steprag.config.sections import RetrieverConfig
from steprag.errors import DataError, RetrieverError
from steprag.records.jsonl import dump_line, read_json, read_records, write_json, write_records
from steprag.records.training_rows import Pair, Trajectory
from steprag.runs.run import read_manifest
from steprag.scores.metrics import normalise
from steprag.tree import Failure, Node, Tree
from steprag.types import Message, Prediction, Question, Usage
from tests.fakes import (
    BY_ROLLOUTS,
    QUESTION,
    WORLD,
    Endpoint,
    Replying,
    Start,
    answer,
    beginner,
    chat_reply,
    listening,
    options,
    serve,
    wait_for,
)
from tests.indexing import small
from tests.ray_parts import retriever_service

Capture = pytest.CaptureFixture[str]


def scores_of(run: Path) -> dict[str, Any]:
    return read_json(run / "metrics.json")


def failed(run: Path) -> list[str]:
    return [failure.id for failure in read_records(run / "failures.jsonl", Failure)]


def test_questions_become_trees_pairs_and_scores(start: Start, endpoint: Endpoint, tmp_path: Path) -> None:
    trees, scored = tmp_path / "trees", tmp_path / "scored"
    assert start("generate", "trees", "--search.rollouts", "5") == 0
    grown = list(read_records(trees / "trees.jsonl", Tree))
    assert [tree.question.id for tree in grown] == [f"q{i}" for i in range(12)]
    manifest = read_manifest(trees)
    assert manifest["status"] == "done"
    assert manifest["usage"]["calls"] == len(endpoint.requests) == sum(tree.usage.calls for tree in grown)
    assert manifest["identity"]["prompt"]["profile"] == "transcript"

    assert main(["pairs", "--trees", str(trees), "--pairs.margin", "0.01", *BY_ROLLOUTS]) == 0
    sent = {json.dumps(request["messages"]) for request in endpoint.requests}
    rows: list[tuple[Message, ...]] = [pair.prompt for pair in read_records(trees / "pairs/pairs.train.jsonl", Pair)]
    rows += [row.prompt for row in read_records(trees / "pairs/sft.train.jsonl", Trajectory)]
    assert rows
    assert all(json.dumps(list(prompt)) in sent for prompt in rows), "a prompt to train on that was never sent"

    before = len(endpoint.requests)
    assert start("infer", "scored") == 0
    assert len(list(read_records(scored / "predictions.jsonl", Prediction))) == 12
    scores = scores_of(scored)
    assert scores["questions"] == sum(scores["finish"].values()) == 12
    assert scores["em_interval"][0] <= scores["em"] <= scores["em_interval"][1]
    assert {request["temperature"] for request in endpoint.requests[before:]} == {0.0}, "greedy unless asked otherwise"
    asked = [request["messages"][1]["content"] for request in endpoint.requests[before:]]
    roots = {content for content in asked if "\n" not in content[:-20]}
    assert roots <= {node.messages[1]["content"] for tree in grown for node in tree.nodes[:1] if node.messages}


def test_finished_questions_are_not_asked_again(start: Start, endpoint: Endpoint, tmp_path: Path) -> None:
    trees = tmp_path / "trees/trees.jsonl"
    assert start("generate", "trees") == 0
    whole, calls = trees.read_bytes(), len(endpoint.requests)
    lines = whole.splitlines(keepends=True)
    trees.write_bytes(b"".join(lines[:7]) + lines[7][:100])  # as a kill leaves it
    for _ in range(2):
        assert start("generate", "trees") == 0
        assert trees.read_bytes() == whole
        assert len(endpoint.requests) == calls, "a call that the journal holds was made again"


def test_a_failed_request_fails_its_question_only(start: Start, endpoint: Endpoint, tmp_path: Path) -> None:
    def reply(request: dict[str, object]) -> tuple[int, object]:
        filtered = {"error": {"message": "content filter", "type": "invalid_request_error"}}
        return (400, filtered) if "(3)" in json.dumps(request["messages"]) else chat_reply()(request)

    out = tmp_path / "trees"
    with serve(reply) as broken:
        assert start("generate", "trees", at=broken) == 3
        (failure,) = read_records(out / "failures.jsonl", Failure)
        assert (failure.id, failure.reason) == ("q3", "ContentFiltered")
        assert "content filter" in failure.detail
        assert read_manifest(out)["status"] == "partial"
        assert "q3" not in {tree.question.id for tree in read_records(out / "trees.jsonl", Tree)}
        assert start("infer", "scored", at=broken) == 3
    scores = scores_of(tmp_path / "scored")
    assert (scores["questions"], scores["failed"]) == (12, 1)
    assert scores["strict_em"] == pytest.approx(scores["em"] * 11 / 12)
    assert start("generate", "trees") == 0
    assert len(list(read_records(out / "trees.jsonl", Tree))) == 12
    assert failed(out) == []


@pytest.mark.parametrize(("status", "error", "code", "words"), [
    (401, {"message": "bad key"}, 5, "is refused"),
    (429, {"message": "pay", "code": "insufficient_quota"}, 5, "quota is used up"),
    (404, {"message": "no such model"}, 2, "not found"),
])  # fmt: skip
def test_hopeless_errors_stop_the_run(
    start: Start, tmp_path: Path, capsys: Capture, status: int, error: dict[str, str], code: int, words: str
) -> None:
    with serve(lambda request: (status, {"error": error})) as endpoint:
        assert start("generate", "t", at=endpoint) == code
        assert len(endpoint.requests) <= 4
    assert words in capsys.readouterr().err
    assert read_manifest(tmp_path / "t")["status"] == "failed"


def test_what_is_no_endpoint_of_this_model_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    class Page(Replying):
        body = b""

        def do_GET(self) -> None:
            self.reply(self.body)

    with listening(Page) as address:
        for body in (b"<!doctype html>", b"[]", b'{"data": ["a"]}', b'{"da'):
            monkeypatch.setattr(Page, "body", body)
            assert start("infer", "page", at=Endpoint(address, [])) == 2
            assert "usually ends in /v1" in capsys.readouterr().err
    assert start("infer", "nowhere", at=Endpoint("http://127.0.0.1:9/v1", [])) == 2
    assert "no model answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert start("infer", "other", "--model", "other") == 0
    assert "serves double, not 'other'; the first request will tell" in capsys.readouterr().err
    for key in ("abc\ndef", "schlüssel"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert start("infer", "key") == 2
        said = capsys.readouterr().err
        assert "the key in $OPENAI_API_KEY holds what cannot be sent" in said
        assert key not in said


@pytest.mark.parametrize(("engine", "constraint", "all_tokens"), [
    ("llamacpp", "grammar", {"top_k": 0, "min_p": 0, "repeat_penalty": 1}),
    ("vllm", "structured_outputs", {"top_k": -1, "min_p": 0, "repetition_penalty": 1}),
    ("openai", None, {}),
])  # fmt: skip
def test_constraints_and_what_may_be_sampled_go_out_in_the_engines_dialect(
    start: Start, endpoint: Endpoint, capsys: Capture, engine: str, constraint: str | None, all_tokens: dict[str, int]
) -> None:
    """Every engine that has defaults of its own is told that all tokens may be sampled."""
    names, limits = {"top_k", "min_p", "repeat_penalty", "repetition_penalty"}, {"grammar", "structured_outputs"}
    asked = ("--policy.engine", engine, "--limit", "1")
    start("infer", "all", *asked)
    sent = endpoint.requests[0]
    assert {name: value for name, value in sent.items() if name in names} == all_tokens
    assert limits & set(sent) == ({constraint} if constraint else set())
    if constraint:
        grammar = sent[constraint] if engine == "llamacpp" else sent[constraint]["grammar"]
        assert grammar.startswith('root ::= (thought " ")? (query | answer)\n')
    code = start("infer", "few", *asked, "--policy.top_k", "20", "--policy.min_p", "0.1")
    if engine == "openai":
        assert code == 2
        assert "engine openai takes neither" in capsys.readouterr().err
    else:
        assert (endpoint.requests[-1]["top_k"], endpoint.requests[-1]["min_p"]) == (20, 0.1)


@pytest.mark.parametrize("command", ["generate", "infer"])
def test_another_configuration_does_not_touch_the_run_and_closes_its_retriever(
    command: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Weights that still load when a command has ended spoil the models that the process loads next."""
    opened: list[Retriever] = []

    def recorded(path: str, config: RetrieverConfig) -> Retriever:
        opened.append(open_retriever(path, config))
        return opened[-1]

    for stage in (data_generation.generate, inference.inference):
        monkeypatch.setattr(stage, "open_retriever", recorded)
    assert start(command, "run", "--limit", "1") == 0
    results = next((tmp_path / "run").glob("[pt]r*s.jsonl"))
    before = results.read_bytes()
    assert start(command, "run", "--limit", "1", "--episode.depth", "5") == 2
    assert "episode.depth = 7, and is now asked for 5" in capsys.readouterr().err
    assert results.read_bytes() == before
    assert len(opened) == 2
    for retriever in opened:
        with pytest.raises(RetrieverError, match="closed"):
            asyncio.run(retriever.search("iron", 1))


def test_a_failure_stands_until_its_question_has_another_outcome(start: Start, tmp_path: Path) -> None:
    run, one_by_one = tmp_path / "run", ("--policy.concurrency", "1")

    def failing(request: dict[str, Any]) -> tuple[int, object]:
        return (500, {}) if any(f"({n})" in str(request) for n in (3, 5)) else chat_reply()(request)

    with serve(failing) as broken:
        assert start("infer", "run", *one_by_one, at=broken) == 3
    spent = read_manifest(run)["spent"]
    assert start("infer", "run", *one_by_one, at=broken) == 2, "nothing listens there any more"
    assert (read_manifest(run)["spent"], read_manifest(run)["status"]) == (spent, "failed")
    assert main(["compare", str(run)]) == 0, "each question has an outcome"
    assert start("infer", "run", *one_by_one, "--budget.calls", str(spent["calls"] + 1)) == 4
    assert main(["evaluate", "--predictions", str(run), "--json"]) == 0
    scores = scores_of(run)
    assert (scores["questions"], scores["failed"], scores["ended"]) == (12, 2, True)
    assert scores["strict_em"] == pytest.approx(scores["em"] * 10 / 12)
    assert main(["compare", str(run)]) == 0
    assert start("infer", "run", *one_by_one) == 0
    assert failed(run) == []
    scores = scores_of(run)
    assert (scores["questions"], scores["failed"], scores["ended"]) == (12, 0, True)
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(bool(event.get("part")) for event in events) == 0, "none was begun that the budget would cut in two"
    write_records(run / "failures.jsonl", [Failure("q3", "PolicyError", "from before a kill")])
    assert start("infer", "run", *one_by_one) == 0
    assert failed(run) == []


def test_an_unfinished_run_is_told_from_a_whole_one(start: Start, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    one_by_one = ("--policy.concurrency", "1")  # so that some questions end within the budget
    assert start("infer", "run", *one_by_one, "--budget.calls", "12") == 4
    capsys.readouterr()
    assert main(["evaluate", "--predictions", str(run)]) == 0
    assert "unfinished the run did not come to its end" in capsys.readouterr().out
    assert main(["compare", str(run)]) == 2
    assert f"{run} was not run to its end (budget): run it again to continue" in capsys.readouterr().err
    assert main(["compare", str(run), "--force"]) == 0


def test_a_run_without_any_answer_is_scored_as_such(start: Start, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    with serve(lambda request: (500, {})) as broken:
        assert start("infer", "run", at=broken) == 3
    scores = scores_of(run)
    assert (scores["questions"], scores["failed"], scores["em"], scores["strict_em"]) == (12, 12, None, 0.0)
    assert "no question has a prediction; failures.jsonl says why" in capsys.readouterr().out
    assert read_manifest(run)["status"] == "partial"
    assert main(["compare", str(run)]) == 2
    assert "has no predictions to compare (12 questions failed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "infer"])
def test_a_run_does_not_go_on_with_other_weights_of_the_same_name(command: str, start: Start, capsys: Capture) -> None:
    starts = (("runs/dpo", ("--budget.calls", "3"), 4), ("runs/sft", (), 2), ("", ("--budget.calls", "4"), 4),
              ("runs/sft", (), 2), ("runs/dpo", (), 0))  # fmt: skip
    for root, more, code in starts:
        with serve(chat_reply(), root=root) as endpoint:
            assert start(command, "run", *more, at=endpoint) == code
    said = "was begun with {'root': 'runs/dpo'} served as the policy, which is now {'root': 'runs/sft'}"
    assert said in capsys.readouterr().err


def test_episodes_that_end_without_an_answer_score_nothing_but_count(start: Start, tmp_path: Path) -> None:
    def script(prompt: str, draw: int) -> str:
        return "No idea." if "(5)" in prompt else beginner(prompt, 2) if "Read" in prompt else answer("lek")

    with serve(chat_reply(script)) as endpoint:
        assert start("infer", "r", at=endpoint) == 0
    scores = scores_of(tmp_path / "r")
    assert scores["finish"] == {"answer": 11, "no_action": 1}
    assert scores["em"] == pytest.approx(11 / 12)
    assert scores["by_type"] == {"bridge": {"questions": 12, "em": pytest.approx(11 / 12)}}


def test_a_run_of_questions_has_a_folder_by_their_name(
    endpoint: Endpoint, questions: Path, world_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    """As the published command, which names a data set and a model alone. Without an index the newest is taken."""
    monkeypatch.chdir(tmp_path)
    argv = options(endpoint, questions.absolute(), world_index.absolute(), Path("x"), "--limit", "6")
    del argv[argv.index("--out") : argv.index("--out") + 2]
    assert main(["infer", *argv]) == 0
    assert (tmp_path / "runs" / f"infer-{questions.stem}" / "metrics.json").is_file()
    del argv[argv.index("--index") : argv.index("--index") + 2]
    assert main(["infer", *argv]) == 2
    assert "give --index, or a recipe (--config FILE) with the key index" in capsys.readouterr().err
    shutil.copytree(world_index, tmp_path / "runs/mine/index")
    for depth, name in (("7", "infer-questions"), ("6", "infer-questions-2"), ("6", "infer-questions-2")):
        assert main(["infer", *argv, "--depth", depth]) == 0
        said = capsys.readouterr().err
        assert f"index: {Path('runs/mine/index')}, the newest under runs" in said
        assert f"infer: run folder {Path('runs') / name}\n" in said
        assert "model: double at http://127.0.0.1" in said
    capsys.readouterr()
    assert main(["check", "runs/mine/index", "runs/infer-questions"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "runs/mine/index: ok: 4 files", "runs/infer-questions: ok: 4 files"
    ]  # fmt: skip
    assert main(["generate", *argv, "--rollouts", "2"]) == 0
    assert read_manifest(tmp_path / "runs/generate-questions")["config"]["search"]["rollouts"] == 2
    for following in ("pairs runs/generate-questions", "train runs/generate-questions/pairs"):
        assert (said := capsys.readouterr().err.splitlines()[-1]) == f"next: steprag {following}"
        if following.startswith("pairs"):
            assert main(shlex.split(said)[2:]) in (0, 3)


def test_a_plan_from_a_few_questions_foretells_the_run(
    start: Start, endpoint: Endpoint, questions: Path, tmp_path: Path, capsys: Capture
) -> None:
    price = ("--policy.price.prompt", "2", "--policy.price.completion", "8")
    plan = ["plan", "--questions", str(questions), "--like", str(tmp_path / "some")]
    assert start("generate", "some", "--limit", "8", *price) == 0
    asked = len(endpoint.requests)
    capsys.readouterr()
    assert main([*plan, "--json", *price]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(endpoint.requests) == asked, "a plan must not cost anything"
    assert start("generate", "whole", *price) == 0
    spent = read_manifest(tmp_path / "whole")["spent"]
    calls, *_, dollars = [line for line in report["forecast"] if line["what"] in ("calls", "dollars")]
    assert spent["calls"] <= report["calls_at_most"]
    assert calls["low"] * 0.8 <= spent["calls"] <= calls["high"] * 1.2
    assert dollars["amount"] == pytest.approx(calls["amount"] * (10 * 2 + 5 * 8) / 1e6)
    capsys.readouterr()
    assert main(["plan", "--questions", str(questions), *price]) == 0
    said, most, likely = capsys.readouterr().out, report["dollars_at_most"], report["likely"]["dollars"]
    assert 0 < likely < most
    assert f"dollars, at most   {most:,.2f}\n" in said
    assert said.startswith(f"likely             ${likely:,.2f}, ")
    assert f" calls; at most ${most:,.2f}\n" in said
    assert "To stop at $5: --usd 5." in said
    assert main([*plan, "--took", str(tmp_path / "whole"), "--json", *price]) == 0
    took = {line["what"]: line for line in json.loads(capsys.readouterr().out)["forecast"]}
    assert took["calls"]["took"] == spent["calls"]
    assert took["dollars"]["took"] == pytest.approx(spent["usd"])
    assert took["calls"]["off"] == pytest.approx(spent["calls"] / calls["amount"] - 1)
    assert main([*plan, "--episode.depth", "5"]) == 2
    assert "another episode.* configuration" in capsys.readouterr().err
    assert report["dollars_at_most"] > spent["usd"]
    assert report["prompt_tokens_at_most"] > 10 * spent["calls"]
    assert report["hours_at_most"] is None
    paces = (["--pace", "2"], ["--policy.rate.requests", "1"], ["--pace", "2", "--policy.rate.requests", "1"])
    hours = []
    for pace in paces:
        assert main(["plan", "--questions", str(questions), "--json", *pace]) == 0
        hours.append(json.loads(capsys.readouterr().out)["hours_at_most"])
    tokens = report["prompt_tokens_at_most"] + report["completion_tokens_at_most"]
    assert hours == pytest.approx([tokens / 2 / 3600, report["calls_at_most"] / 60, tokens / 2 / 3600])
    assert main(["plan", "--questions", str(questions), "--pace", "0"]) == 2
    assert "--pace 0: give tokens a second" in capsys.readouterr().err
    served = ("--policy.base_url", endpoint.url)
    assert main(["plan", "--questions", str(questions), "--like", str(tmp_path / "some"), *served]) == 0
    said = capsys.readouterr().out
    assert "dollars, at most   no price given" in said
    assert "hours, at most     no pace given (--pace" in said
    assert "dollars               no price given" in said
    assert "--usd" not in said, "without a price nobody knows when"
    trees = tmp_path / "some/trees.jsonl"
    trees.write_bytes(b"".join(trees.read_bytes().splitlines(keepends=True)[:5]))  # as a stop leaves it
    assert main([*plan, "--json", *price]) == 0
    told = capsys.readouterr()
    assert "3 trees are begun and not finished; what they took is shared out over the 5 finished ones" in told.err
    assert json.loads(told.out)["forecast"][0]["amount"] == pytest.approx(asked / 5 * 12)


def test_a_run_of_the_agent_is_planned_as_a_search_is(
    start: Start, endpoint: Endpoint, questions: Path, tmp_path: Path, capsys: Capture
) -> None:
    price = ("--policy.price.prompt", "2", "--policy.price.completion", "8")
    plan = ["plan", "infer", "--questions", str(questions), "--base_url", endpoint.url, *price]
    assert start("infer", "some", "--limit", "8", *price) == 0
    assert start("infer", "whole", *price) == 0
    asked, spent = len(endpoint.requests), read_manifest(tmp_path / "whole")["spent"]
    capsys.readouterr()
    assert main([*plan, "--best_of", "2", "--candidates", "3", "--limit", "10", "--pace", "100", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["calls_at_most"], report["likely"]["calls"]) == (10 * 2 * 3 * 7, 92)
    assert 0 < report["likely"]["hours"] < report["hours_at_most"]
    assert main([*plan, "--like", str(tmp_path / "some"), "--took", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    assert f"calls, at most     {12 * 7}\n" in said
    assert re.search(rf"\ncalls +[\d.]+ +[\d.]+ +[\d.]+ +{spent['calls']}.00 ", said)
    assert "To stop at $5: --usd 5." in said
    assert main(plan) == 0
    assert "half or double: predictions took that elsewhere (docs/figures/" in capsys.readouterr().out
    assert main([*plan, "--like", str(tmp_path / "some"), "--best_of", "3"]) == 2
    assert "another best_of configuration" in capsys.readouterr().err
    assert len(endpoint.requests) == asked, "a plan must not cost anything"


def test_a_night_between_two_starts_is_no_time_at_work(
    start: Start, questions: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    for limit in ("4", "8"):
        assert start("generate", "run", "--limit", limit) == 0
        for event in (events := [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]):
            event["time"] = str(datetime.fromisoformat(event["time"]) - timedelta(hours=12))
        write_records(run / "metrics.jsonl", events)
    capsys.readouterr()
    assert main(["plan", "--questions", str(questions), "--like", str(run), "--json"]) == 0
    minutes = next(line for line in json.loads(capsys.readouterr().out)["forecast"] if line["what"] == "minutes")
    assert 0 < minutes["amount"] < 10


def test_a_second_round_knows_what_the_first_one_holds(start: Start, tmp_path: Path, capsys: Capture) -> None:
    first, again, other = tmp_path / "first", tmp_path / "again", tmp_path / "other"
    assert start("generate", "first", "--limit", "6") == 0
    assert start("generate", "again", "--after", str(first)) == 0
    for place, tree in enumerate(read_records(again / "trees.jsonl", Tree)):
        grown = tuple(node.id for node in tree.nodes if node.parent is not None)
        assert tree.known == (grown if place < 6 else ())
    assert start("generate", "other", "--seed", "1", "--after", str(first), str(again)) == 0
    earlier = {tree.question.id: steps(tree) for tree in read_records(again / "trees.jsonl", Tree)}
    for tree in read_records(other / "trees.jsonl", Tree):
        known = [path for node_id, path in steps(tree).items() if path in earlier[tree.question.id].values()]
        assert len(known) == len(tree.known or ())
    counts = read_manifest(other)["counts"]
    assert 0 < counts["known"] < counts["nodes"] / 2
    assert start("generate", "other", "--seed", "1") == 2
    assert "after" in capsys.readouterr().err


def steps(tree: Tree) -> dict[int, tuple[object, ...]]:
    """For every node but the root the actions and contents that lead to it; a refused completion's text."""
    paths: dict[int, tuple[object, ...]] = {0: ()}
    for node in tree.nodes[1:]:
        content = node.text if node.content is None else normalise(node.content)
        paths[node.id] = (*paths[node.parent or 0], (node.action, content))
    return {node_id: path for node_id, path in paths.items() if path}


def test_ask_shows_each_step_with_its_sources(endpoint: Endpoint, world_index: Path, capsys: Capture) -> None:
    model = ("--base_url", endpoint.url, "--model", "double", "--policy.engine", "openai")
    assert main(["ask", QUESTION, "--index", str(world_index), *model, "--seed", "5"]) in (0, 3)
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split()[0] for line in lines if line.strip() and not line.startswith(" ")]
    assert steps[0] == "query"
    assert {"answer", "no"} & {*steps}
    found = lines[1 : 1 + 3]
    assert [line.split()[0] for line in found] == ["1.", "2.", "3."]
    assert all(any(f"{p.title} [{p.id}]" in line for p in WORLD) for line in found)


@pytest.mark.parametrize("command", ["infer", "generate"])
def test_an_index_that_does_not_serve_ends_the_run_and_fails_no_question(
    start: Start, endpoint: Endpoint, encoder: Path, world_index: Path, tmp_path: Path, command: str, capsys: Capture
) -> None:
    """Its passages are damaged, or its encoder does not load, which ends the run before the first call."""
    damaged, mine = (shutil.copytree(world_index, tmp_path / "damaged"), shutil.copytree(encoder, tmp_path / "encoder"))
    passages = damaged / "passages.jsonl"
    passages.write_bytes(b"\x00" * passages.stat().st_size)
    assert start(command, "out", index=damaged) == 2
    assert str(passages) in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out/failures.jsonl").exists()
    index = build_index(str(world_index.parent / "corpus.jsonl"), tmp_path / "index", small(mine)).path
    (mine / "modules.json").write_text("{}")
    before = len(endpoint.requests)
    assert start(command, "other", index=index) == 2
    assert str(mine) in capsys.readouterr().err.splitlines()[-1]
    assert len(endpoint.requests) == before


def test_a_budget_of_calls_is_never_passed_whatever_is_in_flight(start: Start, tmp_path: Path) -> None:
    def slow(request: dict[str, Any]) -> tuple[int, object]:
        time.sleep(0.05)
        return chat_reply()(request)

    with serve(slow) as endpoint:
        for limit in (6, 11):
            assert start("infer", "out", "--policy.concurrency", "4", "--budget.calls", str(limit), at=endpoint) == 4
            assert limit - 6 < len(endpoint.requests) <= limit
            assert read_manifest(tmp_path / "out")["spent"]["calls"] == len(endpoint.requests)


def metered(request: dict[str, Any], seconds: float = 0.02) -> tuple[int, object]:
    """As `chat_reply`, after a moment, with tokens as real prompts have them."""
    time.sleep(seconds)
    status, body = chat_reply()(request)
    prompt = sum(len(message["content"]) for message in request["messages"]) // 4
    return status, {**body, "usage": {"prompt_tokens": prompt, "completion_tokens": 60, "total_tokens": 0}}  # pyright: ignore


BILL = re.compile(r"(\w+): ([\d,]+) calls, ([\d,]+) prompt and ([\d,]+) completion tokens, \$([\d.]+)"
                  r"(?:; (\d+) of 12 questions are finished, (\d+) wait)?")  # fmt: skip
PRICED = ("--policy.price.prompt", "100", "--policy.price.completion", "400", "--policy.concurrency", "16")


def billed(said: str, run: Path) -> tuple[int, int, int]:
    """Calls, and questions that are finished and that wait, as the one bill says; the journal says the same."""
    (bill,) = BILL.findall(said)
    calls, prompt, completion = (int(each.replace(",", "")) for each in bill[1:4])
    used = [usage for _, _, usage in Journal(run / JOURNAL, reading=True).usage()]
    assert Usage(calls, prompt, completion) == sum(used, Usage())
    assert float(bill[4]) == pytest.approx((100 * prompt + 400 * completion) / 1e6, abs=0.006)
    assert bill[0] == read_manifest(run)["stage"]
    return calls, int(bill[5] or 12), int(bill[6] or 0)


@pytest.mark.parametrize(("command", "usd"), [("generate", 6.0), ("infer", 0.8)])
def test_a_stop_at_dollars_is_calm_and_told_in_one_bill(
    start: Start, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture, command: str, usd: float
) -> None:
    run = tmp_path / "run"
    with serve(metered) as endpoint:
        assert start(command, "run", *PRICED, "--budget.usd", str(usd), at=endpoint) == 4
        gc.collect()  # asyncio tells of an error that nobody took once its task is freed
        said = capsys.readouterr().err
        assert "Traceback" not in said + caplog.text
        assert "never retrieved" not in said + caplog.text
        assert f"budget.usd = {usd} is reached" in said.splitlines()[-1]
        calls, finished, wait = billed(said, run)
        assert (calls, finished + wait) == (len(endpoint.requests), 12)
        assert finished, "questions that were begun are ended first"
        assert wait
        assert usd / 3 < read_manifest(run)["spent"]["usd"] <= usd
        assert read_json(run / "progress.json")["done"] == finished
        assert start(command, "run", *PRICED, "--budget.usd", "100", at=endpoint) == 0
        said = capsys.readouterr().err
        assert billed(said, run) == (len(endpoint.requests), 12, 0)
        assert said.count(": 12/12 questions in ") == 1
        assert max(Counter(map(dump_line, endpoint.requests)).values()) == 1, "a call was paid twice"
    assert not (run / "progress.json").exists()


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_is_calm_and_told_in_one_bill(start: Start, questions: Path, tmp_path: Path, signals: int) -> None:
    """Also where a second one comes before the first has ended the run."""
    run = tmp_path / "run"
    with retriever_service() as service, serve(partial(metered, seconds=0.1)) as endpoint:
        command = [sys.executable, "-m", "apps.commands", "generate"]
        command += options(endpoint, questions, Path("index"), run, "--index", service, *PRICED)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            try:
                wait_for(lambda: len(endpoint.requests) > 60 or child.poll() is not None)
                far = read_json(run / "progress.json")
                for _ in range(signals):
                    child.send_signal(signal.SIGINT)
                    time.sleep(0.003)
                said = child.communicate(timeout=60)[1]
            finally:
                child.kill()
        assert child.returncode == 130
        assert "Traceback" not in said
        assert "never retrieved" not in said
        assert said.endswith("steprag: interrupted; run the same command again to continue\n")
        assert {"done", "total", "seconds", "left_seconds", "calls", "usd", "at"} == far.keys()
        assert far["total"] == 12
        calls, finished, wait = billed(said, run)
        assert (read_manifest(run)["status"], finished + wait) == ("interrupted", 12)
        assert signals == 2 or calls == len(endpoint.requests), "calls in flight were paid and not waited for"
        assert start("generate", "run", *PRICED, at=endpoint, index=service) == 0
    assert not (run / "progress.json").exists()
    again = Counter(map(dump_line, endpoint.requests))
    assert sum(again.values()) - len(again) <= (16 if signals == 2 else 0)


@pytest.mark.parametrize(("prompt", "completion", "cached", "code"), [
    (-9_000, 5, 0, 3), (10**400, 5, 0, 3), (10, 10**400, 0, 3), (0, 5, -7, 3),
    (0, 5, 7, 0),  # more tokens from the cache than there are end no run
])  # fmt: skip
def test_usage_that_can_be_no_count_is_a_broken_reply_that_the_next_start_survives(
    start: Start, tmp_path: Path, prompt: int, completion: int, cached: int, code: int
) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0,
             "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip
    out = tmp_path / "out"

    def believed(request: dict[str, Any]) -> tuple[int, object]:
        status, body = chat_reply()(request)
        return status, {**body, "usage": usage}  # pyright: ignore

    with serve(believed) as endpoint:
        assert start("infer", "out", at=endpoint) == code
    assert not code or {f.reason for f in read_records(out / "failures.jsonl", Failure)} == {"PolicyError"}
    assert start("infer", "out") == 0
    assert all(value >= 0 for value in scores_of(out)["usage"].values())


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


def test_a_finished_run_is_started_without_reading_its_results(start: Start, tmp_path: Path) -> None:
    """And one of an earlier version, which has no index of them, reads them once."""
    trees = tmp_path / "trees/trees.jsonl"
    assert start("generate", "trees") == start("infer", "scored") == 0
    counts, held = read_manifest(tmp_path / "trees")["counts"], index_of(trees).read_bytes()
    with counted("trees.jsonl") as reads:
        for often in (0, 1, 1):
            assert start("generate", "trees") == 0
            assert reads() == often
            assert read_manifest(tmp_path / "trees")["counts"] == counts
            assert index_of(trees).read_bytes() == held
            if not often:
                index_of(trees).unlink()
    with counted("predictions.jsonl") as reads:
        assert start("infer", "scored") == 0
    assert reads() == 1  # to score them


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


def test_an_earlier_run_is_found_behind_blank_lines_and_left_as_it_is(tmp_path: Path) -> None:
    """But for one in which a line is no result, which is named."""
    file = tmp_path / "trees.jsonl"
    file.write_text(dump_line(tree("a")) + '\n\n{"id":"b"}\n')
    with pytest.raises(DataError, match=r"trees\.jsonl:3: Tree: format"):
        Results(file, TREES)
    file.write_text("\n" + dump_line(tree("a")) + "\n\n" + dump_line(tree("b")) + "\n")
    write_json(tmp_path / "manifest.json", {})
    assert Earlier([tmp_path]).mark(tree("b")).known == (1, 2)
    assert [p.line for p in places_of(file, TREES)] == [2, 4]
    assert not index_of(file).exists()
