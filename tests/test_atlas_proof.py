"""The proof on Atlas: its label by marked facts, the choice of rates, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.commands import main
from benchmarks import atlas_proof
from benchmarks.atlas_proof import ARMS, RATES, Proof, facts_met, named, report
from steprag.agent.grammars import TRANSCRIPT
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Found, Message, Question, Usage

FACTS = [{"passage": "7", "anyof": [["Peru"]]}, {"passage": "8", "anyof": [["Lima"]]}]


def tree_of(name: str, *answers: str) -> Tree:
    """A question's tree: two searches, one finds the first fact; two notes of it, one keeps it; answers."""
    prompt = (Message(role="user", content=f"Question: {name}\nPeru: Cusco lies in Peru, says Lima."),)

    def node(number: int, parent: int | None, depth: int, action: str, content: str, **more: Any) -> Node:
        heads = {"query": "So the next query is", "answer": "So the answer is"}
        head = heads.get(action, "Based on the query, the relevant evidence is")
        text = f"{head} <{action}> {content} </{action}>"
        return Node(number, parent, depth, action, text, content, messages=prompt, **more)

    nodes = [
        Node(0, None, 0, messages=prompt),
        node(1, 0, 1, "query", "Where is Cusco?", passages=(Found("7", "Cusco"),)),
        node(2, 0, 1, "query", "What is asked?", passages=(Found("3", "Rome"),)),
        node(3, 1, 2, "evidence", "Cusco lies in Peru"),
        node(4, 1, 2, "evidence", "Peru says"),
        node(5, 1, 2, "evidence", "says Lima"),
        *(
            node(6 + n, 3, 3, "answer", a, terminal=True, prediction_f1=float(a == "Lima"))
            for n, a in enumerate(answers)
        ),
    ]
    question = Question(name, "Which is the capital of the country of Cusco?", ("Lima",), {"facts": FACTS})
    return Tree(TREE_FORMAT, question, "limit", Usage(), tuple(nodes), grammar="transcript")


def test_marked_facts_are_found_then_kept() -> None:
    told = facts_met(tree_of("solved", "Lima", "Cusco"), TRANSCRIPT)
    assert [one and one.value for one in told] == [None, 0.5, 0.0, 0.5, 0.5, 0.0, None, 0.5]


def test_the_stages_are_commands_that_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = Proof(tmp_path, ())
    for stage in (proof.trees(1), *proof.learnt("facts", 1, RATES[0]), proof.answered("warm")):
        assert main(stage.argv) == 2  # nothing is there yet: it says so, of no option
        said = capsys.readouterr().err
        assert str(tmp_path) in said
        assert "option" not in said


def test_rates_are_chosen_on_dev_and_seeds_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"id": f"q{n}", "question": "Who?", "golden_answers": ["x"], "metadata": {"hops": 1 + n % 2}} for n in range(4)
    ]
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    low, high = RATES
    dev = {
        named("facts", 1, low): 1,
        named("facts", 1, high): 2,
        named("outcomes", 1, low): 1,
        named("outcomes", 1, high): 1,
    }
    test = {
        named("facts", 1, high): 3,
        named("facts", 2, high): 2,
        named("outcomes", 1, low): 1,
        named("outcomes", 2, low): 1,
    }
    for name in (*test, "warm"):
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "metrics.json").write_text('{"gold_recall": 0.5, "searches": 2}', encoding="utf-8")
    for arm in ARMS:
        for seed in (1, 2):
            (tmp_path / f"pairs-{arm}-{seed}").mkdir()
            (tmp_path / f"pairs-{arm}-{seed}/report.json").write_text('{"pairs": {"pairs": 7}}', encoding="utf-8")
    count = {"dev": dev, "test": {**test, "warm": 0}}
    monkeypatch.setattr(atlas_proof, "right", lambda run: np.arange(4) < count[run.parent.name][run.name])
    page = report(tmp_path, [1, 2])
    assert "| marked facts | 75.0, 50.0 | 62.5 | 75.0 | 50.0 | 50.0 | 2.0 | 7, 7 | 0.0002 |" in page
    assert "| marked facts over outcomes | +37.5 (" in page
    assert "| +50.0, +25.0 |" in page
