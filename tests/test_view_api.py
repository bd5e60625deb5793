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

import httpx2
import pytest

from preference.config import PairsStageConfig
from preference.pairs import build_pairs
from preference.rewards import rewards
from steprag.agent.grammars import TRANSCRIPT
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.results import places_of
from steprag.batch.tree_results import TREES, tree_counts
from steprag.cli import main
from steprag.errors import ConfigError
from steprag.records.jsonl import dump_line, from_dict, line_hash, read_records, write_json, write_records
from steprag.records.training_rows import Pair, preference_key
from steprag.runs.run import open_run, read_manifest
from steprag.tree import Tree
from steprag.types import Passage
from steprag.view import api
from steprag.view.answers import Answers
from steprag.view.api import create_view_app
from steprag.view.export import document, write_export
from steprag.view.folders import open_folders
from steprag.view.listing import Listing
from steprag.view.series import POINTS, Series
from steprag.web.app import FREE
from steprag.web.guard import Access
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


def first_tree() -> Tree:
    return from_dict(Tree, json.loads(shipped_lines(1)[0]), SHIPPED, 1)


def pairs_of(trees: Path, out: Path, *options: str) -> list[Pair]:
    """What `steprag pairs` makes of a run, all in one file."""
    fixed = ("--validation", "0", "--card.plots", "false")
    assert main(["pairs", "--trees", str(trees), "--out", str(out), *fixed, *options]) == 0
    return list(read_records(out / "pairs.train.jsonl", Pair))


def test_runs_say_what_is_in_them(tmp_path: Path) -> None:
    told = got("/api/runs", shipped_run(tmp_path / "trees", 2), answered_run(tmp_path / "answers", ["lek"]))
    assert [(run["key"], run["stage"], run["kinds"]) for run in told["runs"]] == [
        ("trees", "generate", ["trees", "series"]),
        ("answers", "infer", ["predictions", "series"]),
    ]
    assert "spre" in told["rules"]
    assert "gain" in told["rules"]


def test_the_rows_of_a_list(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 3)
    whole = got("/api/rows/trees?run=run", run)
    assert whole["rows"][0] == {
        "line": 1,
        "id": "atlas-train-0001",
        **json.loads(json.dumps(tree_counts(first_tree()))),
    }
    assert (whole["complete"], whole["next"], whole["size"]) == (True, 3, (run / "trees.jsonl").stat().st_size)
    assert got("/api/rows/trees?run=run&from=2", run)["rows"] == whole["rows"][2:]


def test_a_tree_a_node_and_its_passages(tmp_path: Path) -> None:
    run, tree = shipped_run(tmp_path / "run", 1), first_tree()
    told = got("/api/tree?run=run&line=1", run)
    assert told["roles"] == {"query": "asks", "evidence": "keeps", "answer": "ends"}
    assert told["hash"] == line_hash(shipped_lines(1)[0].rstrip("\n"))
    assert told["nodes"]["content"] == [node.content for node in tree.nodes]
    assert told["nodes"]["value"] == [node.value for node in tree.nodes]
    node = got("/api/node?run=run&line=1&node=1", run)
    assert node["prompt"] == list(tree.nodes[0].messages or ())
    assert node["text"] == tree.nodes[1].text
    assert node["passages"][0]["text"] is None
    assert "no calls.sqlite" in node["texts_missing"]


def test_passages_have_the_texts_of_the_journal(tmp_path: Path) -> None:
    run, found = shipped_run(tmp_path / "run", 1), first_tree().nodes[1].passages

    async def journalled() -> None:
        async with Journal(run / JOURNAL) as journal:
            texts = [Passage(one.id, one.title, f"text of {one.id}") for one in found[:2]]
            journal.searched("atlas-train-0001", "a query", 3, tuple(texts))

    asyncio.run(journalled())
    node = got("/api/node?run=run&line=1&node=1", run)
    assert [passage["text"] for passage in node["passages"]] == [f"text of {one.id}" for one in found[:2]] + [None]
    assert "lacks some" in node["texts_missing"]


def test_a_damaged_journal_is_told_and_the_node_is_shown(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 1)
    (run / JOURNAL).write_text("no database at all, but long enough to be looked at as one" * 50)
    node = got("/api/node?run=run&line=1&node=1", run)
    assert "not a database" in node["texts_missing"]
    assert node["text"]


