"""The viewer over HTTP: what it answers is what the stages compute, and whom it answers; and what it reads: places in
files that grow, are torn or hostile, and the folders that they lie in.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import shutil
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from apps.commands import main
from apps.viewer import api
from apps.viewer.answers import Answers
from apps.viewer.api import create_view_app
from apps.viewer.export import document, write_export
from apps.viewer.folders import open_folders
from apps.viewer.listing import Listing
from apps.viewer.series import POINTS, Series
from preference.config import PairsStageConfig
from preference.pairs import build_pairs
from preference.rewards import rewards
from steprag.agent.facts import facts_about
from steprag.agent.grammars import TRANSCRIPT
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import index_of, places_of
from steprag.batch.tree_results import TREES, tree_counts
from steprag.records.jsonl import dump_line, from_dict, line_hash, read_records, write_json, write_records
from steprag.records.training_rows import Pair, preference_key
from steprag.runs.run import open_run, read_manifest
from steprag.tree import Tree
from steprag.types import Passage
from steprag.web.app import FREE
from steprag.web.guard import Access
from tests.fakes import BY_ROLLOUTS
from tests.viewing import MARKUP, SHIPPED, TOKEN, answered_run, made_run, made_tree, shipped_lines, shipped_run

Ask = Callable[[httpx2.AsyncClient], Coroutine[Any, Any, Any]]


def asked(ask: Ask, *runs: Path, token: str | None = TOKEN) -> Any:
    """What `ask` gets from a viewer of these runs, without a socket between."""

    async def whole() -> Any:
        app = create_view_app(Answers(open_folders(map(str, runs))), Access(TOKEN, True, FREE, 2**16, "steprag1"))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", headers=headers) as client:
            return await ask(client)

    return asyncio.run(whole())


def got(path: str, *runs: Path) -> Any:
    """The JSON of one request that is answered well."""

    async def ask(client: httpx2.AsyncClient) -> Any:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return asked(ask, *runs)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six shipped trees."""
    return shipped_run(tmp_path / "run", 6)


@pytest.fixture
def made(run: Path, tmp_path: Path) -> list[Pair]:
    """The pairs of these trees, which lie in the folder pairs."""
    return pairs_of(run, tmp_path / "pairs")


def first_tree() -> Tree:
    return from_dict(Tree, json.loads(shipped_lines(1)[0]), SHIPPED, 1)


def pairs_of(trees: Path, out: Path, *options: str) -> list[Pair]:
    """What `steprag pairs` makes of a run, all in one file."""
    fixed = (*BY_ROLLOUTS, "--validation", "0", "--card.plots", "false")
    assert main(["pairs", "--trees", str(trees), "--out", str(out), *fixed, *options]) == 0
    return list(read_records(out / "pairs.train.jsonl", Pair))


def test_runs_say_what_is_in_them_and_that_a_manifest_is_damaged(run: Path, tmp_path: Path) -> None:
    runs = (run, answered_run(tmp_path / "answers", ["lek"]))
    told = got("/api/runs", *runs)
    assert [(one["key"], one["stage"], one["kinds"]) for one in told["runs"]] == [
        ("run", "generate", ["trees", "series"]),
        ("answers", "infer", ["predictions", "series"]),
    ]
    assert {"spre", "gain"} <= set(told["rules"])
    (run / "manifest.json").write_text("{", encoding="utf-8")
    told = got("/api/runs", *runs)["runs"][0]
    assert "manifest.json:1: not JSON" in told["fault"]
    assert told["kinds"] == ["trees", "series"]


def test_the_table_tells_how_far_a_run_is_why_it_failed_and_takes_in_runs_that_begin(run: Path, tmp_path: Path) -> None:
    answers = answered_run(tmp_path / "all/demo/before", ["lek", "sol"])  # below a folder that is no run
    write_json(answers / "metrics.json", {"em": 0.5, "em_interval": [0.1, 0.9]})
    given = [str(run), str(tmp_path / "all")]
    viewed = Answers(open_folders(given), given)
    trees, before = viewed.runs()["runs"]
    assert (before["key"], before["em"], before["em_interval"], before["usd"]) == ("demo-before", 0.5, [0.1, 0.9], None)
    assert (trees["status"], trees["progress"], trees["em"]) == ("done", None, None)
    far = {"done": 3, "total": 12, "calls": 40, "usd": 0.5, "seconds": 60, "left_seconds": 180}
    write_json(run / "progress.json", far)
    write_json(answers / "metrics.json", {"em": "much", "em_interval": [1]})
    write_json(read := tmp_path / "all/new/manifest.json", {"stage": "infer", "status": "failed", "error": "no model"})
    (read.parent / "metrics.jsonl").touch()
    trees, before, new = viewed.runs()["runs"]
    assert (trees["progress"], before["em"], before["em_interval"]) == (far, None, None)
    assert (new["key"], new["error"], new["kinds"]) == ("new", "no model", ["series"])
    (run / "progress.json").write_text('{"done": "many"}')
    shutil.rmtree(read.parent)
    trees, _ = viewed.runs()["runs"]
    assert trees["progress"] is None
    for gone in (run, answers):
        shutil.rmtree(gone)
    assert [viewed.runs()["runs"] for _ in range(2)] == [[], []], "a page whose runs are gone stays"


