"""What people do in conversations, as data: `steprag score evaluate` on a chat folder, `steprag pairs people`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from inference.predictions import read_predictions
from steprag.records.jsonl import read_json, read_records, write_records
from steprag.records.training_rows import HumanPair, Pair
from steprag.records.turns import Turn
from steprag.runs.run import open_run, read_manifest
from steprag.types import Message, Question
from tests.chat_parts import WORK, WritingPolicy, chat, scripted
from tests.fakes import WORLD, answer, chat_reply, query, serve
from tests.indexing import hybrid_index


def conversations(folder: Path, **identity: Any) -> None:
    """A chat folder with three turns: one corrected, one confirmed, one left alone; and a changed step."""
    identity = {"prompt": {"profile": "transcript", "hash": "x"}, **identity}
    with open_run(folder, "serve", identity=identity, config={"prompt": {"profile": "transcript"}}):
        with chat(WritingPolicy(scripted(*WORK, *WORK, *WORK, *WORK[3:])), folder) as served:
            wrong, right, _ = (served.whole(question)[0]["turn"] for question in ("One?", "Two?", "Three?"))
            served.client.post(f"/api/turns/{wrong}/feedback", json={"right": False, "answer": "euro"})
            served.client.post(f"/api/turns/{right}/feedback", json={"right": True})
            body = {"step": 2, "text": query("currency of Albania")}
            fork = served.client.post(f"/api/turns/{right}/fork", json=body).json()["turn"]
            served.events(fork)


def test_a_chat_folder_is_scored_by_what_people_said(tmp_path: Path) -> None:
    """A turn that somebody cancelled, or that failed, is not the agent's answer."""
    conversations(tmp_path)
    assert main(["evaluate", "--predictions", str(tmp_path)]) == 0
    scores = read_json(tmp_path / "metrics.json")
    assert (scores["questions"], scores["em"]) == (2, 0.5)
    before = list(read_predictions(tmp_path))
    turns = list(read_records(tmp_path / "turns.jsonl", Turn))
    again = [replace(turns[1], id=finish, finish=finish, prediction=None) for finish in ("cancelled", "failed")]
    write_records(tmp_path / "turns.jsonl", [*turns, *again])
    assert list(read_predictions(tmp_path)) == before


def test_a_persons_step_says_nothing_of_the_agent(tmp_path: Path) -> None:
    identity = {"prompt": {"profile": "transcript", "hash": "x"}}
    with open_run(tmp_path, "serve", identity=identity, config={}):
        with chat(WritingPolicy(scripted(*WORK[:4], answer("euro"), answer("lek"))), tmp_path) as served:
            turn = served.whole("One?")[0]["turn"]
            body = {"step": 3, "text": WORK[3] + " "}
            fork = served.client.post(f"/api/turns/{turn}/fork", json=body).json()["turn"]
            assert served.events(fork)[-1]["finish"] == "answer"
            served.client.post(f"/api/turns/{fork}/feedback", json={"right": True})
    (counted,) = read_predictions(tmp_path)
    assert (counted.id, counted.prediction, counted.golden_answers) == (turn, "euro", ("lek",))


def test_a_chat_folder_is_compared_with_another_agent_on_the_same_questions(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, replay = str(hybrid_index(tmp_path, WORLD, encoder)), tmp_path / "replay"
    conversations(tmp_path / "chat")
    assert main(["pairs", "people", str(tmp_path / "chat"), "--out", str(tmp_path / "human")]) == 0
    questions = ["infer", "--questions", str(tmp_path / "human/corrections.jsonl"), "--out", str(replay)]
    with serve(chat_reply(lambda prompt, draw: answer("euro"))) as endpoint:
        who = ["--base_url", endpoint.url, "--model", "double", "--policy.engine", "openai"]
        assert main([*questions, "--index", index, *who]) == 0
    conversations(tmp_path / "again", index=read_manifest(replay)["identity"]["index"])
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "again"), str(replay), "--names", "chat", "other"]) == 0
    assert "| chat | 2 | 50.0" in (table := capsys.readouterr().out)
    assert "| other | 2 | 50.0" in table
    assert "+0.0 (" in table.partition("| figure")[2], "figures are paired by the question, not by the turn"
    assert main(["compare", str(tmp_path / "chat"), str(replay)]) == 2
    assert "differ in index" in capsys.readouterr().err


def test_changed_steps_become_pairs_and_corrections_questions(tmp_path: Path) -> None:
    """Steps over passages of the web are left out unless they are asked for."""
    conversations(tmp_path / "chat")

    def made(name: str, *more: str) -> list[Pair]:
        assert main(["pairs", "people", str(tmp_path / "chat"), "--out", str(tmp_path / name), *more]) == 0
        files = [tmp_path / name / f"pairs.{split}.jsonl" for split in ("train", "val")]
        return [pair for file in files for pair in read_records(file, Pair)]

    (pair,) = made("pairs")
    assert (pair.source, pair.depth) == ("human", 3)
    assert (pair.chosen[0]["content"], pair.rejected[0]["content"]) == (query("currency of Albania"), WORK[2])
    corrected = read_records(tmp_path / "pairs/corrections.jsonl", Question)
    assert {one.question: one.golden_answers for one in corrected} == {"One?": ("euro",), "Two?": ("lek",)}
    file = tmp_path / "chat" / "preferred.jsonl"
    (row,) = read_records(file, HumanPair)
    assert row.prompt[0] == Message(role="system", content=row.prompt[0]["content"])
    file.write_text(json.dumps({**vars(row), "web": True}) + "\n")
    assert made("without") == []
    assert len(made("with", "--web")) == 1