@pytest.mark.parametrize("rule", ["spre", "best_leaf", "gold", "gain", "reasonrag"])
def test_rewards_and_fates_are_those_of_the_pairs(tmp_path: Path, rule: str) -> None:
    """A pair that no rule dropped is a pair that the rules make, and the other way round."""
    run = shipped_run(tmp_path / "run", 8)
    config = PairsStageConfig.model_validate({"label": {"name": rule}})
    for number, line in enumerate(shipped_lines(8), 1):
        tree = from_dict(Tree, json.loads(line), SHIPPED, number)
        told = got(f"/api/rewards?run=run&line={number}&rule={rule}", run)
        estimates = rewards(tree, config.label, TRANSCRIPT)
        assert told["values"] == [None if one is None else one.value for one in estimates]
        made = {(pair.chosen_node, pair.rejected_node) for pair in build_pairs(tree, "x", estimates, config.pairs)}
        names = {"margin", "standard error", "same action", "different content", "cap", "well formed",
                 "no answer leaked into the query", None}  # fmt: skip
        assert {one["rule"] for one in told["pairs"]} <= names
        by_the_rules = {one["rule"] for one in told["pairs"] if (one["chosen"], one["rejected"]) not in made}
        assert None not in by_the_rules
        filtered = {"well formed", "no answer leaked into the query", None}
        assert {(one["chosen"], one["rejected"]) for one in told["pairs"] if one["rule"] in filtered} == made


def test_the_fates_follow_the_configuration_of_a_pairs_folder(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 6)
    strict = pairs_of(run, tmp_path / "strict", "--pairs.match", "best", "--pairs.margin", "0.4")
    like = "/api/rewards?run=run&line=1&like=strict"
    told = got(like, run, tmp_path / "strict")
    kept = {(one["chosen"], one["rejected"]) for one in told["pairs"] if one["rule"] is None}
    made = {(pair.chosen_node, pair.rejected_node) for pair in strict if pair.question_id == "atlas-train-0001"}
    assert made <= kept  # what is missing fell to filters across trees
    assert kept < {(one["chosen"], one["rejected"]) for one in got("/api/rewards?run=run&line=1", run)["pairs"]}
    manifest = read_manifest(tmp_path / "strict")
    manifest["config"]["reward"] = manifest["config"].pop("label")  # a folder of an earlier version
    write_json(tmp_path / "strict/manifest.json", manifest)
    assert got(like, run, tmp_path / "strict") == told


def test_a_pair_leads_to_its_tree_and_kind(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 6)
    pair = pairs_of(run, tmp_path / "pairs")[0]
    runs = (tmp_path / "pairs", run)
    row = got("/api/rows/pairs?run=pairs", *runs)["rows"][0]
    assert (row["tree"], row["margin"]) == (pair.tree, pair.margin)
    assert row["nodes"] == [pair.chosen_node, pair.rejected_node]
    assert row["question"].startswith("How many counties")
    where = f"/api/where?tree={pair.tree}&question={pair.question_id}"
    assert got(where, *runs) == {"run": "run", "line": 1, "id": pair.question_id}
    assert got("/api/record/pairs?run=pairs&line=1", *runs)["chosen"] == [dict(pair.chosen[0])]
    assert got("/api/kinds?run=pairs", *runs)["atlas-train-0001"] == "bridge"


def test_a_tree_leads_to_the_pairs_that_came_out_of_it(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 3)
    made = pairs_of(run, tmp_path / "pairs")
    tree = line_hash(shipped_lines(1)[0].rstrip("\n"))
    told = got(f"/api/pairs_of?tree={tree}", run, tmp_path / "pairs")["pairs"]
    assert [(one["run"], one["line"], one["nodes"]) for one in told] == [
        ("pairs", line, [pair.chosen_node, pair.rejected_node])
        for line, pair in enumerate(made, 1)
        if pair.tree == tree
    ]
    assert told
    assert got("/api/pairs_of?tree=0", run, tmp_path / "pairs")["pairs"] == []


def test_a_rule_that_has_nothing_to_say_of_a_tree_hides_no_other(tmp_path: Path) -> None:
    nodes = tuple(replace(node, belief=None) for node in first_tree().nodes)
    run = made_run(tmp_path / "run", replace(first_tree(), nodes=nodes))
    told = got("/api/every_reward?run=run&line=1", run)
    assert "no beliefs" in told["gain"]["fault"]
    assert told["spre"] == got("/api/rewards?run=run&line=1&rule=spre", run)
    assert write_export(Answers(open_folders([str(run)])), tmp_path / "all.html", 1)