async def journalled(run: Path, question: str, *found: Passage) -> None:
    """Has the run's journal hold what a search for the question found."""
    async with Journal(run / JOURNAL) as journal:
        journal.searched(question, "lek", 3, found)


SOUGHT = [  # a title, words as written, an answer, an id, a passage's text in the journal; no name of a field
    ("KUNA", [1]), ("next query", [1, 2]), ("old lek", [2]), ("q1", [2]), ("minted copper", [1, 2]), ("searches", []),
    ("l%k", []), ('say "ü"', [3]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "lines"), SOUGHT)
def test_a_search_looks_at_all_texts(tmp_path: Path, words: str, lines: list[int]) -> None:
    answers = answered_run(tmp_path / "answers", ["lek", "the old lek"])
    first, second = (json.loads(line) for line in (answers / "predictions.jsonl").read_text().splitlines())
    first["passages"][0][0]["title"], second["passages"][0][0]["title"] = "Kuna", "Coins"
    step = {"action": "answer", "text": 'say "ü"', "content": ""}
    rows = (first, second, {**second, "id": "q3", "prediction": "yen", "steps": [step], "passages": []})
    (answers / "predictions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))  # with \\u00fc
    asyncio.run(journalled(answers, "q0", Passage("7", "Coins", "It was minted in copper.")))
    told = got(f"/api/search/predictions?run=answers&asked={quote(words)}", answers)
    assert (told["lines"], told["next"], told["complete"], told["note"]) == (lines, 3, True, None)
    record = got("/api/record/predictions?run=answers&line=1", answers)
    assert record["texts"] == {"7": "It was minted in copper."}


@pytest.mark.parametrize(("kept", "said"), [
    ([{"kind": "columns not read", "place": "q.jsonl:2", "words": "label", "count": 2}],
     "columns not read: label (2, first at q.jsonl:2)"),
    ({"too long": 3}, ""), ([{"kind": 3}, "x"], ""), (None, ""),
])  # fmt: skip
def test_a_run_says_what_it_left_out(kept: Any, said: str, run: Path) -> None:
    manifest = run / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "left_out": kept}))
    assert got("/api/runs", run)["runs"][0]["left_out"] == said


def test_the_rows_of_a_list(run: Path) -> None:
    whole = got("/api/rows/trees?run=run", run)
    counts = json.loads(json.dumps(tree_counts(first_tree())))
    assert whole["rows"][0] == {"line": 1, "id": "atlas-train-0001", **counts}
    assert (whole["complete"], whole["next"], whole["size"]) == (True, 6, (run / "trees.jsonl").stat().st_size)
    assert got("/api/rows/trees?run=run&from=2", run)["rows"] == whole["rows"][2:]


def test_a_tree_a_node_and_its_passages(run: Path) -> None:
    """Without a journal, with one that holds two of three passages, and with a damaged one."""
    tree, at = first_tree(), "/api/node?run=run&line=1&node=1"
    told = got("/api/tree?run=run&line=1", run)
    assert told["roles"] == {"query": "asks", "evidence": "keeps", "answer": "ends"}
    assert told["hash"] == line_hash(shipped_lines(1)[0].rstrip("\n"))
    assert told["nodes"]["content"] == [node.content for node in tree.nodes]
    assert told["nodes"]["value"] == [node.value for node in tree.nodes]
    node = got(at, run)
    assert node["prompt"] == list(tree.nodes[0].messages or ())
    assert node["text"] == tree.nodes[1].text
    assert node["passages"][0]["text"] is None
    assert "no calls.sqlite" in node["texts_missing"]
    texts = [Passage(one.id, one.title, f"text of {one.id}") for one in tree.nodes[1].passages[:2]]
    asyncio.run(journalled(run, "atlas-train-0001", *texts))
    node = got(at, run)
    assert [passage["text"] for passage in node["passages"]] == [*(one.text for one in texts), None]
    assert "lacks some" in node["texts_missing"]
    (run / JOURNAL).write_text("no database at all, but long enough to be looked at as one" * 50)
    node = got(at, run)
    assert "not a database" in node["texts_missing"]
    assert node["text"]
    manifest = {"stage": "generate", "identity": {}, "config": {"prompt": {"profile": "/gone/profile.yaml"}}}
    write_json(run / "manifest.json", manifest)
    told = got("/api/tree?run=run&line=1", run)
    assert (told["roles"], len(told["nodes"]["parent"])) == ({}, 41)


