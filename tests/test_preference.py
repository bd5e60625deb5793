"""Rewards, pairs and trajectories of finished trees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from preference.build import main
from preference.config import PairsConfig, SftConfig
from preference.pairs import build_pairs, build_trajectories
from preference.rewards import spre
from steprag.errors import ConfigError, DataError
from steprag.files import dump_line, from_dict, read_records, to_dict
from steprag.runs import read_manifest
from steprag.types import Message, Node, Pair, Question, Trajectory, Tree, Usage

PROMPT = (Message(role="system", content="s"), Message(role="user", content="u"))
HERE = Path(__file__).parent


def node(identity: int, parent: int | None, action: str | None, f1: float | None = None, **more: object) -> Node:
    depth = {None: 0, 0: 1, 1: 2, 2: 2, 4: 3}[parent] if parent is not None else 0
    texts = {"text": f"text {identity}", "content": f"c {identity}"}
    values = {"prediction_f1": f1, "terminal": f1 is not None, "visits": 1}
    return Node(id=identity, parent=parent, depth=depth, action=action, **{**texts, **values, **more})


def tree() -> Tree:
    """root → query 1 → (answers 4: F1 1, 5: F1 0), query 2 → answer 6: F1 0.5, refused 3."""
    nodes = (
        node(0, None, None, messages=PROMPT),
        node(1, 0, "query", messages=PROMPT, visits=2),
        node(2, 0, "query", messages=PROMPT),
        node(3, 0, None, failure="no_action", terminal=True, visits=0),
        node(4, 1, "answer", 1.0),
        node(5, 1, "answer", 0.0),
        node(6, 2, "answer", 0.5),
    )
    return Tree(1, Question("q", "?", ("a",)), "done", Usage(), nodes)


def test_spre_is_the_mean_over_the_answers_below() -> None:
    assert spre(tree(), 0.9) == pytest.approx([0.405, 0.405, 0.405, None, 0.81, 0.0, 0.405], nan_ok=True)
    assert spre(tree(), 1.0)[:3] == pytest.approx([0.5, 0.5, 0.5])


def test_pairs_are_siblings_with_a_margin() -> None:
    pairs = build_pairs(tree(), "h", spre(tree(), 0.9), PairsConfig())
    assert [(pair.chosen_node, pair.rejected_node) for pair in pairs] == [(4, 5)]
    pair = pairs[0]
    assert pair.prompt == PROMPT
    assert (pair.chosen[0]["content"], pair.rejected[0]["content"]) == ("text 4", "text 5")
    assert (pair.margin, pair.action, pair.depth) == (pytest.approx(0.81), "answer", 2)


def test_refused_steps_and_narrow_margins_make_no_pair() -> None:
    rewards = [0.5, 0.52, 0.5, None, 0.5, 0.5, 0.5]
    assert build_pairs(tree(), "h", rewards, PairsConfig(margin=0.05)) == []
    assert len(build_pairs(tree(), "h", rewards, PairsConfig(margin=0.01))) == 1


def test_equal_content_makes_no_pair_and_other_actions_only_where_wanted() -> None:
    grown = tree()
    same = replace(grown, nodes=(*grown.nodes[:5], replace(grown.nodes[5], content="The C 4."), grown.nodes[6]))
    assert build_pairs(same, "h", spre(same, 0.9), PairsConfig()) == []
    cross = replace(grown, nodes=(*grown.nodes[:5], replace(grown.nodes[5], action="query"), grown.nodes[6]))
    assert build_pairs(cross, "h", spre(grown, 0.9), PairsConfig(cross_action=False)) == []
    assert build_pairs(cross, "h", spre(grown, 0.9), PairsConfig())[0].rejected_action == "query"


def test_a_prompt_gives_its_widest_pairs_first() -> None:
    answers = tuple(node(i, 0, "answer", f1) for i, f1 in [(1, 1.0), (2, 0.4), (3, 0.0)])
    grown = replace(tree(), nodes=(node(0, None, None, messages=PROMPT), *answers))
    pairs = build_pairs(grown, "h", spre(grown, 1.0), PairsConfig(per_node=2))
    assert [(pair.chosen_node, pair.rejected_node) for pair in pairs] == [(1, 3), (1, 2)]


def test_the_shortest_right_episode_is_the_trajectory() -> None:
    steps = build_trajectories(tree(), SftConfig())
    assert [(row.action, row.completion[0]["content"]) for row in steps] == [("query", "text 1"), ("answer", "text 4")]
    assert len(build_trajectories(tree(), SftConfig(paths="all", min_f1=0.5))) == 4
    assert build_trajectories(tree(), SftConfig(min_f1=1.0, paths="all"))[0].prompt == PROMPT


def run_folder(tmp_path: Path, count: int = 40) -> Path:
    golden = from_dict(Tree, json.loads((HERE / "golden_tree.json").read_text(encoding="utf-8")), HERE, 1)
    lines = [dump_line(replace(golden, question=replace(golden.question, id=f"q{i}"))) for i in range(count)]
    (tmp_path / "trees.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_the_command_writes_pairs_split_by_question(tmp_path: Path) -> None:
    trees = run_folder(tmp_path)
    assert main(["--trees", str(trees), "--pairs.margin", "0.05"]) == 0
    found = {split: list(read_records(trees / "pairs" / f"pairs.{split}.jsonl", Pair)) for split in ("train", "val")}
    steps = {
        split: list(read_records(trees / "pairs" / f"sft.{split}.jsonl", Trajectory)) for split in ("train", "val")
    }
    assert found["train"]
    assert found["val"]
    for kind in (found, steps):
        assert not {row.question_id for row in kind["train"]} & {row.question_id for row in kind["val"]}
    counts = read_manifest(trees / "pairs")["counts"]
    assert counts["pairs.train"] == len(found["train"])
    assert counts["trees"] == 40


def test_pairs_name_the_line_they_come_from(tmp_path: Path) -> None:
    import hashlib

    trees = run_folder(tmp_path, 3)
    main(["--trees", str(trees / "trees.jsonl"), "--out", str(tmp_path / "out"), "--validation", "0"])
    lines = (trees / "trees.jsonl").read_text(encoding="utf-8").splitlines()
    names = {hashlib.sha256(line.encode()).hexdigest()[:16] for line in lines}
    assert {pair.tree for pair in read_records(tmp_path / "out" / "pairs.train.jsonl", Pair)} == names


def test_same_input_same_bytes(tmp_path: Path) -> None:
    trees = run_folder(tmp_path)
    for name in ("one", "two"):
        main(["--trees", str(trees), "--out", str(tmp_path / name)])
    for file in ("pairs.train.jsonl", "pairs.val.jsonl", "sft.train.jsonl", "sft.val.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_unknown_fields_of_a_tree_are_kept() -> None:
    row = json.loads((HERE / "golden_tree.json").read_text(encoding="utf-8"))
    row["colour"] = {"of": "money"}
    assert to_dict(from_dict(Tree, row, HERE, 1))["colour"] == {"of": "money"}


def test_bad_trees_are_named_and_leave_nothing_behind(tmp_path: Path) -> None:
    trees = run_folder(tmp_path, 2)
    with (trees / "trees.jsonl").open("a") as stream:
        stream.write('{"format": 1}\n')
    with pytest.raises(DataError, match=r"trees\.jsonl:3: Tree: "):
        main(["--trees", str(trees), "--out", str(tmp_path / "out")])
    assert not list((tmp_path / "out").glob("*.train.jsonl"))
    (trees / "trees.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no trees"):
        main(["--trees", str(trees), "--out", str(tmp_path / "out2")])