def test_a_marked_pair_is_dropped_by_the_next_build(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 6)
    before = pairs_of(run, tmp_path / "pairs")
    body = {"run": "pairs", "line": 2, "id": preference_key(before[1])}

    async def ask(client: httpx2.AsyncClient) -> Any:
        told = [(await client.post("/api/marks", json={**body, "wrong": one})).json() for one in (True, False, True)]
        return [len(one["wrong"]) for one in told], told[-1]["file"]

    counts, file = asked(ask, tmp_path / "pairs")
    assert counts == [1, 0, 1]
    assert file == str(tmp_path / "pairs" / "wrong.jsonl")
    after = pairs_of(run, tmp_path / "again", "--filters.marked", file)
    assert after == [before[0], *before[2:]]
    assert pairs_of(run, tmp_path / "pairs") == before  # the folder itself goes on as it was made
    report = json.loads((tmp_path / "again/report.json").read_text(encoding="utf-8"))
    assert {row["rule"]: row["before"] - row["after"] for row in report["rules"]}["not marked as wrong"] == 1


def test_a_pair_is_found_by_its_preference_when_the_file_changed(tmp_path: Path) -> None:
    """A question has many pairs: its id would find another one."""
    made = pairs_of(shipped_run(tmp_path / "run", 2), tmp_path / "pairs")
    twin = next(pair for pair in made[1:] if pair.question_id == made[0].question_id)
    file = tmp_path / "pairs/pairs.train.jsonl"

    async def ask(client: httpx2.AsyncClient) -> Any:
        row = next(row for row in (await client.get("/api/rows/pairs?run=pairs")).json()["rows"]
                   if row["line"] == made.index(twin) + 1)  # fmt: skip
        at = {"run": "pairs", "line": row["line"], "id": row["id"]}
        write_records(file, [pair for pair in reversed(made) if pair is not made[-1]])
        record = (await client.get("/api/record/pairs", params=at)).json()
        wrong = (await client.post("/api/marks", json={**at, "wrong": True})).json()["wrong"]
        write_records(file, [pair for pair in made if pair is not twin])
        return record, wrong, [(await client.get("/api/record/pairs", params=at)).status_code,
                               (await client.post("/api/marks", json={**at, "wrong": True})).status_code]  # fmt: skip

    record, wrong, gone = asked(ask, tmp_path / "pairs")
    assert record["chosen"] == [dict(twin.chosen[0])]
    assert record["rejected"] == [dict(twin.rejected[0])]
    assert wrong == [record["key"]] == [preference_key(twin)]
    assert gone == [404, 404]


def test_a_record_whose_id_several_have_is_not_guessed(tmp_path: Path) -> None:
    row = {"step": 1, "question": "q", "finish": "answer", "reward": 1.0, "rewards": {}}
    with open_run(tmp_path / "grpo", "train", identity={}, config={}):
        (tmp_path / "grpo/episodes.jsonl").write_text(2 * (json.dumps(row) + "\n"), encoding="utf-8")

    async def ask(client: httpx2.AsyncClient) -> list[int]:
        return [(await client.get(f"/api/record/episodes?run=grpo&line={line}&id=q")).status_code for line in (2, 3)]

    assert asked(ask, tmp_path / "grpo") == [200, 404]


def test_no_mark_is_lost_when_many_are_made_at_once(tmp_path: Path) -> None:
    made = pairs_of(shipped_run(tmp_path / "run", 6), tmp_path / "pairs")
    keys = {preference_key(pair) for pair in made}

    async def ask(client: httpx2.AsyncClient) -> Any:
        bodies = [{"run": "pairs", "line": line, "id": preference_key(pair), "wrong": True}
                  for line, pair in enumerate(made, 1)]  # fmt: skip
        await asyncio.gather(*(client.post("/api/marks", json=body) for body in bodies))
        return (await client.get("/api/marks?run=pairs")).json()["wrong"]

    assert set(asked(ask, tmp_path / "pairs")) == keys


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


def test_marks_that_are_no_marks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shipped_run(tmp_path / "run", 1)
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