@pytest.mark.parametrize("rule", ["evidence", "spre", "first_answer", "gold", "gain", "reasonrag"])
def test_rewards_and_fates_are_those_of_the_pairs(run: Path, rule: str) -> None:
    """A pair that no rule dropped is a pair that the rules make, and the other way round."""
    config = PairsStageConfig.model_validate({"label": {"name": rule}})
    for number, line in enumerate(shipped_lines(6), 1):
        tree = from_dict(Tree, json.loads(line), SHIPPED, number)
        told = got(f"/api/rewards?run=run&line={number}&rule={rule}", run)
        estimates = rewards(facts_about(tree, TRANSCRIPT), config.label)
        assert told["values"] == [None if one is None else one.value for one in estimates]
        made = {(pair.chosen_node, pair.rejected_node) for pair in build_pairs(tree, "x", estimates, config.pairs)}
        filtered = {"well formed", "no answer leaked into the query", None}
        names = {"margin", "standard error", "same action", "different content", "cap", *filtered}
        assert {one["rule"] for one in told["pairs"]} <= names
        assert {(one["chosen"], one["rejected"]) for one in told["pairs"] if one["rule"] in filtered} == made


def test_the_fates_follow_the_configuration_of_a_pairs_folder(run: Path, tmp_path: Path) -> None:
    strict = pairs_of(run, tmp_path / "strict", "--pairs.per_node", "1", "--pairs.margin", "0.4")
    like = "/api/rewards?run=run&line=1&like=strict"
    told = got(like, run, tmp_path / "strict")
    kept = {(one["chosen"], one["rejected"]) for one in told["pairs"] if one["rule"] is None}
    made = {(pair.chosen_node, pair.rejected_node) for pair in strict if pair.question_id == "atlas-train-0001"}
    assert made <= kept  # what is missing fell to filters across trees
    assert kept < {
        (one["chosen"], one["rejected"]) for one in got("/api/rewards?run=run&line=1&rule=spre", run)["pairs"]
    }
    chained = pairs_of(run, tmp_path / "chained", "--label.name", "cover", "--label.chained", "true")
    told_as = "/api/rewards?run=run&line=1&like=chained"
    assert chained[0].chosen_reward in got(told_as, run, tmp_path / "chained")["values"]
    assert got(f"{told_as}&rule=spre", run, tmp_path / "chained")["rule"] == "spre"
    for name, folders in (("cover", [run, tmp_path / "chained"]), ("evidence", [run])):
        write_export(Answers(open_folders(list(map(str, folders)))), tmp_path / "all.html", 1)
        assert pieces_of((tmp_path / "all.html").read_text())["runs"]["rule"] == name, (
            "the file goes by its pairs' label"
        )
    manifest = read_manifest(tmp_path / "strict")
    manifest["config"]["filters"]["english"] = False  # a folder of an earlier version
    manifest["config"]["reward"] = {**manifest["config"].pop("label"), "of": "outcome"}  # of a still earlier one
    write_json(tmp_path / "strict/manifest.json", manifest)
    assert got(like, run, tmp_path / "strict") == told


def test_a_pair_leads_to_its_tree_and_kind_and_a_tree_to_its_pairs(run: Path, made: list[Pair], tmp_path: Path) -> None:
    pair, runs = made[0], (tmp_path / "pairs", run)
    row = got("/api/rows/pairs?run=pairs", *runs)["rows"][0]
    nodes = [pair.chosen_node, pair.rejected_node]
    assert (row["tree"], row["margin"], row["nodes"]) == (pair.tree, pair.margin, nodes)
    assert row["question"].startswith("How many counties")
    assert f"> {row['chosen']} </" in pair.chosen[0]["content"]
    where = f"/api/where?tree={pair.tree}&question={pair.question_id}"
    assert got(where, *runs) == {"run": "run", "line": 1, "id": pair.question_id}
    assert got("/api/record/pairs?run=pairs&line=1", *runs)["chosen"] == [dict(pair.chosen[0])]
    assert got("/api/kinds?run=pairs", *runs)["atlas-train-0001"] == "bridge"
    tree = line_hash(shipped_lines(1)[0].rstrip("\n"))
    assert got(f"/api/pairs_of?tree={tree}", *runs)["pairs"] == [
        {"run": "pairs", "file": 0, "line": line, "nodes": [pair.chosen_node, pair.rejected_node]}
        for line, pair in enumerate(made, 1)
        if pair.tree == tree
    ]
    assert pair.tree == tree
    assert got("/api/pairs_of?tree=0", *runs)["pairs"] == []


