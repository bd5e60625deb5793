"""The benchmark that judges labels: pairs of a reward, counted and held against the gold facts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.label_accuracy import begun, main
from steprag.files import write_records
from steprag.tree import Belief, Node, Tree
from steprag.types import Found, Message, Question, Usage

FACTS = {"facts": [{"passage": "1", "anyof": [["Albania"]]}, {"passage": "2", "anyof": [["lek"]]}]}
OPEN = Question("q", "Which currency is used around Tirana?", ("lek",), FACTS)
TEXTS = {
    "query": "So the next query is <query> {} </query>",
    "evidence": "Based on the query, the relevant evidence is <evidence> {} </evidence>",
    "answer": "So the answer is <answer> {} </answer>",
}


def node(identity: int, parent: int, action: str, content: str, logp: float | None = None, **more: Any) -> Node:
    belief = None if logp is None else Belief("lek", logp, 3, Usage(1, 9, 3))
    prompt = None if action == "answer" else (Message(role="user", content="u"),)
    return Node(id=identity, parent=parent, depth=more.pop("depth"), action=action, content=content, visits=1,
                text=TEXTS[action].format(content), belief=belief, messages=prompt, terminal=action == "answer",
                **more)  # fmt: skip


def tree(question: Question = OPEN) -> Tree:
    """Two searches, of which one finds the first passage; two notes, of which one keeps its fact; two ways on.

    Belief sees the first search rightly, the notes wrongly, and that it is too early to answer.
    """
    first, second = (Found("1", "Albania"),), (Found("7", "Peru"),)
    root = Node(id=0, parent=None, depth=0, belief=Belief("lek", -9, 3, Usage(1, 9, 3)), visits=6,
                messages=(Message(role="user", content="u"),))  # fmt: skip
    nodes = (
        root,
        node(1, 0, "query", "country of Tirana", -4.0, depth=1, passages=first, usage=Usage(1)),
        node(2, 0, "query", "currency of Peru", -8.0, depth=1, passages=second),
        node(3, 1, "evidence", "Tirana is in Albania", -7.0, depth=2, usage=Usage(1)),
        node(4, 1, "evidence", "Tirana is large", -4.0, depth=2),
        node(5, 3, "query", "currency of Albania", -1.0, depth=3, passages=(Found("2", "lek"),), usage=Usage(1)),
        node(6, 3, "answer", "sol", depth=3, prediction_f1=0.0),
    )
    return Tree(1, question, "done", Usage(3), nodes)


def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str, trees: int = 1) -> dict[str, Any]:
    """What the benchmark prints for so many copies of the tree, by reward, of open questions."""
    file = tmp_path / "trees.jsonl"
    write_records(file, [tree(Question(f"q{i}", OPEN.question, OPEN.golden_answers, FACTS)) for i in range(trees)])
    capsys.readouterr()
    main(["--trees", str(file), "--json", *options])
    return {row["reward"]: row for row in json.loads(capsys.readouterr().out)["open"]}


def test_pairs_are_right_where_the_facts_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gain = told(tmp_path, capsys, "--rewards", "gain", trees=3)["gain"]
    assert gain["pairs"] == 9
    assert gain["decided"] == {"query": 3, "evidence": 3, "query or answer": 3}
    assert gain["right"] == {"query": 3, "evidence": 0, "query or answer": 3}
    assert gain["interval"] == {"query": [1.0, 1.0], "evidence": [0.0, 0.0], "query or answer": [1.0, 1.0]}
    assert (gain["calls"], gain["scores"], gain["covered"]) == (9 / 3, 18, 1.0)


def test_other_rewards_are_judged_by_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = told(tmp_path, capsys, "--rewards", "first_answer", "spre+grounded", "cover")
    assert {name: row["pairs"] for name, row in rows.items()} == {"first_answer": 0, "spre+grounded": 0, "cover": 0}
    assert rows["cover"]["interval"]["query"] is None
    assert rows["cover"]["calls"] is None


def test_a_share_of_the_calls_gives_what_the_search_had_by_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = told(tmp_path, capsys, "--rewards", "gain", "--share", "0.4")["gain"]
    assert (begun["pairs"], begun["right"]["query"], begun["calls"]) == (1, 1, 1.0)
    assert begun["scores"] == 3


def test_a_share_of_a_later_round_knows_of_the_nodes_that_are_left(tmp_path: Path) -> None:
    assert begun(replace(tree(), known=(0, 1, 5)), 0.4).known == (0, 1)


def test_where_no_facts_are_listed_nothing_is_right_or_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path / "trees.jsonl", [tree(Question("q", OPEN.question, OPEN.golden_answers))])
    main(["--trees", str(tmp_path / "trees.jsonl"), "--json", "--rewards", "gain"])
    (row,) = json.loads(capsys.readouterr().out)["open"]
    assert row["pairs"] == 3
    assert set(row["decided"].values()) == {0}


def test_questions_that_can_be_guessed_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guessed = Question("g", "Is the lek used in Albania?", ("yes",), {"supporting_ids": ["1"], **FACTS})
    write_records(tmp_path / "trees.jsonl", [tree(), tree(guessed)])
    main(["--trees", str(tmp_path / "trees.jsonl"), "--rewards", "gain"])
    shown = capsys.readouterr().out
    assert "1 trees of open questions, 3 calls" in shown
    assert "1 trees of guessable questions, 3 calls" in shown
    assert "| gain | 3 | 1 of 1: 100 % (100 to 100) | 0 of 1: 0 % (0 to 0) |" in shown
