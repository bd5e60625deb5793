"""Detours of trees as worked episodes: what is woven, what is masked, and that it can be learnt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from apps.commands import main
from data_generation.weave import NOTES, weave_all
from data_generation.worked import WorkedEpisode
from steprag.records.jsonl import read_records, write_records
from steprag.records.training_rows import Trajectory
from steprag.tree import Node, Tree
from steprag.types import Found, Question
from tests.fakes import WORLD, rooted
from tests.training_parts import Capture

ASKED = Question("q", "Which money has Albania?", ("lek",), {"supporting_ids": ["1"]})
ALBANIA, LIMA = (Found(WORLD[at].id, WORLD[at].title) for at in (1, 2))


def node(place: int, parent: int | None, action: str | None, content: str = "", *found: Found, **more: object) -> Node:
    values = {"text": f"So … <{action}> {content} </{action}>", "content": content, "passages": found}
    return Node(id=place, parent=parent, depth=0, action=action, **{**values, **more})  # pyright: ignore


def tree(*, below_the_failed: float = 0.0, question: Question = ASKED) -> Tree:
    """query 1 finds Lima alone, evidence 3, wrong answer 5; query 2 finds Albania, evidence 4, right answer 6."""
    nodes = (
        node(0, None, None),
        node(1, 0, "query", "money of Peru", LIMA),
        node(2, 0, "query", "money  of Albania", ALBANIA),
        node(3, 1, "evidence", "None"),
        node(4, 2, "evidence", "Prices are in the lek."),
        node(5, 3, "answer", "sol", prediction_f1=below_the_failed, terminal=True),
        node(6, 4, "answer", "lek", prediction_f1=1.0, terminal=True),
    )
    return rooted(question, *nodes)


def woven(tmp_path: Path, grown: Tree, *, straight: bool = False) -> list[WorkedEpisode]:
    write_records(tmp_path / "trees.jsonl", [grown])
    return list(weave_all(tmp_path / "trees.jsonl", {}, straight=straight))


def test_a_failed_search_the_way_back_and_the_better_one_are_an_episode(tmp_path: Path) -> None:
    (episode,) = woven(tmp_path, tree())
    assert [(step.action, step.learn) for step in episode.steps] == [
        ("search", False), ("backtrack", True), ("search", True), ("reasoning", True), ("answer", True)]  # fmt: skip
    assert episode.steps[0].text == "<search> money of Peru </search>"
    assert episode.steps[1].text in {f"<backtrack> {note} </backtrack>" for note in NOTES}
    assert episode.steps[2].text == "<search> money of Albania </search>"
    straight, detour = woven(tmp_path, tree(), straight=True)
    assert [step.action for step in straight.steps] == ["search", "reasoning", "answer"]
    assert detour == episode


def test_a_detour_on_the_right_way_itself_is_shown_and_not_learnt(tmp_path: Path) -> None:
    """A search whose evidence is None was wrong, though the episode ends well: only the step back is learnt of it."""
    nodes = (
        node(0, None, None),
        node(1, 0, "query", "money of Peru", LIMA),
        node(2, 1, "evidence", "None"),
        node(3, 2, "query", "money of Albania", ALBANIA),
        node(4, 3, "evidence", "Prices are in the lek."),
        node(5, 4, "answer", "lek", prediction_f1=1.0, terminal=True),
    )
    (episode,) = woven(tmp_path, rooted(ASKED, *nodes), straight=True)
    assert episode.id == "q-detour"
    assert [(step.action, step.learn) for step in episode.steps] == [
        ("search", False), ("backtrack", True), ("search", True), ("reasoning", True), ("answer", True)]  # fmt: skip


def test_what_led_to_a_right_answer_or_is_not_known_to_have_failed_is_no_detour(tmp_path: Path) -> None:
    assert woven(tmp_path, tree(below_the_failed=1.0)) == []
    assert woven(tmp_path, tree(question=Question("q", "Which?", ("lek",)))) == []
    grown = tree()
    same = tuple(replace(one, content="money of Albania") if one.id == 1 else one for one in grown.nodes)
    assert woven(tmp_path, replace(grown, nodes=same)) == [], "the same query, thought of otherwise, is no other one"


def test_woven_episodes_are_learnt_but_for_the_failed_step(tmp_path: Path, world_index: Path, capsys: Capture) -> None:
    run, file, corpus = tmp_path / "run", tmp_path / "woven.jsonl", tmp_path / "corpus.jsonl"
    run.mkdir()
    write_records(run / "trees.jsonl", [tree()])
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in WORLD))
    assert main(["weave", "--trees", str(run), "--out", str(file)]) == 0
    assert "1 episode, 1 with a detour" in capsys.readouterr().err
    more = ["--prompt.profile", "stack", "--episode.depth", "9", "--out", str(tmp_path / "worked")]
    assert main(["worked", "--episodes", str(file), "--corpus", str(corpus), "--index", str(world_index), *more]) == 0
    rows = list(read_records(tmp_path / "worked/sft.train.jsonl", Trajectory))
    assert [row.action for row in rows] == ["backtrack", "search", "reasoning", "answer"]
    assert "money of Peru" in rows[0].prompt[-1]["content"]
    assert "money of Peru" not in rows[1].prompt[-1]["content"], "the way back took it off the stack"
    write_records(run / "trees.jsonl", [tree(below_the_failed=1.0)])
    assert main(["weave", "--trees", str(run), "--out", str(file)]) == 2
    assert "search more questions" in capsys.readouterr().err


@pytest.mark.parametrize("grammar", ["search-r1", "ircot"])
def test_trees_of_agents_that_keep_no_facts_are_refused(tmp_path: Path, capsys: Capture, grammar: str) -> None:
    write_records(tmp_path / "trees.jsonl", [replace(tree(), nodes=tree().nodes[:1], grammar=grammar)])
    assert main(["weave", "--trees", str(tmp_path), "--out", str(tmp_path / "woven.jsonl")]) == 2
    assert f"its agent ({grammar}) searches twice in a row" in capsys.readouterr().err
    assert not (tmp_path / "woven.jsonl").exists()