def test_a_rule_that_has_nothing_to_say_of_a_tree_hides_no_other(tmp_path: Path) -> None:
    nodes = tuple(replace(node, belief=None) for node in first_tree().nodes)
    run = made_run(tmp_path / "run", replace(first_tree(), nodes=nodes))
    told = got("/api/every_reward?run=run&line=1", run)
    assert "no beliefs" in told["gain"]["fault"]
    assert told["spre"] == got("/api/rewards?run=run&line=1&rule=spre", run)
    assert write_export(Answers(open_folders([str(run)])), tmp_path / "all.html", 1)


def test_a_marked_pair_is_dropped_by_the_next_build(run: Path, made: list[Pair], tmp_path: Path) -> None:
    body = {"run": "pairs", "line": 2, "id": preference_key(made[1])}

    async def ask(client: httpx2.AsyncClient) -> Any:
        told = [(await client.post("/api/marks", json={**body, "wrong": one})).json() for one in (True, False, True)]
        return [len(one["wrong"]) for one in told], told[-1]["file"]

    counts, file = asked(ask, tmp_path / "pairs")
    assert counts == [1, 0, 1]
    assert file == str(tmp_path / "pairs" / "wrong.jsonl")
    after = pairs_of(run, tmp_path / "again", "--filters.marked", file)
    assert after == [made[0], *made[2:]]
    assert pairs_of(run, tmp_path / "pairs") == made  # the folder itself goes on as it was made
    report = json.loads((tmp_path / "again/report.json").read_text(encoding="utf-8"))
    assert {row["rule"]: row["before"] - row["after"] for row in report["rules"]}["not marked as wrong"] == 1

    async def all_at_once(client: httpx2.AsyncClient) -> Any:
        marks = [{**body, "line": line, "id": preference_key(pair)} for line, pair in enumerate(made, 1)]
        await asyncio.gather(*(client.post("/api/marks", json={**mark, "wrong": True}) for mark in marks))
        return (await client.get("/api/marks?run=pairs")).json()["wrong"]

    assert set(asked(all_at_once, tmp_path / "pairs")) == {preference_key(pair) for pair in made}


def test_a_pair_is_found_by_its_preference_when_the_file_changed(made: list[Pair], tmp_path: Path) -> None:
    """A question has many pairs: its id would find another one."""
    twin = next(pair for pair in made[1:] if pair.question_id == made[0].question_id)
    file = tmp_path / "pairs/pairs.train.jsonl"

    async def ask(client: httpx2.AsyncClient) -> Any:
        row = (await client.get("/api/rows/pairs?run=pairs")).json()["rows"][made.index(twin)]
        at = {"run": "pairs", "line": row["line"], "id": row["id"]}
        write_records(file, [pair for pair in reversed(made) if pair is not made[-1]])
        record = (await client.get("/api/record/pairs", params=at)).json()
        wrong = (await client.post("/api/marks", json={**at, "wrong": True})).json()["wrong"]
        write_records(file, [pair for pair in made if pair is not twin])
        gone = [await client.get("/api/record/pairs", params=at)]
        gone.append(await client.post("/api/marks", json={**at, "wrong": True}))
        return record, wrong, [one.status_code for one in gone]

    record, wrong, gone = asked(ask, tmp_path / "pairs")
    assert record["chosen"] == [dict(twin.chosen[0])]
    assert record["rejected"] == [dict(twin.rejected[0])]
    assert wrong == [record["key"]] == [preference_key(twin)]
    assert gone == [404, 404]


def test_what_is_unchanged_is_not_computed_again(tmp_path: Path) -> None:
    """Of a run that grows only what was added is scored: we change what was scored, and that goes unseen."""
    file = answered_run(tmp_path / "live", ["lek", "lek"]) / "predictions.jsonl"
    first, second = file.read_text(encoding="utf-8").splitlines()
    (tmp_path / "live/manifest.json").write_text(json.dumps({"stage": "infer", "identity": {}, "status": "running"}))
    wrong = first.replace('"prediction":"lek"', '"prediction":"sol"')
    assert wrong != first

    async def ask(client: httpx2.AsyncClient) -> list[Any]:
        told = []
        for text in (f"{first}\n{second}\n", f"{wrong}\n{second}\n{second.replace('q1', 'q2')}\n"):
            with file.open("r+", encoding="utf-8") as stream:
                stream.write(text)
            (row,) = (await client.get("/api/comparison?run=live")).json()["rows"]
            told.append((row["questions"], row["em"]))
        return told

    assert asked(ask, tmp_path / "live") == [(2, 1.0), (3, 1.0)]