def test_quality_tells_how_completions_follow_the_grammar(tmp_path: Path) -> None:
    trees = shipped_run(tmp_path / "trees", 3)
    answers = answered_run(tmp_path / "answers", ["lek", "the old lek", None])
    (told,) = got("/api/quality?run=trees", trees)["files"]
    nodes = [node for line in shipped_lines(3) for node in from_dict(Tree, json.loads(line), SHIPPED, 1).nodes[1:]]
    kept = [node for node in nodes if node.failure is None]
    assert (told["n"], told["written"]["n"], told["clock"]) == (3, len(nodes), "tree")
    assert told["written"]["value"] == pytest.approx(len(kept) / len(nodes))
    by_action = {one["action"]: one["n"] for one in told["written"]["actions"]}
    assert by_action["answer"] == sum(node.action == "answer" for node in nodes)
    assert [one["at"] for one in told["over_time"]] == [1, 2, 3]
    (told,) = got("/api/quality?run=answers", answers)["files"]
    lengths = {one["name"]: one for one in told["lengths"]}
    assert (lengths["words"]["n"], lengths["words"]["value"]) == (2, 1.5)
    assert lengths["words"]["bars"] == [{"from": 1, "to": 1, "count": 1}, {"from": 2, "to": 2, "count": 1}]
    assert lengths["sampled"]["low"] == lengths["sampled"]["high"] == 10


def test_episodes_of_training_are_listed(tmp_path: Path) -> None:
    row = {"step": 1, "question": "q", "finish": "answer", "steps": ["a"], "refused": None, "prediction": "lek",
           "rewards": {"f1": 1.0}, "reward": 1.0, "advantage": 0.5}  # fmt: skip
    with open_run(tmp_path / "grpo", "train", identity={}, config={}):
        (tmp_path / "grpo/episodes.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    told = got("/api/rows/episodes?run=grpo", tmp_path / "grpo")["rows"]
    assert told == [
        {"line": 1, "id": "q", **{key: row[key] for key in row if key not in ("question", "refused")}, "steps": 1,
         "words": 1, "written": {"none": {"": 1}}}
    ]  # fmt: skip
    assert got("/api/record/episodes?run=grpo&line=1", tmp_path / "grpo")["steps"] == ["a"]


@pytest.mark.parametrize(("path", "status"), [
    ("/api/rows/trees?run=../run", 404), ("/api/rows/trees?run=/etc/passwd", 404), ("/api/rows/secrets?run=run", 422),
    ("/api/rows/trees?run=run&from=-1", 422), ("/api/tree?run=run&line=9", 404),
    ("/api/node?run=run&line=1&node=99", 404),
    ("/api/rewards?run=run&line=1&rule=none", 404), ("/api/series?run=file", 404), ("/page/../api.py", 404),
    ("/page/%2e%2e/api.py", 404), ("/vendor/../guard.py", 404), ("/api/record/pairs?run=run&line=1", 404),
])  # fmt: skip
def test_what_is_not_there_is_refused(tmp_path: Path, path: str, status: int) -> None:
    run = shipped_run(tmp_path / "run", 1)
    shutil.copy(SHIPPED, tmp_path / "file.jsonl.gz")

    async def ask(client: httpx2.AsyncClient) -> tuple[int, str]:
        answer = await client.get(path)
        return answer.status_code, answer.json()["error"]["message"]

    got_status, message = asked(ask, run)
    assert (got_status, bool(message)) == (status, True)


def test_only_who_has_the_token_reads(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 1)

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


def test_a_tree_of_an_unknown_prompt_profile_is_shown(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 1)
    manifest = {"stage": "generate", "identity": {}, "config": {"prompt": {"profile": "/gone/profile.yaml"}}}
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    told = got("/api/tree?run=run&line=1", run)
    assert (told["roles"], len(told["nodes"]["parent"])) == ({}, 41)


def test_a_damaged_manifest_is_told(tmp_path: Path) -> None:
    run = shipped_run(tmp_path / "run", 1)
    (run / "manifest.json").write_text("{", encoding="utf-8")
    told = got("/api/runs", run)["runs"][0]
    assert "manifest.json:1: not JSON" in told["fault"]
    assert told["kinds"] == ["trees", "series"]


def pieces_of(page: str) -> dict[str, Any]:
    packed = re.search(r'<script type="application/json" id="pack">(.*?)</script>', page, re.DOTALL)
    assert packed
    return {name: json.loads(gzip.decompress(base64.b64decode(part))) for name, part in json.loads(packed[1]).items()}


def test_the_file_to_mail_holds_everything_and_asks_nobody(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_tree(30, words=MARKUP), made_tree(5, "made-2"))
    pairs_of(shipped_run(tmp_path / "shipped", 3), tmp_path / "shipped/pairs")
    two = (answered_run(tmp_path / name, ["lek"]) for name in ("one", "two"))
    runs = [str(run), str(tmp_path / "shipped"), *map(str, two)]
    answers = Answers(open_folders(runs))
    size = write_export(answers, tmp_path / "out/all.html", 1)
    page = (tmp_path / "out/all.html").read_text(encoding="utf-8")
    assert size == len(page.encode())
    pieces = pieces_of(page)
    assert len(pieces["rows/trees/run/0"]["rows"]) == 1
    assert pieces["tree/run/1"]["nodes"][3]["text"] == f"{MARKUP} 3"
    named = {"tree/shipped/1", "records/pairs/pairs/0", "series/shipped", "kinds/pairs", "comparison/one"}
    assert named | {"comparison/one/two"} <= pieces.keys()
    assert "comparison/two/one" not in pieces  # the page turns it round
    assert "tree/run/2" not in pieces
    assert MARKUP not in page
    assert str(tmp_path) not in json.dumps(pieces)  # whoever gets the file learns nothing of the disk it was made on
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)[1])["imports"]  # type: ignore[index]
    for module in imports.values():
        text = base64.b64decode(module.removeprefix("data:text/javascript;base64,")).decode()
        assert set(re.findall(r'\bfrom\s*"([^"\n]+\.js)"', text)) <= imports.keys()


