"""Labels from belief, grounded outcomes, and what the report says of a policy's belief."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preference.build import build
from preference.config import LabelConfig, PairsConfig, PairsStageConfig, SftConfig
from preference.labels.estimates import outcomes
from preference.labels.gain import NATS
from preference.labels.gold import gold
from preference.pairs import build_pairs
from preference.report.reward_diagnostics import Calibration
from preference.rewards import Rewards, rewards
from preference.supervised import build_trajectories
from steprag.agent.belief import CLEAR, FLOOR, floored, gains
from steprag.agent.facts import facts_about, supported
from steprag.agent.grammars import STACK, TRANSCRIPT
from steprag.config.load import load_config
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import from_dict, read_records, to_dict, write_records
from steprag.records.training_rows import Pair
from steprag.scores.gold import Fact, facts_of
from steprag.tree import Belief, Node, Tree
from steprag.types import Found, Message, Question
from tests.fakes import rooted

PROMPT = (Message(role="user", content="u"),)
CURRENCY = Question("q", "Which currency is used there?", ("lek",))
OLDER = Question("c", "Which is older, Peru or Chile?", ("Peru",), {"supporting_titles": ["Peru", "Chile"]})


def step(identity: int, parent: int | None, action: str | None, logp: float | None = None, **more: object) -> Node:
    belief = None if logp is None else Belief("lek", logp, 3)
    values = {"text": f"t {identity}", "content": f"c {identity}", "belief": belief, "messages": PROMPT, "visits": 1}
    return Node(id=identity, parent=parent, depth=0, action=action, **{**values, **more})


def said(identity: int, f1: float, content: str = "", parent: int = 0) -> Node:
    content = content or f"c {identity}"
    return step(identity, parent, "answer", None, prediction_f1=f1, terminal=True, messages=None, content=content)


def gain(tree: Tree) -> Rewards:
    return rewards(facts_about(tree, TRANSCRIPT), LabelConfig(name="gain"))


def preferred(tree: Tree) -> set[tuple[int, int]]:
    pairs = build_pairs(tree, "h", gain(tree), PairsConfig(cross_action=True))
    return {(pair.chosen_node or 0, pair.rejected_node or 0) for pair in pairs}


def test_two_nats_make_a_pair_and_less_makes_none() -> None:
    tree = rooted(CURRENCY, step(0, None, None, -9), step(1, 0, "query", -4), step(2, 0, "query", -6.01),
               step(3, 0, "query", -5), step(4, 0, "query", None, failure="empty", terminal=True))  # fmt: skip
    assert preferred(tree) == {(1, 2)}
    assert PairsConfig().margin == CLEAR / NATS


def test_below_the_floor_beliefs_do_not_differ() -> None:
    tree = rooted(CURRENCY, step(0, None, None, -30), step(1, 0, "query", -14), step(2, 0, "query", -40))
    assert preferred(tree) == set()
    assert floored(Belief("a", -40, 1)) == FLOOR
    assert not gains(Belief("a", -14, 1), Belief("a", -30, 1))


@pytest.mark.parametrize(("before", "query", "f1", "better"), [
    (-6, -3, 0.0, {(1, 2)}),  # searching on gains over a wrong answer
    (-6, -5, 0.0, set()),  # it gains too little
    (-1, -0.1, 1.0, {(2, 1)}),  # a right answer, believed in, ends the search
    (-6, -3, 1.0, set()),  # a right answer that nothing supports is luck, not compared
    (-1, -1, 0.0, set()),
])  # fmt: skip
def test_search_or_answer_goes_by_what_the_search_adds(
    before: float, query: float, f1: float, better: set[tuple[int, int]]
) -> None:
    assert preferred(rooted(CURRENCY, step(0, None, None, before), step(1, 0, "query", query), said(2, f1))) == better


def test_of_two_answers_the_right_one_wins_where_the_state_believes_in_it() -> None:
    assert preferred(rooted(CURRENCY, step(0, None, None, -1), said(1, 0.0), said(2, 1.0), said(3, 0.5))) == {
        (2, 1), (2, 3), (3, 1)}  # fmt: skip
    assert preferred(rooted(CURRENCY, step(0, None, None, -4), said(1, 0.0), said(2, 1.0))) == set()


@pytest.mark.parametrize(("before", "found", "kept", "better"), [
    (-9, (True, False), "", {(1, 2), (1, 3)}),  # better than a search that found nothing, and than a wrong answer
    (-1, (True, False), "", set()),  # it adds too little to what is believed
    (-9, (False, False), "", set()),
    (-9, (True, False), "So it is the lek.", set()),  # the answer was kept before: nothing to find
    (-9, (True, None), "", {(1, 3)}),  # nobody looked at what the second one found
])  # fmt: skip
def test_a_search_after_which_nobody_asked_goes_by_whether_it_found_the_golden_answer(
    before: float, found: tuple[bool | None, bool | None], kept: str, better: set[tuple[int, int]]
) -> None:
    above = [step(0, None, None, -14), step(1, 0, "query"), step(2, 1, "evidence", before, content=kept)]
    searches = [step(3 + place, 2, "query", golden_found=one, messages=None) for place, one in enumerate(found)]
    tree = rooted(CURRENCY, *above, *searches, said(5, 0.0, parent=2))
    assert {(a - 2, b - 2) for a, b in preferred(tree) if a > 2} == better


def test_what_can_be_guessed_goes_by_the_marked_passages_and_not_by_belief() -> None:
    peru, chile = (Found(name, name) for name in ("Peru", "Chile"))
    tree = rooted(OLDER, step(0, None, None, -1), step(1, 0, "query", -1, passages=(peru,)),
               step(2, 0, "query", -0.1, passages=()), said(3, 1.0, "Peru"))  # fmt: skip
    assert preferred(tree) == {(1, 2), (1, 3)}
    assert [value and value.value for value in gain(tree)] == [None, 0.4, 0.0, 0.0]
    told = (step(1, 0, "query", -1, passages=(peru, chile)),
            step(2, 1, "evidence", -1, content="Peru 1821, Chile 1818"), step(3, 2, "query", -1),
            said(4, 1.0, "Peru", parent=2), said(5, 0.0, "Chile", parent=2))  # fmt: skip
    assert preferred(rooted(OLDER, step(0, None, None, -1), *told)) == {(4, 3), (4, 5)}
    unmarked = replace(tree, question=Question("c", OLDER.question, OLDER.golden_answers))
    assert gain(unmarked) == [None] * 4


def test_trees_without_beliefs_are_refused_with_the_command_that_adds_them() -> None:
    with pytest.raises(ConfigError, match="steprag trees belief --trees"):
        gain(rooted(CURRENCY, step(0, None, None), step(1, 0, "query")))


def grown(content: str, *passages: Found, question: Question = CURRENCY) -> Tree:
    """query 1 finds the passages, evidence 2 keeps the content, answer 3 is right."""
    return rooted(question, step(0, None, None), step(1, 0, "query", passages=passages),
               step(2, 1, "evidence", content=content), said(3, 1.0, "it", parent=2))  # fmt: skip


def test_a_lucky_answer_has_no_score_and_a_grounded_one_keeps_its_own() -> None:
    lucky = grown("None")
    assert supported(facts_about(lucky, TRANSCRIPT)) == [False] * 4
    assert facts_about(lucky, TRANSCRIPT, grounded=True).tree.nodes[3].prediction_f1 is None
    assert facts_about(grown("Paid in the Lek."), TRANSCRIPT, grounded=True).tree.nodes[3].prediction_f1 == 1.0
    wrong = replace(lucky, nodes=(*lucky.nodes[:3], replace(lucky.nodes[3], prediction_f1=0.0)))
    assert facts_about(wrong, TRANSCRIPT, grounded=True).tree == wrong


def test_a_comparison_is_grounded_where_both_of_its_subjects_were_found_and_named() -> None:
    both = Found("1", "Peru"), Found("2", "Chile (country)")
    titles = replace(OLDER, metadata={"supporting_titles": ["Peru", "Chile (country)"]})
    assert supported(facts_about(grown("Peru 1821, Chile 1818", *both, question=titles), TRANSCRIPT))[2:] == [
        True,
        True,
    ]
    assert supported(facts_about(grown("Peru 1821", *both, question=titles), TRANSCRIPT))[2:] == [False, False]
    unmarked = Question("c", OLDER.question, OLDER.golden_answers)
    assert supported(facts_about(grown("Peru", question=unmarked), TRANSCRIPT)) == [None] * 4
    assert facts_about(grown("Peru", question=unmarked), TRANSCRIPT, grounded=True).tree.nodes[3].prediction_f1 == 1.0


def test_listed_facts_say_what_must_be_found_and_kept() -> None:
    facts = [{"passage": "1", "anyof": [["Peru", "1821"]]}, {"passage": "2", "anyof": [["Chile", "1818"], ["younger"]]}]
    asked = replace(OLDER, metadata={"facts": facts})
    both = Found("1", "a"), Found("2", "b")
    assert facts_of(asked)[0] == Fact("1", (("peru", "1821"),))
    assert supported(facts_about(grown("In 1821 Peru; Chile is younger", *both, question=asked), TRANSCRIPT))[2]
    assert not supported(facts_about(grown("In 1821 Peru; Chile is younger", both[0], question=asked), TRANSCRIPT))[2]
    assert not supported(facts_about(grown("Peru 1821 and Chile", *both, question=asked), TRANSCRIPT))[2]
    with pytest.raises(ConfigError, match=r"metadata\.facts cannot be read"):
        facts_of(replace(OLDER, metadata={"facts": [{"passage": "1"}]}))


def test_what_a_step_back_took_is_not_kept() -> None:
    """On the stack: a fact is kept, then its search is taken back; another branch sums it up."""
    asked = replace(CURRENCY, metadata={"supporting_ids": ["1"]})
    nodes = (
        step(0, None, None),
        step(1, 0, "search", passages=(Found("wiki/1", "Albania"),)),
        step(2, 1, "reasoning", content="Albania pays in the lek"),
        step(3, 2, "backtrack", content="no"),
        step(4, 2, "summary", content="Albania: lek"),
    )
    facts = facts_about(rooted(asked, *nodes), STACK)
    assert facts.golden_kept == (False, False, True, False, True)
    recall = [one and one.value for one in gold(facts)]
    assert recall == [None, 1.0, 1.0, None, 1.0], "a passage of a tool bears the mark of its id"
    assert supported(facts) == [False, False, True, False, True]


def pairs_of(tmp_path: Path, trees: list[Tree], **keys: object) -> list[Pair]:
    file = tmp_path / "trees.jsonl"
    write_records(file, trees)
    fixed = {"validation": 0, "card.plots": False, "pairs.cross_action": True, "label.name": "gain"}
    config = load_config(PairsStageConfig, None, {**fixed, **keys})
    build(config, [file], tmp_path / "pairs")
    return list(read_records(tmp_path / "pairs/pairs.train.jsonl", Pair))


def test_grounded_pairs_leave_lucky_answers_out(tmp_path: Path) -> None:
    answers = [replace(said(1, 1.0, "it"), text="So the answer is <answer> it </answer>"),
               replace(said(2, 0.0, "no"), text="So the answer is <answer> no </answer>")]  # fmt: skip
    tree = rooted(CURRENCY, step(0, None, None), *answers)
    assert len(pairs_of(tmp_path, [tree], **{"label.name": "spre"})) == 1
    assert pairs_of(tmp_path / "g", [tree], **{"label.name": "spre", "label.grounded": True}) == []


def test_calibration_tells_how_often_answers_are_right_at_a_belief() -> None:
    calibration = Calibration()
    assert calibration.report() == {}
    for tree in (
        rooted(CURRENCY, step(0, None, None, math.log(0.9)), said(1, 1.0, "lek"), said(2, 0.0, "sol")),
        rooted(CURRENCY, step(0, None, None, math.log(0.1)), said(1, 0.0, "sol")),
        rooted(OLDER, step(0, None, None, math.log(0.5)), said(1, 1.0, "Peru")),
    ):
        calibration.add(facts_about(tree, TRANSCRIPT))
    report = calibration.report()
    assert report["open"]["answers"] == 3
    assert report["open"]["right"] == pytest.approx(1 / 3)
    assert report["open"]["brier"] == pytest.approx((0.1**2 + 0.9**2 + 0.1**2) / 3, abs=1e-3)
    assert [(row["count"], row["share"]) for row in report["open"]["curve"]] == [(1, 0.0), (2, 0.5)]
    assert report["guessable"]["answers"] == 1


def test_the_card_shows_the_curve(tmp_path: Path) -> None:
    tree = rooted(CURRENCY, step(0, None, None, -1), said(1, 1.0, "lek"), said(2, 0.0, "sol"))
    pairs_of(tmp_path, [tree], **{"card.plots": True})
    card = (tmp_path / "pairs/README.md").read_text()
    assert "How far the policy's belief can be trusted" in card
    assert "| open | 2 | 50% | 37% |" in card
    assert (tmp_path / "pairs/plot_calibration.png").stat().st_size > 1000


def test_a_belief_that_is_no_probability_is_refused(tmp_path: Path) -> None:
    row = to_dict(rooted(CURRENCY, step(0, None, None, -1)))
    assert from_dict(Tree, row, tmp_path, 1).nodes[0].belief == Belief("lek", -1, 3)
    row["nodes"][0]["belief"]["logp"] = 0.5
    with pytest.raises(DataError, match=r"belief\.logp is no logarithm"):
        from_dict(Tree, json.loads(json.dumps(row)), tmp_path, 1)


def learnt(tree: Tree, **sft: object) -> list[int | None]:
    """The nodes whose steps become supervised rows."""
    config = SftConfig.model_validate({"paths": "shortest", **sft})
    worth = outcomes(tree, LabelConfig(alpha=1.0))
    return [row.node for row in build_trajectories(facts_about(tree, TRANSCRIPT), "h", worth, gain(tree), config)]


def unsolved(question: Question = CURRENCY) -> Tree:
    """Two hops that lead to belief and then to a wrong answer, and one that leads nowhere."""
    found = (Found("1", "Albania", 0.5),)
    nodes = (
        step(0, None, None, -14), step(1, 0, "query", -13, passages=found), step(2, 1, "evidence", -11),
        step(3, 2, "query", -1, passages=found), step(4, 3, "evidence", -0.5), step(5, 3, "evidence", -9),
        step(6, 4, "query", -0.2, passages=found), step(7, 6, "evidence", -0.1), said(8, 0.0, parent=4),
    )  # fmt: skip
    return rooted(question, *nodes)


UNSOLVED = unsolved()
SOLVED = rooted(CURRENCY, *UNSOLVED.nodes, said(9, 1.0, parent=2))
SURE = replace(UNSOLVED.nodes[0], belief=Belief("lek", -0.3, 3))
NAMED = replace(UNSOLVED.nodes[5], content="Prices there are in the lek.", belief=Belief("lek", -30.0, 3))
KEPT = replace(UNSOLVED, nodes=(*UNSOLVED.nodes[:5], NAMED, *UNSOLVED.nodes[6:]))


@pytest.mark.parametrize(("tree", "sft", "nodes"), [
    (UNSOLVED, {}, []),
    (UNSOLVED, {"partial": "believed", "per_tree": 3}, [1, 2, 3, 4]),  # not on to where it believes already
    (SOLVED, {"partial": "believed", "per_tree": 1}, [1, 2, 9]),  # right episodes come first
    (SOLVED, {"partial": "believed", "per_tree": 2}, [1, 2, 3, 4, 9]),
    (unsolved(OLDER), {"partial": "believed"}, []),  # the answer can be guessed
    (replace(UNSOLVED, nodes=(SURE, *UNSOLVED.nodes[1:])), {"partial": "believed"}, []),  # it was believed before
    (KEPT, {"partial": "kept"}, [1, 2, 3, 5]),
    (UNSOLVED, {"partial": "kept"}, []),
    (replace(KEPT, question=OLDER), {"partial": "kept"}, []),
])  # fmt: skip
def test_the_way_to_a_state_that_believes_or_keeps_the_answer_is_learnt_where_no_answer_is_right(
    tree: Tree, sft: dict[str, Any], nodes: list[int]
) -> None:
    assert learnt(tree, **sft) == nodes


def test_a_way_to_belief_is_worth_what_is_believed() -> None:
    facts = facts_about(unsolved(), TRANSCRIPT)
    rows = build_trajectories(facts, "h", [None] * 9, [None] * 9, SftConfig(partial="believed"))
    assert [row.outcome for row in rows] == [pytest.approx(math.exp(-0.5))] * 4