def test_marks_that_are_no_marks_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.jsonl").write_text('{"pair": 1}\n', encoding="utf-8")
    options = ["pairs", "--trees", str(run), "--out", str(tmp_path / "out"), "--filters.marked"]
    assert main([*options, str(tmp_path / "wrong.jsonl")]) == 2
    assert "wrong.jsonl:1: WrongPair: preference: field required" in capsys.readouterr().err
    assert main([*options, str(tmp_path / "none.jsonl")]) == 2
    assert "file of pairs marked as wrong not found" in capsys.readouterr().err


def test_predictions_are_scored_and_compared_as_by_the_commands(tmp_path: Path) -> None:
    one = answered_run(tmp_path / "one", ["lek", "lek", "sol", None])
    two = answered_run(tmp_path / "two", ["sol", "lek", "lek", "sol"])
    rows = got("/api/rows/predictions?run=one", one)["rows"]
    assert [(row["em"], row["finish"], row["searches"]) for row in rows] == [
        (1.0, "answer", 1), (1.0, "answer", 1), (0.0, "answer", 1), (0.0, "no_action", 1),
    ]  # fmt: skip
    record = got("/api/record/predictions?run=one&line=1", one)
    assert (record["prediction"], record["score"]["f1"]) == ("lek", 1.0)
    table = got("/api/comparison?run=one&run=two", one, two)["rows"]
    assert main(["compare", str(one), str(two), "--out", str(tmp_path / "out")]) == 0
    compared = json.loads((tmp_path / "out/compare.json").read_text(encoding="utf-8"))
    assert [line.pop("quality") for line in table] == list(compared["quality"].values())
    assert {line["run"]: line for line in table} == compared["runs"]


def test_quality_tells_how_completions_follow_the_grammar(run: Path, tmp_path: Path) -> None:
    answers = answered_run(tmp_path / "answers", ["lek", "the old lek", None])
    (told,) = got("/api/quality?run=run", run)["files"]
    nodes = [node for line in shipped_lines(6) for node in from_dict(Tree, json.loads(line), SHIPPED, 1).nodes[1:]]
    kept = [node for node in nodes if node.failure is None]
    assert (told["n"], told["written"]["n"], told["clock"]) == (6, len(nodes), "tree")
    assert told["written"]["value"] == pytest.approx(len(kept) / len(nodes))
    by_action = {one["action"]: one["n"] for one in told["written"]["actions"]}
    assert by_action["answer"] == sum(node.action == "answer" for node in nodes)
    assert [one["at"] for one in told["over_time"]] == [1, 2, 3, 4, 5, 6]
    (told,) = got("/api/quality?run=answers", answers)["files"]
    lengths = {one["name"]: one for one in told["lengths"]}
    assert (lengths["words"]["n"], lengths["words"]["value"]) == (2, 1.5)
    assert lengths["words"]["bars"] == [{"from": 1, "to": 1, "count": 1}, {"from": 2, "to": 2, "count": 1}]
    assert lengths["sampled"]["low"] == lengths["sampled"]["high"] == 10


def test_episodes_of_training_are_listed_and_none_is_guessed_by_an_id_that_several_have(tmp_path: Path) -> None:
    row = {"step": 1, "question": "q", "finish": "answer", "steps": ["a"], "refused": None, "prediction": "lek",
           "rewards": {"f1": 1.0}, "reward": 1.0, "advantage": 0.5}  # fmt: skip
    with open_run(tmp_path / "grpo", "train", identity={}, config={}):
        (tmp_path / "grpo/episodes.jsonl").write_text(2 * (json.dumps(row) + "\n"), encoding="utf-8")
    told = got("/api/rows/episodes?run=grpo", tmp_path / "grpo")["rows"]
    shown = {key: row[key] for key in row if key not in ("question", "refused")}
    counted = {"steps": 1, "words": 1, "written": {"none": {"": 1}}}
    assert told == [{"line": line, "id": "q", **shown, **counted} for line in (1, 2)]
    record = "/api/record/episodes?run=grpo&line="
    assert got(f"{record}1", tmp_path / "grpo")["steps"] == ["a"]
    assert got(f"{record}2&id=q", tmp_path / "grpo")["steps"] == ["a"]
    assert asked(lambda client: client.get(f"{record}3&id=q"), tmp_path / "grpo").status_code == 404


