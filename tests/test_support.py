"""`steprag plan labels`: which states have a right step, by facts found, and what is forecast of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from preference.support import OpenState, forecast, open_states, support
from steprag.agent.facts import facts_about
from steprag.agent.grammars import TRANSCRIPT
from steprag.records.jsonl import write_records
from steprag.tree import Node, Tree
from steprag.types import Found, Question, Usage

ASKED = Question("q", "Where was the pilot born?", ("Lima",), {"supporting_titles": ["Anna Alba", "Ben Boro"]})


def node(number: int, parent: int, depth: int, action: str, content: str, *found: str, **more: Any) -> Node:
    passages = tuple(Found(title, title, 1.0) for title in found)
    return Node(number, parent, depth, action, content, content, passages=passages, golden_found=False, **more)


TREE = Tree(1, ASKED, "limit", Usage(), (
    Node(0, None, 0),
    node(1, 0, 1, "query", "pilot", "Anna Alba"),  # right: a marked passage
    node(2, 0, 1, "query", "plane", "Other"),
    node(3, 1, 2, "evidence", "Anna Alba was the pilot"),  # right: kept
    node(4, 1, 2, "evidence", "None"),
    node(5, 2, 2, "evidence", "None"),  # nothing was there to be kept
    node(6, 3, 3, "query", "Anna", "Anna Alba"),
    node(7, 4, 3, "answer", "Rome", terminal=True, prediction_f1=0.0),
))  # fmt: skip


def test_a_state_is_supported_where_a_step_found_or_kept_more_than_its_episode_had() -> None:
    states = open_states(facts_about(TREE, TRANSCRIPT))
    assert states == [OpenState(0, True), OpenState(0, True), OpenState(1, False), OpenState(0, False)]
    told = support([states, states])
    assert [(one.hop, one.states, one.right) for one in told] == [(0, 6, 4), (1, 2, 0), (None, 8, 4)]
    assert all(one.low <= one.share <= one.high for one in told)


def test_without_marks_chained_match_says_it_and_what_can_be_guessed_says_nothing() -> None:
    bare = replace(TREE.nodes[1], golden_found=True)
    plain = replace(TREE, question=replace(ASKED, metadata={}), nodes=(TREE.nodes[0], bare, *TREE.nodes[2:]))
    assert [state.right for state in open_states(facts_about(plain, TRANSCRIPT))] == [True, False, False, False]
    yes = replace(ASKED, question="Is it?", golden_answers=("yes",), metadata={})
    assert open_states(facts_about(replace(TREE, question=yes), TRANSCRIPT)) == []


@pytest.mark.parametrize(("share", "said"), [(0.0, "worked"), (0.3, "labels"), (0.9, "outcomes")])
def test_the_share_decides_the_forecast(share: float, said: str) -> None:
    assert forecast(share) == said


def test_the_command_reads_trees_and_names_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yes = replace(ASKED, question="Is it?", golden_answers=("yes",), metadata={})
    write_records(tmp_path / "trees.jsonl", [TREE, replace(TREE, question=yes)])
    assert main(["plan", "labels", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trees"], told["unlabelled"], told["support"][-1]["states"]) == (2, 1, 4)
    assert main(["plan", "labels", str(tmp_path)]) == 0
    assert "1 of 2 trees are left out" in capsys.readouterr().out
    write_records(tmp_path / "trees.jsonl", [replace(TREE, question=yes)])
    assert main(["plan", "labels", str(tmp_path)]) == 2