def test_no_piece_ends_the_script_that_holds_it() -> None:
    page = document({"</script><script>alert(1)</script>": "x"})
    assert "</script><script>alert" not in page


def test_the_counts_of_a_tree_go_into_the_index(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_tree(9))
    place = json.loads((run / "trees.jsonl.index").read_text(encoding="utf-8"))
    assert place["counts"]["question"] == "step: which of 9?"
    assert (place["counts"]["kind"], place["counts"]["nodes"]) == ("made", 9)
    assert (run / "trees.jsonl").read_text(encoding="utf-8") == dump_line(made_tree(9)) + "\n"


def test_a_crowd_is_refused_and_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "AT_ONCE", 3)

    async def crowd(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return await asyncio.gather(*(client.get("/api/runs") for _ in range(12)))

    replies = asked(crowd, shipped_run(tmp_path / "run", 2))
    assert {reply.status_code for reply in replies} == {200, 429}
    assert sum(reply.status_code == 200 for reply in replies) >= 3
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"]["code"] == "busy"


def read_whole(listing: Listing) -> Listing:
    listing.refresh(60)
    assert listing.complete
    return listing


def test_places_are_those_of_the_index_with_and_without_it(tmp_path: Path) -> None:
    trees = shipped_run(tmp_path / "run", 5) / "trees.jsonl"
    known = places_of(trees, TREES)
    assert known[0].counts["question"] == "How many counties does the US state that made Sacramento its capital have?"
    assert read_whole(Listing(trees, TREES, indexed=True)).places == known
    (tmp_path / "run/trees.jsonl.index").unlink()
    without = read_whole(Listing(trees, TREES, indexed=True))
    assert without.places == known
    assert without.read(known[3]).question.id == known[3].id
    assert not (tmp_path / "run/trees.jsonl.index").exists()  # a viewer writes nothing of its own into a run


@pytest.mark.parametrize("index", [True, False])
def test_a_look_reads_no_further_than_it_wants(tmp_path: Path, index: bool) -> None:
    """So the first rows of a file of any length come at once."""
    trees = made_run(tmp_path / "run", *(made_tree(5, f"t{number}") for number in range(9))) / "trees.jsonl"
    listing = Listing(trees, TREES, indexed=index)
    listing.refresh(60, 3)
    assert ([place.id for place in listing.places], listing.complete) == (["t0", "t1", "t2"], False)
    listing.refresh(60, 5)
    assert len(listing.places) == 5
    assert read_whole(listing).places == places_of(trees, TREES)


def test_an_index_that_is_damaged_half_way_is_given_up(tmp_path: Path) -> None:
    trees = made_run(tmp_path / "run", *(made_tree(5, f"t{number}") for number in range(9))) / "trees.jsonl"
    known, index = places_of(trees, TREES), tmp_path / "run/trees.jsonl.index"
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


def test_an_index_of_another_file_is_not_believed(tmp_path: Path) -> None:
    """As long as the trees that it was made of, but not of these."""
    trees = made_run(tmp_path / "run", made_tree(5, "a")) / "trees.jsonl"
    trees.write_text(dump_line(made_tree(5, "b")) + "\n" + dump_line(made_tree(6, "c")) + "\n", encoding="utf-8")
    assert [place.id for place in read_whole(Listing(trees, TREES, indexed=True)).places] == ["b", "c"]


def test_a_growing_file_is_followed_and_a_torn_line_waits(tmp_path: Path) -> None:
    trees, (first, second) = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(first + second[:100], encoding="utf-8")
    listing = Listing(trees, TREES)
    listing.refresh(60)
    assert (len(listing.places), listing.torn, listing.fault_count) == (1, True, 0)
    with trees.open("a", encoding="utf-8") as stream:
        stream.write(second[100:])
    listing.refresh(60)
    assert (len(listing.places), listing.torn, listing.generation) == (2, False, 1)
    assert listing.read(listing.places[1]).question.id == json.loads(second)["question"]["id"]


def test_a_last_line_without_a_newline_counts_once(tmp_path: Path) -> None:
    trees, (first, second) = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(first.rstrip(), encoding="utf-8")
    listing = Listing(trees, TREES)
    listing.refresh(60)
    assert len(listing.places) == 1
    with trees.open("a", encoding="utf-8") as stream:
        stream.write("\n" + second)
    listing.refresh(60)
    assert [listing.read(place).question.id for place in listing.places] == ["atlas-train-0001", "atlas-train-0002"]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    trees, (first, second) = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(first, encoding="utf-8")
    listing = read_whole(Listing(trees, TREES))
    (tmp_path / "new").write_text(second + first, encoding="utf-8")
    (tmp_path / "new").replace(trees)
    read_whole(listing)
    assert ([place.id for place in listing.places], listing.generation) == (["atlas-train-0002", "atlas-train-0001"], 2)
    trees.unlink()
    read_whole(listing)
    assert listing.places == []


HOSTILE = {
    "not json": b"{",
    "no object": b"[1, 2]",
    "no tree": b'{"format": 1}',
    "nested too deep": b"[" * 100_000,
    "not UTF-8": b'{"format": "\xff"}',
    "half a surrogate": b'{"format": "\\ud800"}',
    "a number of many digits": b'{"format": ' + b"9" * 5000 + b"}",
    "nodes without end": b'{"format":1,"question":{"id":"a","question":"?","golden_answers":["b"]},"status":"x",'
    b'"usage":{},"nodes":[{"id":0,"parent":0,"depth":0}]}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_line_is_a_fault_with_its_number(tmp_path: Path, line: bytes) -> None:
    trees = tmp_path / "trees.jsonl"
    good = shipped_lines(2)
    trees.write_bytes(good[0].encode() + line + b"\n\n" + good[1].encode())
    listing = read_whole(Listing(trees, TREES))
    assert [place.line for place in listing.places] == [1, 4]
    assert [fault.line for fault in listing.faults] == [2]
    assert listing.faults[0].message


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_LINE_MIB", "1")
    trees, good = tmp_path / "trees.jsonl", shipped_lines(2)
    trees.write_text(good[0] + "[" * 3_000_000 + "\n" + good[1], encoding="utf-8")
    listing = read_whole(Listing(trees, TREES))
    assert [place.line for place in listing.places] == [1, 3]
    assert [(fault.line, fault.message) for fault in listing.faults] == [(2, "a line of more than 1,048,576 bytes")]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_EXPANSION", "1")
    packed = gzip.compress("".join(shipped_lines(1)).encode() + b" " * (80 << 20))
    (tmp_path / "trees.jsonl.gz").write_bytes(packed)
    listing = Listing(tmp_path / "trees.jsonl.gz", TREES)
    listing.refresh(60)
    assert [place.line for place in listing.places] == [1]
    assert "expands to more than" in listing.faults[0].message


def test_a_cut_gzip_file_shows_what_it_holds(tmp_path: Path) -> None:
    packed = gzip.compress("".join(shipped_lines(30)).encode())
    (tmp_path / "trees.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    listing = Listing(tmp_path / "trees.jsonl.gz", TREES)
    listing.refresh(60)
    assert 0 < len(listing.places) < 30
    assert "not a whole gzip file" in listing.faults[0].message


def test_folders_files_and_folders_of_folders_are_found(tmp_path: Path) -> None:
    shipped_run(tmp_path / "all/one", 1)
    shipped_run(tmp_path / "all/two", 1)
    shipped_run(tmp_path / "all/two/pairs", 1)
    shutil.copy(SHIPPED, tmp_path / "trees.round2.jsonl.gz")
    (tmp_path / "all/index").mkdir()
    (tmp_path / "all/index/manifest.json").write_text("{}", encoding="utf-8")  # an index: nothing to look at
    assert list(open_folders([str(tmp_path / "all")])) == ["one", "two"]
    assert list(open_folders([str(tmp_path / "all/two"), str(tmp_path / "all/one"), str(tmp_path / "all/two")])) == [
        "two", "pairs", "one",
    ]  # fmt: skip
    assert open_folders([str(tmp_path / "trees.round2.jsonl.gz")])["trees"].kinds() == ["trees"]
    shipped_run(tmp_path / "more/one", 1)
    assert list(open_folders([str(tmp_path / "all/one"), str(tmp_path / "more/one")])) == ["one", "more-one"]


def test_nothing_to_view_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path)]) == 2
    assert "holds nothing to view (give a run folder" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "run not found" in capsys.readouterr().err


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("".join(shipped_lines(1)), encoding="utf-8")
    run = shipped_run(tmp_path / "run", 1)
    (run / "predictions.jsonl").symlink_to(secret)
    folder = open_folders([str(run)])["run"]
    assert folder.kinds() == ["trees", "series"]
    assert folder.file("../secret.jsonl") is None