@pytest.mark.parametrize(("path", "status"), [
    ("/api/rows/trees?run=../run", 404), ("/api/rows/trees?run=/etc/passwd", 404), ("/api/rows/secrets?run=run", 422),
    ("/api/rows/trees?run=", 404), ("/api/rows/trees?run=run/", 404),
    ("/api/rows/trees?run=run&from=-1", 422), ("/api/tree?run=run&line=9", 404),
    ("/api/node?run=run&line=1&node=99", 404),
    ("/api/rewards?run=run&line=1&rule=none", 404), ("/api/series?run=file", 404), ("/page/../api.py", 404),
    ("/page/%2e%2e/api.py", 404), ("/vendor/../guard.py", 404), ("/api/record/pairs?run=run&line=1", 404),
])  # fmt: skip
def test_what_is_not_there_is_refused(run: Path, path: str, status: int) -> None:
    reply = asked(lambda client: client.get(path), run)
    assert (reply.status_code, bool(reply.json()["error"]["message"])) == (status, True)


def test_only_who_has_the_token_reads(run: Path) -> None:
    async def ask(client: httpx2.AsyncClient) -> list[int]:
        paths = ["/api/runs", "/api/tree?run=run&line=1", "/", "/page/app.js", "/vendor/preact/preact.js"]
        told = [(await client.get(path)).status_code for path in paths]
        told.append((await client.post("/api/marks", json={})).status_code)
        told.append((await client.post("/api/session", json={"token": "wrong"})).status_code)
        signed_in = await client.post("/api/session", json={"token": TOKEN})
        assert TOKEN not in signed_in.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict"} <= set(signed_in.headers["set-cookie"].split("; "))
        told.append(signed_in.status_code)
        told.append((await client.get("/api/runs")).status_code)  # by the cookie
        told.append((await client.get("/api/runs", headers={"Host": "stranger.example"})).status_code)
        return told

    assert asked(ask, run, token=None) == [401, 401, 200, 200, 200, 401, 401, 204, 200, 403]


def pieces_of(page: str) -> dict[str, Any]:
    packed = re.search(r'<script type="application/json" id="pack">(.*?)</script>', page, re.DOTALL)
    assert packed
    return {name: json.loads(gzip.decompress(base64.b64decode(part))) for name, part in json.loads(packed[1]).items()}


def test_the_file_to_mail_holds_everything_and_asks_nobody(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_tree(30, words=MARKUP), made_tree(5, "made-2"))
    pairs_of(shipped_run(tmp_path / "shipped", 3), tmp_path / "shipped/pairs")
    two = (answered_run(tmp_path / name, ["lek"]) for name in ("one", "two"))
    answers = Answers(open_folders([str(run), str(tmp_path / "shipped"), *map(str, two)]))
    size = write_export(answers, tmp_path / "out/all.html", 1)
    page = (tmp_path / "out/all.html").read_text(encoding="utf-8")
    assert size == len(page.encode())
    pieces = pieces_of(page)
    assert len(pieces["rows/trees/run/0"]["rows"]) == 1
    assert pieces["tree/run/1"]["nodes"][3]["text"] == f"{MARKUP} 3"
    named = {"tree/shipped/1", "records/pairs/pairs/0", "series/shipped", "kinds/pairs", "comparison/one"}
    assert named | {"comparison/one/two"} <= pieces.keys()
    assert not {"comparison/two/one", "tree/run/2"} & pieces.keys()  # the page turns a comparison round
    assert MARKUP not in page
    assert str(tmp_path) not in json.dumps(pieces)  # whoever gets the file learns nothing of the disk it was made on
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)[1])["imports"]  # type: ignore[index]
    for module in imports.values():
        text = base64.b64decode(module.removeprefix("data:text/javascript;base64,")).decode()
        assert set(re.findall(r'\bfrom\s*"([^"\n]+\.js)"', text)) <= imports.keys()
    assert "</script><script>alert" not in document({"</script><script>alert(1)</script>": "x"})


def test_a_crowd_is_refused_and_not_cut_off(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "AT_ONCE", 3)

    async def crowd(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return await asyncio.gather(*(client.get("/api/runs") for _ in range(12)))

    replies = asked(crowd, run)
    assert {reply.status_code for reply in replies} == {200, 429}
    assert sum(reply.status_code == 200 for reply in replies) >= 3
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"]["code"] == "busy"


def read_whole(listing: Listing) -> Listing:
    listing.refresh(60)
    assert listing.complete
    return listing


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Nine small trees, t0 to t8, with their index."""
    return made_run(tmp_path / "run", *(made_tree(5, f"t{number}") for number in range(9))) / "trees.jsonl"


def test_places_are_those_of_the_index_with_and_without_it(trees: Path) -> None:
    known = places_of(trees, TREES)
    counts = known[0].counts
    assert (counts["question"], counts["kind"], counts["nodes"]) == ("step: which of 5?", "made", 5)
    assert trees.read_text(encoding="utf-8").startswith(dump_line(made_tree(5, "t0")) + "\n")
    assert read_whole(Listing(trees, TREES, indexed=True)).places == known
    index_of(trees).unlink()
    without = read_whole(Listing(trees, TREES, indexed=True))
    assert without.places == known
    assert without.read(known[3]).question.id == known[3].id
    assert not index_of(trees).exists()  # a viewer writes nothing of its own into a run


@pytest.mark.parametrize("index", [True, False])
def test_a_look_reads_no_further_than_it_wants(trees: Path, index: bool) -> None:
    """So the first rows of a file of any length come at once."""
    listing = Listing(trees, TREES, indexed=index)
    listing.refresh(60, 3)
    assert ([place.id for place in listing.places], listing.complete) == (["t0", "t1", "t2"], False)
    listing.refresh(60, 5)
    assert len(listing.places) == 5
    assert read_whole(listing).places == places_of(trees, TREES)


def test_an_index_that_is_damaged_or_of_another_file_is_given_up(trees: Path) -> None:
    known, index = places_of(trees, TREES), index_of(trees)
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join([*lines[:4], lines[4][:30] + b"\n", *lines[5:]]))
    assert places_of(trees, TREES) == known
    listing = Listing(trees, TREES, indexed=True)
    listing.refresh(60, 3)
    assert [place.id for place in listing.places] == ["t0", "t1", "t2"]
    before = listing.generation
    assert read_whole(listing).places == known
    assert listing.generation == before + 1  # the page asks again from the first row on
    index.write_bytes(b"")
    assert read_whole(Listing(trees, TREES, indexed=True)).places == known
    index.write_bytes(b"".join(lines))
    trees.write_text(dump_line(made_tree(5, "b")) + "\n" + dump_line(made_tree(6, "c")) + "\n", encoding="utf-8")
    assert [place.id for place in read_whole(Listing(trees, TREES, indexed=True)).places] == ["b", "c"]


def test_a_file_that_grows_is_followed_and_one_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """A torn line waits; a last line without a newline counts once."""
    trees, (first, second, third) = tmp_path / "trees.jsonl", shipped_lines(3)
    listing = Listing(trees, TREES)
    for added, names, torn in ((first + second[:100], "1", True), (second[100:-1], "12", False),
                               ("\n" + third, "123", False)):  # fmt: skip
        with trees.open("a", encoding="utf-8") as stream:
            stream.write(added)
        listing.refresh(60)
        ids = [f"atlas-train-000{name}" for name in names]
        assert [listing.read(place).question.id for place in listing.places] == ids
        assert (listing.torn, listing.fault_count, listing.generation) == (torn, 0, 1)
    (tmp_path / "new").write_text(second + first, encoding="utf-8")
    (tmp_path / "new").replace(trees)
    read_whole(listing)
    assert ([place.id for place in listing.places], listing.generation) == (["atlas-train-0002", "atlas-train-0001"], 2)
    trees.unlink()
    assert read_whole(listing).places == []


HOSTILE = {
    "not json": b"{",
    "no object": b"[1, 2]",
    "no tree": b'{"format": 1}',
    "nested too deep": b"[" * 100_000,
    "without end": b"[" * 3_000_000,
    "not UTF-8": b'{"format": "\xff"}',
    "half a surrogate": b'{"format": "\\ud800"}',
    "a number of many digits": b'{"format": ' + b"9" * 5000 + b"}",
    "nodes without end": b'{"format":1,"question":{"id":"a","question":"?","golden_answers":["b"]},"status":"x",'
    b'"usage":{},"nodes":[{"id":0,"parent":0,"depth":0}]}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_a_fault_with_its_number(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_LINE_MIB", "1")
    trees, good = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_bytes(good[0].encode() + HOSTILE[name] + b"\n\n" + good[1].encode())
    listing = read_whole(Listing(trees, TREES))
    assert [place.line for place in listing.places] == [1, 4]
    (fault,) = listing.faults
    assert fault.line == 2
    assert fault.message
    assert (fault.message == "a line of more than 1,048,576 bytes") == (name == "without end")


@pytest.mark.parametrize(("lines", "padding", "share", "said"), [
    (1, 80 << 20, 1.0, "expands to more than"),
    (30, 0, 0.5, "not a whole gzip file"),
])  # fmt: skip
def test_a_bomb_is_not_unpacked_and_a_cut_gzip_file_shows_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, padding: int, share: float, said: str
) -> None:
    monkeypatch.setenv("STEPRAG_EXPANSION", "1" if padding else "1000")
    packed = gzip.compress("".join(shipped_lines(lines)).encode() + b" " * padding)
    (tmp_path / "trees.jsonl.gz").write_bytes(packed[: int(len(packed) * share)])
    listing = Listing(tmp_path / "trees.jsonl.gz", TREES)
    listing.refresh(60)
    assert 0 < len(listing.places) < 30
    assert said in listing.faults[0].message


def test_folders_files_and_folders_of_folders_are_found(tmp_path: Path) -> None:
    def keys(*paths: str) -> list[str]:
        return list(open_folders([str(tmp_path / path) for path in paths]))

    for folder in ("all/one", "all/two", "all/two/pairs", "more/one"):
        shipped_run(tmp_path / folder, 1)
    shutil.copy(SHIPPED, tmp_path / "trees.round2.jsonl.gz")
    (tmp_path / "all/index").mkdir()
    (tmp_path / "all/index/manifest.json").write_text("{}", encoding="utf-8")  # an index: nothing to look at
    assert keys("all") == ["one", "two"]
    assert keys("all/two", "all/one", "all/two") == ["two", "pairs", "one"]
    assert keys("all/one", "more/one") == ["one", "more-one"]
    assert open_folders([str(tmp_path / "trees.round2.jsonl.gz")])["trees"].kinds() == ["trees"]


def test_nothing_to_view_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["view", str(tmp_path)]) == 2
    assert "holds nothing to view (give a run folder" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "run not found" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["view"]) == 2
    assert "no folder runs here yet: steprag demo makes one" in capsys.readouterr().err


def test_a_link_that_leads_out_of_the_folder_is_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("".join(shipped_lines(1)), encoding="utf-8")
    (run / "predictions.jsonl").symlink_to(secret)
    folder = open_folders([str(run)])["run"]
    assert folder.kinds() == ["trees", "series"]
    assert folder.file("../secret.jsonl") is None


def test_curves_survive_what_training_and_kills_leave(tmp_path: Path) -> None:
    """Also numbers that no float holds."""
    file, huge = tmp_path / "metrics.jsonl", "1" + "0" * 400
    rows = [{"step": 1, "loss": 2.0, "time": "2026-01-01T00:00:00+00:00"}, {"step": 2, "loss": float("nan")},
            {"step": 2, "loss": 1.5, "epoch": 0.2}, {"step": 3, "eval_loss": 1.0, "note": "x", "flag": True},
            {"event": "done", "id": "q", "seconds": 4.5, "time": "2026-01-01T00:01:00+00:00"},
            {"event": "failure", "id": "r", "seconds": "x", "time": "no time"}]  # fmt: skip
    file.write_text("\n".join(json.dumps(row) for row in rows) + '\nnot json\n[]\n{"step": 4, "lo', encoding="utf-8")
    told = Series(file).told()
    assert told["steps"] == [1, 2, 3]
    assert told["curves"] == {"loss": [2.0, 1.5, None], "eval_loss": [None, None, 1.0]}
    assert told["done"] == [
        {"at": 60.0, "seconds": 4.5, "failed": False},
        {"at": None, "seconds": None, "failed": True},
    ]
    assert told["faults"] == 3
    file.write_text(
        f'{{"step": 1, "loss": {huge}, "lr": 0.5}}\n{{"step": {huge}, "loss": 1}}\n'
        f'{{"event": "done", "seconds": {huge}}}\n{{"step": 2, "loss": Infinity, "lr": -{huge}}}\n'
    )
    told = Series(file).told()
    assert (told["steps"], told["curves"]) == ([1, 2], {"lr": [0.5, None]})
    assert told["done"] == [{"at": None, "seconds": None, "failed": False}]


def test_curves_that_grow_are_read_on_and_thinned_where_they_are_long(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 3}\n{"step": 2, "lo', encoding="utf-8")
    series = Series(file)
    assert (series.told()["steps"], series.told()["faults"]) == ([1], 1)
    with file.open("r+", encoding="utf-8") as stream:
        stream.write('{"step": 7, "loss": 3}\n')  # over a line that was read: it is not read again
        stream.seek(0, 2)
        stream.write('ss": 2}\n{"step": 3, "loss": 1}')
    assert series.told()["curves"] == {"loss": [3, 2, 1]}
    assert (series.told()["steps"], series.told()["faults"]) == ([1, 2, 3], 0)
    file.unlink()
    file.write_text('{"step": 9, "loss": 1}\n', encoding="utf-8")
    assert series.told()["steps"] == [9]
    file.write_text("\n".join(json.dumps({"step": step, "loss": step}) for step in range(5001)), encoding="utf-8")
    steps = Series(file).told()["steps"]
    assert len(steps) <= POINTS + 1
    assert steps[-1] == 5000


def test_threads_that_read_a_packed_file_do_not_take_each_others_lines() -> None:
    listing = read_whole(Listing(SHIPPED, TREES))
    places = listing.places[:20] * 20
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda place: listing.line_at(place), places, chunksize=1))
    assert found == [listing.line_at(place) for place in places]