def test_curves_survive_what_training_and_kills_leave(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 2.0, "time": "2026-01-01T00:00:00+00:00"}, {"step": 2, "loss": float("nan")},
            {"step": 2, "loss": 1.5, "epoch": 0.2}, {"step": 3, "eval_loss": 1.0, "note": "x", "flag": True},
            {"event": "done", "id": "q", "seconds": 4.5, "time": "2026-01-01T00:01:00+00:00"},
            {"event": "failure", "id": "r", "seconds": "x", "time": "no time"}]  # fmt: skip
    text = "\n".join(json.dumps(row) for row in rows) + '\nnot json\n[]\n{"step": 4, "lo'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    told = Series(tmp_path / "metrics.jsonl").told()
    assert told["steps"] == [1, 2, 3]
    assert told["curves"] == {"loss": [2.0, 1.5, None], "eval_loss": [None, None, 1.0]}
    assert told["done"] == [
        {"at": 60.0, "seconds": 4.5, "failed": False},
        {"at": None, "seconds": None, "failed": True},
    ]
    assert told["faults"] == 3


def test_curves_that_grow_are_read_on(tmp_path: Path) -> None:
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


def test_long_curves_are_thinned_and_keep_their_end(tmp_path: Path) -> None:
    lines = (json.dumps({"step": step, "loss": step}) for step in range(5001))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    told = Series(tmp_path / "metrics.jsonl").told()
    assert len(told["steps"]) <= POINTS + 1
    assert told["steps"][-1] == 5000


def test_numbers_that_no_float_holds_are_no_points(tmp_path: Path) -> None:
    huge = "1" + "0" * 400
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"step": 1, "loss": {huge}, "lr": 0.5}}\n{{"step": {huge}, "loss": 1}}\n'
        f'{{"event": "done", "seconds": {huge}}}\n{{"step": 2, "loss": Infinity, "lr": -{huge}}}\n'
    )
    told = Series(tmp_path / "metrics.jsonl").told()
    assert told["steps"] == [1, 2]
    assert told["curves"] == {"lr": [0.5, None]}
    assert told["done"] == [{"at": None, "seconds": None, "failed": False}]


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    answers = Answers(open_folders([str(shipped_run(tmp_path / "run", 1))]))
    for name in ("../run", "/etc", "", "run/"):
        with pytest.raises(ConfigError, match="no run is called"):
            answers.rows(name, "trees", 0, 0)


def test_threads_that_read_a_packed_file_do_not_take_each_others_lines() -> None:
    listing = read_whole(Listing(SHIPPED, TREES))
    places = listing.places[:20] * 20
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda place: listing.line_at(place), places, chunksize=1))
    assert found == [listing.line_at(place) for place in places]
