"""Rewards, pairs and trajectories of finished trees."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from apps.commands import main as steprag
from data_generation.config import GenerateConfig
from preference.answer_searches import AnswerSearches
from preference.build import main, one_prompt
from preference.chained import chain
from preference.config import LABELS as NAMES
from preference.config import LabelConfig, PairsConfig, SftConfig
from preference.labels.estimates import outcomes
from preference.pairs import build_pairs
from preference.pairs_folder import SPLITS
from preference.rewards import LABELS, Estimate, Rewards, rewards
from preference.rule_counts import RuleCounts
from preference.supervised import build_labels, build_rankings, build_trajectories
from preference.view_rewards import fates, view_rewards
from steprag.agent.facts import facts_about
from steprag.agent.grammar import START, Grammar
from steprag.agent.grammars import STACK, TRANSCRIPT
from steprag.agent.profiles import grammar_of
from steprag.agent.stack import Action
from steprag.config.load import load_config
from steprag.errors import ConfigError
from steprag.records.jsonl import dump_line, from_dict, read_records, to_dict, write_records
from steprag.records.training_rows import Pair, Trajectory
from steprag.runs.run import read_manifest
from steprag.tree import Node, Tree
from steprag.types import Found, Message, Passage, Question
from tests.fakes import BY_ROLLOUTS, DictRetriever, rooted
from tests.indexing import words_index

PROMPT = (Message(role="system", content="s"), Message(role="user", content="u"))
HERE = Path(__file__).parent
PLAIN = (*BY_ROLLOUTS, "--filters.duplicates", "false", "--card.plots", "false")
"""The same tree under many ids is meant here, labelled by rollouts, and nobody looks at plots."""


def node(identity: int, parent: int | None, action: str | None, f1: float | None = None, **more: object) -> Node:
    texts = {"text": f"text {identity}", "content": f"c {identity}"}
    values = {"prediction_f1": f1, "terminal": f1 is not None, "visits": 1}
    return Node(id=identity, parent=parent, depth=0, action=action, **{**texts, **values, **more})


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
    return rooted(Question("q", "?", ("a",)), *nodes)


def changed(grown: Tree, changes: dict[int, dict[str, Any]]) -> Tree:
    """The tree with other values in some nodes, by their ids."""
    return replace(grown, nodes=tuple(replace(one, **changes.get(one.id, {})) for one in grown.nodes))


def labelled(grown: Tree, label: LabelConfig, grammar: Grammar = TRANSCRIPT) -> Rewards:
    return rewards(facts_about(grown, grammar), label)


def spre(grown: Tree, alpha: float) -> Rewards:
    return labelled(grown, LabelConfig(name="spre", alpha=alpha))


def values(found: Rewards) -> list[float | None]:
    return [None if estimate is None else estimate.value for estimate in found]


def given(*numbers: float | None) -> Rewards:
    """Rewards that are exact."""
    return [None if number is None else Estimate(number, 0.0, "given") for number in numbers]


def steps_of(grown: Tree, config: SftConfig) -> list[Trajectory]:
    worth = outcomes(grown, LabelConfig())
    return build_trajectories(facts_about(grown, TRANSCRIPT), "h", worth, spre(grown, 0.9), config)


def deep(grown: Tree, grammar: Any) -> Rewards:
    """A label of one's own."""
    return given(*(float(one.depth) for one in grown.nodes))


def wordy(grown: Tree, grammar: Any) -> Rewards:
    """Another one."""
    return given(*(float(one.id) for one in grown.nodes))


def quick(played: Any) -> float:
    """A reward of an episode, which GRPO takes."""
    return 1.0


def test_rewards_and_functions_of_ones_own_are_mixed() -> None:
    mix = {"spre": 1.0, f"{__name__}:deep": 0.5, f"{__name__}:wordy": 0.5}
    config = LabelConfig(name="mixed", mix=mix, alpha=1)
    assert config.own == (f"{__name__}:deep", f"{__name__}:wordy")
    assert values(labelled(tree(), config))[4] == pytest.approx((1 + 0.5 * 2 + 0.5 * 4) / 2)
    with pytest.raises(ValidationError, match="unknown label 'spree'; did you mean 'spre'"):
        LabelConfig(mix={"spree": 1})
    with pytest.raises(ConfigError, match=f"{__name__}:quick does not take a tree and its grammar; give a function of"):
        labelled(tree(), LabelConfig(name=f"{__name__}:quick"))
    assert LABELS.keys() == {*NAMES}, "what may be named is there"


def test_a_step_that_its_own_episode_took_back_is_not_imitated_and_the_step_back_is() -> None:
    actions = ("search", "backtrack", "search", "summary", "answer")
    nodes = [node(0, None, None)]
    for place, action in enumerate(actions, 1):
        f1 = 1.0 if action == "answer" else None
        nodes.append(node(place, place - 1, action, f1, text=f"<{action}> x </{action}>", content="x"))
    grown = rooted(Question("q", "?", ("x",)), *nodes)
    estimates = labelled(grown, LabelConfig(name="spre"), STACK)
    worth = outcomes(grown, LabelConfig())
    rows = build_trajectories(facts_about(grown, STACK), "h", worth, estimates, SftConfig())
    assert [row.node for row in rows] == [2, 3, 4, 5], "what a summary stands for is learnt, what was popped is not"


def test_spre_is_the_mean_over_the_answers_below_by_visits() -> None:
    assert values(spre(tree(), 0.9)) == pytest.approx([0.405, 0.405, 0.405, None, 0.81, 0.0, 0.405], nan_ok=True)
    assert values(spre(tree(), 1.0))[:3] == pytest.approx([0.5, 0.5, 0.5])
    assert values(spre(changed(tree(), {4: {"visits": 3}}), 1.0))[:2] == pytest.approx([3.5 / 5, 0.75])


def test_standard_errors_shrink_with_rollouts_and_are_none_where_nothing_varies_yet() -> None:
    found = spre(tree(), 1.0)
    variance = ((1.0 - 0.5) ** 2 + 0.5**2 + 0.0) / 2  # unbiased, of the tree's answers 1, 0 and 0.5
    assert found[4] == Estimate(1.0, 0.0, "spre")
    assert found[2] is not None
    assert found[1] is not None
    assert found[2].error == pytest.approx(variance**0.5)  # one rollout: as uncertain as the tree varies
    assert found[1].error == pytest.approx(((0.5 + variance) / 2 / 2) ** 0.5)  # two, pooled with one of the tree's
    alone = replace(tree(), nodes=(*tree().nodes[:2], replace(tree().nodes[4], id=2, parent=1)))
    assert [estimate and estimate.error for estimate in spre(alone, 1.0)] == [None, None, 0.0]


def test_other_rewards_by_name() -> None:
    scored = ((1, 0.9), (4, 0.2), (6, None))
    grown = changed(tree(), {place: {"judge": {"score": score, "text": ""}} for place, score in scored})
    scores = values(labelled(grown, LabelConfig(name="judge")))
    assert scores == [pytest.approx((2 * 0.9 + 0.2) / 3), 0.9, None, None, 0.2, None, None]
    mixed = labelled(grown, LabelConfig(name="mixed", mix={"spre": 3, "judge": 1}, alpha=1.0))
    assert values(mixed)[1] == pytest.approx((3 * 0.5 + 0.9) / 4)
    assert values(mixed)[2] == pytest.approx(0.5)  # not judged: of the other part alone
    assert [estimate and estimate.basis for estimate in mixed][1:3] == ["judge+spre", "spre"]
    assert build_pairs(grown, "h", mixed, PairsConfig(errors=0, margin=0.01))[:1] == [], "of different parts"


def test_credit_from_whole_episodes() -> None:
    """A right answer found later below the same step does not count: the first episode through it was wrong."""
    grown = changed(tree(), {4: {"prediction_f1": 0.0}, 5: {"prediction_f1": 1.0}})
    first = values(labelled(grown, LabelConfig(name="first_answer", alpha=1)))
    assert first == pytest.approx([0.0, 0.0, 0.5, None, 0.0, 1.0, 0.5], nan_ok=True)


def test_metrics_are_chosen_without_touching_the_tree() -> None:
    grown = changed(tree(), {4: {"content": "the b", "prediction_f1": 0.4}})
    grown = replace(grown, question=Question("q", "?", ("a b c",)))
    assert outcomes(grown, LabelConfig(alpha=1))[4] == 0.4  # as the search saw it
    assert outcomes(grown, LabelConfig(alpha=1, metric="em"))[4] == 0.0
    assert outcomes(grown, LabelConfig(alpha=1, metric="f1_with_articles"))[4] == pytest.approx(2 / 5)
    assert outcomes(grown, LabelConfig(alpha=1, metric="em"))[:4] == [None] * 4


OTHER_NAMES = Grammar(
    "other-names",
    (Action("search", "", effect="call"), Action("note", ""), Action("reply", "", effect="end")),
    {START: ("search", "reply"), "search": ("note",), "note": ("search", "reply")},
)


def _renamed(grown: Tree) -> Tree:
    names = {"query": "search", "evidence": "note", "answer": "reply"}
    return replace(grown, nodes=tuple(replace(n, action=names.get(n.action or "")) for n in grown.nodes))


@pytest.mark.parametrize(("metadata", "recall"), [
    ({"supporting_titles": ["Tirana", "Lek (coin)"]}, [None, 0.5, 1.0, 0.5]),
    ({"supporting_ids": ["0", "9"]}, [None, 0.5, 1.0, 0.5]),
    ({"paragraphs": [{"title": "Tirana", "is_supporting": True}, {"title": "Lek", "is_supporting": False}]},
     [None, 1.0, 1.0, 1.0]),  # MuSiQue
    ({"supporting_facts": {"title": ["Tirana", "Tirana"], "sent_id": [0, 1]}}, [None, 1.0, 1.0, 1.0]),
    ({"supporting_ids": ["0", "9"], "gold_rule": "any"}, [None, 1.0, 1.0, 1.0]),
    ({"type": "bridge"}, [None] * 4),
])  # fmt: skip
def test_gold_recall_follows_the_episode(metadata: dict[str, object], recall: list[float | None]) -> None:
    """query finds Tirana → query finds Lek as well → evidence that mentions Tirana alone."""
    nodes = (
        node(0, None, None),
        node(1, 0, "query", passages=(Found("0", "Tirana"), Found("5", "Lima"))),
        node(2, 1, "query", passages=(Found("9", "Lek (coin)"),)),
        node(3, 2, "evidence", content="Tirana is a capital."),
    )
    grown = rooted(Question("q", "?", ("a",), metadata), *nodes)
    assert values(labelled(grown, LabelConfig(name="gold"))) == recall
    assert values(labelled(_renamed(grown), LabelConfig(name="gold"), OTHER_NAMES)) == recall


def shown(text: str) -> tuple[Message, ...]:
    return (*PROMPT[:1], Message(role="user", content=text))


def covered(question: str, *golden: str) -> Tree:
    """query 1 finds the lek and names nothing, query 2 names the lek and finds Lima, query 3 was not gone on from.

    Below query 1: evidence 4 without the lek, evidence 5 with it, and below that a query, an answer and a refused step.
    """
    names, lima = "is it the lek", "Passages: Lima lies in Peru."
    nodes = (
        node(0, None, None, messages=shown(question)),
        node(1, 0, "query", text="look", messages=shown(f"{question} look Passages: Prices are in the lek.")),
        node(2, 0, "query", text=names, messages=shown(f"{question} {names} {lima}")),
        node(3, 0, "query"),
        node(4, 1, "evidence", content="Prices."),
        node(5, 1, "evidence", content="Prices are in the Lek!", messages=shown("…")),
        node(6, 5, "query", messages=shown("…")),
        node(7, 5, "answer", 0.0, content="Lima"),
        node(8, 5, None, failure="no_action", terminal=True),
    )
    return rooted(Question("q", question, golden), *nodes)


def test_cover_says_where_the_golden_answer_was_met() -> None:
    grown = covered("Which currency?", "Albanian lek", "lek")
    cover = LabelConfig(name="cover", alpha=1.0)
    assert values(labelled(grown, cover)) == [None, 1.0, 0.0, None, 0.0, 1.0, 1.0, 0.0, None]
    assert values(labelled(_renamed(grown), cover, OTHER_NAMES)) == values(labelled(grown, cover))
    pairs = build_pairs(grown, "h", labelled(grown, cover), PairsConfig(cross_action=True))
    assert [(p.chosen_node, p.rejected_node) for p in pairs] == [(1, 2), (5, 4), (6, 7)]
    assert (pairs[2].action, pairs[2].rejected_action) == ("query", "answer")
    assert values(labelled(grown, cover.model_copy(update={"alpha": 0.5})))[4:7] == [0.0, 0.25, 0.125]


@pytest.mark.parametrize(("question", "golden"), [("Is it the sol or the lek?", "lek"), ("Is it in Peru?", "no")])
def test_cover_is_silent_where_the_answer_can_be_guessed(question: str, golden: str) -> None:
    found = labelled(covered(question, golden), LabelConfig(name="cover"))
    assert found == [None] * 9


COUNTIES = "How many counties has the state that made Sacramento its capital?"
SACRAMENTO = Passage("1", "Sacramento, California", "Sacramento is the capital of California.")
HOLDER = Passage("2", "Cities and counties of California", "California is divided into 58 counties.")
OTHER_CITIES = Passage("3", "Cities of Nevada", "There are some cities in Nevada, by the county.")


def stepwise(question: str, golden: str, *found: Passage, **more: Any) -> Tree:
    """Query 1 finds Sacramento, query 2 `found`, query 3 nothing, query 4 as 2, but nothing was asked below it.

    Below query 1: evidence 5 names California, 6 does not, 7 holds 58. Below 5: a wrong answer and a right one.
    """

    def query(identity: int, *passages: Passage, shown: bool = True) -> Node:
        text = "\n".join(["Passages:", *(f"{p.title}: {p.text}" for p in passages), "Read the passages."])
        prompt = (*PROMPT[:1], Message(role="user", content=f"Question: {question}\n{text}"))
        titles = tuple(Found(p.id, p.title) for p in passages)
        return node(identity, 0, "query", content=f"{identity}", passages=titles, messages=prompt if shown else None)

    nodes = (
        node(0, None, None, messages=PROMPT),
        *(query(1, SACRAMENTO), query(2, *found), query(3), query(4, *found, shown=False)),
        node(5, 1, "evidence", content="It is in California.", messages=PROMPT),
        *(node(6, 1, "evidence", content="It is a city."), node(7, 1, "evidence", content="There are 58.")),
        *(node(8, 5, "answer", 0.0, content="12"), node(9, 5, "answer", 1.0, content="58")),
    )
    return rooted(Question("q", question, (golden,), more), *nodes)


MET, NAMED, UNMET = [0.5, 1.0, 0.0, 1.0, 0.5, 0.0, 1.0], [0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 1.0], [0.0] * 6 + [1.0]


@pytest.mark.parametrize(("grown", "searched", "worth"), [
    (stepwise(COUNTIES, "58", HOLDER), (), MET),
    (stepwise(COUNTIES, "58", OTHER_CITIES, HOLDER), (), MET),  # "cities" is a common word, and leads nowhere
    (stepwise(COUNTIES, "58", OTHER_CITIES), (), UNMET),  # no passage of the tree holds the answer
    (stepwise(COUNTIES, "58", OTHER_CITIES), (HOLDER,), NAMED),  # one of the answer search does
    (stepwise("How many counties has California?", "58", OTHER_CITIES), (HOLDER,), UNMET),  # a name of the question
    (stepwise(COUNTIES, "58", OTHER_CITIES), (replace(HOLDER, title="Counties of Ohio"),), UNMET),  # nobody names Ohio
    (stepwise(COUNTIES, "58", OTHER_CITIES), (replace(HOLDER, title="California (state)"),), NAMED),
    (stepwise(COUNTIES, "58", OTHER_CITIES), (replace(HOLDER, title="city"),), UNMET),  # a common word
    (stepwise("When?", "58", replace(OTHER_CITIES, text="Of 12.")), (replace(HOLDER, title="12"),), UNMET),  # a number
    (stepwise("Is it 58 or 12?", "58", HOLDER), (), [None] * 7),  # can be guessed
])  # fmt: skip
def test_chained_match_follows_names_to_the_golden_answer(
    grown: Tree, searched: tuple[Passage, ...], worth: list[float | None]
) -> None:
    chained = LabelConfig(name="cover", chained=True, alpha=1.0)
    found = values(rewards(chain(facts_about(grown, TRANSCRIPT), chained, searched), chained))
    assert found[1:8] == worth
    assert found[8:] == ([None, None] if worth[0] is None else [0.0, 1.0])
    renamed = facts_about(_renamed(grown), OTHER_NAMES)
    assert values(rewards(chain(renamed, chained, searched), chained)) == found


@pytest.mark.parametrize(("grown", "label", "worth", "told"), [
    (stepwise(COUNTIES, "58", HOLDER, supporting_titles=[SACRAMENTO.title, HOLDER.title]), "evidence",
     [0.5, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, None], "marked passages (gold) in 1 of 1 tree"),  # 9 is luck
    (stepwise(COUNTIES, "58", HOLDER), "evidence",
     [0.45, 0.9, 0.0, 0.9, 0.405, 0.0, 0.81, 0.0, None], "chained match (cover), since no passage is marked, in 1"),
    (stepwise("Is it 58 or 12?", "58", HOLDER), "evidence",
     [None] * 7 + [0.0, 0.9**3], "right and wrong answers, since no passage is marked and the answer can be g"),
    (stepwise(COUNTIES, "58", HOLDER), "cover",
     [0.0, 0.9, 0.0, None, 0.0, 0.0, 0.81, 0.0, 0.9**3], "cover, as label.name says"),
])  # fmt: skip
def test_labels_follow_the_evidence_that_a_question_has(
    grown: Tree, label: Any, worth: list[float | None], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert values(labelled(grown, LabelConfig(name=label)))[1:] == pytest.approx(worth, nan_ok=True)
    write_records(tmp_path / "trees.jsonl", [grown])
    options = ["--label.name", label, "--card.plots", "false", "--filters.malformed", "false"]
    assert main(["--trees", str(tmp_path / "trees.jsonl"), "--out", str(tmp_path / "out"), *options]) == 0
    assert f"pairs: steps are labelled by {told}" in capsys.readouterr().err


def test_pairs_stand_in_the_order_of_the_trees_and_those_of_unsolved_trees_are_the_last_that_a_cap_drops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solved = stepwise(COUNTIES, "58", HOLDER)
    unsolved = changed(solved, {9: {"prediction_f1": 0.0}})
    unsolved = replace(unsolved, question=replace(solved.question, id="unsolved"))
    write_records(tmp_path / "trees.jsonl", [solved, unsolved])

    def paired(name: str, *more: str) -> list[str]:
        options = ["--filters.malformed", "false", "--filters.duplicates", "false", "--card.plots", "false"]
        given = ["--trees", str(tmp_path / "trees.jsonl"), "--out", str(tmp_path / name), "--validation", "0"]
        assert main([*given, *options, *more]) == 0
        return [pair.question_id for pair in read_records(tmp_path / name / "pairs.train.jsonl", Pair)]

    assert paired("plain") == ["q"] * 7 + ["unsolved"] * 7, "the first rows of a file are no harder than the others"
    assert "pairs: 7 pairs come from trees that no answer solved (1 of 1)" in capsys.readouterr().err
    assert paired("capped", "--balance.most", "5") == ["unsolved"] * 5
    assert "q" in paired("drawn", "--balance.most", "5", "--balance.unsolved_first", "false")


def test_an_index_shows_chained_match_passages_that_the_search_did_not_find(tmp_path: Path) -> None:
    """A tree without a passage that holds the golden answer; one whose answer can be guessed asks nothing."""
    lost, closed = stepwise(COUNTIES, "58", OTHER_CITIES), stepwise("Is it 58 or 12?", "58", OTHER_CITIES)
    write_records(tmp_path / "trees.jsonl", [lost, replace(closed, question=replace(closed.question, id="closed"))])
    index = words_index(tmp_path, (SACRAMENTO, HOLDER, OTHER_CITIES))
    counts = {}
    for name, more in (("without", []), ("with", ["--index", str(index)])):
        given = ["--trees", str(tmp_path / "trees.jsonl"), "--out", str(tmp_path / name), "--card.plots", "false"]
        assert main([*given, *more]) == 0
        counts[name] = json.loads((tmp_path / name / "report.json").read_text())["label"]["levels"]
        assert ("index" in read_manifest(tmp_path / name)["identity"]) == (name == "with")
    assert counts == {"without": {"answer": 1, "neither": 6}, "with": {"answer": 1, "name": 2, "neither": 4}}
    assert "answer 1, name 2, neither 4" in (tmp_path / "with" / "README.md").read_text()


def test_an_answer_search_that_fails_is_counted_and_finds_nothing() -> None:
    """None is made for a tree with marked passages, whose label they are, chained or not."""
    marked = stepwise(COUNTIES, "58", HOLDER, supporting_titles=[SACRAMENTO.title])
    asked = [stepwise(COUNTIES, "58", HOLDER), stepwise("Is it 58 or 12?", "58", HOLDER), marked]
    searches = AnswerSearches(LabelConfig(chained=True), DictRetriever(lasts=0), asyncio.run)
    told = [*searches.chain_all((facts_about(grown, TRANSCRIPT), str(at)) for at, grown in enumerate(asked))]
    assert [key for _, key in told] == ["0", "1", "2"]
    assert [facts.met and [*facts.met][1:8] for facts, _ in told] == [MET, [None] * 7, None]
    assert searches.failed == 1


def test_pairs_are_siblings_with_a_margin() -> None:
    pairs = build_pairs(tree(), "h", spre(tree(), 0.9), PairsConfig())
    assert [(pair.chosen_node, pair.rejected_node) for pair in pairs] == [(4, 5)]
    pair = pairs[0]
    assert pair.prompt == PROMPT
    assert (pair.chosen[0]["content"], pair.rejected[0]["content"]) == ("text 4", "text 5")
    assert (pair.margin, pair.action, pair.depth) == (pytest.approx(0.81), "answer", 2)
    assert (pair.golden_answers, pair.margin_error, pair.label_smoothing) == (("a",), 0.0, None)


def test_a_margin_must_be_wide_and_exceed_its_own_standard_error() -> None:
    found = given(0.5, 0.52, 0.5, None, 0.5, 0.5, 0.5)
    assert build_pairs(tree(), "h", found, PairsConfig(margin=0.05)) == []
    assert len(build_pairs(tree(), "h", found, PairsConfig(margin=0.01))) == 1
    found[1], found[2] = Estimate(0.9, 0.3, "given"), Estimate(0.5, 0.4, "given")  # a gap of 0.4, known to 0.5
    funnel = RuleCounts()
    assert build_pairs(tree(), "h", found, PairsConfig(), funnel) == []
    assert funnel.stages["margin"] == [2, 1]  # the two queries, and two answers that are level
    assert funnel.stages["standard error"] == [1, 0]
    pairs = build_pairs(tree(), "h", found, PairsConfig(errors=0.7))
    assert [pair.margin_error for pair in pairs] == [pytest.approx(0.5)]


def fan(*scores: float) -> Tree:
    """A root with one answer a score."""
    answers = tuple(node(i, 0, "answer", f1, visits=i) for i, f1 in enumerate(scores, 1))
    return rooted(tree().question, node(0, None, None, messages=PROMPT), *answers)


THREE, WRONG = fan(1.0, 0.4, 0.0), fan(1.0, 0.0, 0.0)
SAME, CROSS = changed(tree(), {5: {"content": "The C 4."}}), changed(tree(), {5: {"action": "query"}})
AGAIN = replace(THREE, known=(1, 3))


@pytest.mark.parametrize(("grown", "rules", "pairs"), [
    (SAME, {}, []),  # normalised, they say one thing
    (SAME, {"different": "exact"}, [(4, 5)]),
    (CROSS, {}, []),
    (CROSS, {"cross_action": True}, [(4, 5)]),
    (THREE, {"per_node": 2}, [(1, 3), (1, 2)]),  # the widest first
    (fan(0.9, 0.6, 0.3, 0.0), {"per_node": None}, [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]),
    (AGAIN, {}, [(1, 2), (2, 3)]),  # an earlier round had the two others
    (AGAIN, {"new": False}, [(1, 3), (1, 2), (2, 3)]),
])  # fmt: skip
def test_each_rule_says_which_siblings_make_a_pair(
    grown: Tree, rules: dict[str, Any], pairs: list[tuple[int, int]]
) -> None:
    found = build_pairs(grown, "h", spre(grown, 1.0), PairsConfig.model_validate(rules))
    assert [(pair.chosen_node, pair.rejected_node) for pair in found] == pairs


@pytest.mark.parametrize(("visits", "smoothing"), [
    ((3, 1), 1 / 4), ((5, 4), 4 / 9), ((2, 2), None), ((1, 3), None), ((0, 1), None), ((0, 0), math.nan),
])  # fmt: skip
def test_visits_smooth_labels_and_a_step_that_the_search_took_no_less_often_is_not_rejected(
    visits: tuple[int, int], smoothing: float | None
) -> None:
    """From a smoothing of one half on, DPO would prefer the rejected step. Without visits nobody knows."""
    grown = changed(fan(1.0, 0.0), {1: {"visits": visits[0]}, 2: {"visits": visits[1]}})
    config, rules, made = PairsConfig(smoothing=True), RuleCounts(), given(None, 1.0, 0.0)
    pairs = build_pairs(grown, "h", made, config, rules)
    assert [pair.label_smoothing for pair in pairs] == (
        [] if smoothing is None else [None if math.isnan(smoothing) else pytest.approx(smoothing)]
    )
    assert rules.stages["visited more often"] == [1, len(pairs)]
    assert [rule for _, rule in fates(grown, "h", made, config)] == [None if pairs else "visited more often"]
    assert len(build_pairs(grown, "h", made, PairsConfig())) == 1, (
        "where nobody asks for smoothing, visits do not count"
    )


def test_the_shortest_right_episode_is_the_trajectory() -> None:
    steps = steps_of(tree(), SftConfig())
    assert [(row.action, row.completion[0]["content"]) for row in steps] == [("query", "text 1"), ("answer", "text 4")]
    first = steps[0]
    assert (first.prompt, first.node, first.tree, first.outcome) == (PROMPT, 1, "h", pytest.approx(0.81))


def two_right() -> Tree:
    """Two right episodes: of three steps with F1 1, and of one step with F1 0.5, which SPRE still finds worse."""
    nodes = (*tree().nodes, node(7, 0, "answer", 0.5), node(8, 4, "answer", 1.0))
    return rooted(tree().question, *nodes[:4], replace(nodes[4], action="query", prediction_f1=None), *nodes[5:])


def lucky() -> Tree:
    """Query 1 leads to two wrong answers and a right one, query 2 to two right ones, found later."""
    nodes = (*tree().nodes[:6], node(6, 1, "answer", 0.0), node(7, 2, "answer", 1.0), node(8, 2, "answer", 1.0))
    return rooted(tree().question, *nodes)


@pytest.mark.parametrize(("grown", "config", "nodes"), [
    (tree(), {"paths": "all", "min_f1": 0.5}, [1, 2, 4, 6]),
    (two_right(), {"paths": "shortest", "min_f1": 0.5}, [7]),
    (two_right(), {"paths": "longest", "min_f1": 0.5}, [1, 4, 8]),
    (two_right(), {"paths": "best", "min_f1": 0.5}, [1, 4, 8]),
    (lucky(), {}, [1, 4]),
    (lucky(), {"paths": "surest"}, [2, 7]),
    (lucky(), {"paths": "surest", "per_tree": 2}, [2, 7, 8]),
    (lucky(), {"per_tree": 9}, [1, 2, 4, 7, 8]),
    (lucky(), {"paths": "all"}, [1, 2, 4, 7, 8]),
])  # fmt: skip
def test_the_episodes_that_are_learnt(grown: Tree, config: dict[str, Any], nodes: list[int]) -> None:
    assert [row.node for row in steps_of(grown, SftConfig.model_validate(config))] == nodes


def test_the_root_does_not_make_an_episode_surer() -> None:
    """One step worth 0.5 beats three of 0.4 each, whatever the whole tree is worth."""
    nodes = [node(0, None, None, messages=PROMPT), node(1, 0, "query"), node(2, 1, "answer", 1.0)]
    longer = (("query", None), ("evidence", None), ("query", None), ("answer", 1.0))
    for depth, (action, f1) in enumerate(longer, 1):
        nodes.append(node(2 + depth, 0 if depth == 1 else 1 + depth, action, f1))
    grown = rooted(Question("q", "?", ("a",)), *nodes)
    worth = given(0.1, 0.5, 1.0, 0.4, 0.4, 0.4, 1.0)
    right, config = outcomes(grown, LabelConfig()), SftConfig(paths="surest")
    found = build_trajectories(facts_about(grown, TRANSCRIPT), "h", right, worth, config)
    assert [row.node for row in found] == [1, 2]


def test_labels_and_rankings_carry_values_and_provenance() -> None:
    found = spre(tree(), 1.0)
    labels = build_labels(tree(), "h", found)
    assert [(row.node, row.value) for row in labels] == [(1, 0.5), (2, 0.5), (4, 1.0), (5, 0.0), (6, 0.5)]
    rankings = build_rankings(tree(), "h", found)
    assert [(row.nodes, row.rewards) for row in rankings] == [((1, 2), (0.5, 0.5)), ((4, 5), (1.0, 0.0))]
    assert rankings[1].completions[0][0]["content"] == "text 4"


def run_folder(folder: Path, count: int = 40) -> Path:
    golden = from_dict(Tree, json.loads((HERE / "golden_tree.json").read_text(encoding="utf-8")), HERE, 1)
    asked = (replace(golden.question, id=f"q{i}", question=f"{golden.question.question} {i}") for i in range(count))
    trees = (replace(golden, question=question) for question in asked)
    write_records(folder / "trees.jsonl", trees)
    return folder


def test_the_command_writes_pairs_split_by_question_that_name_their_line(tmp_path: Path) -> None:
    trees = run_folder(tmp_path)
    assert main(["--trees", str(trees), "--pairs.margin", "0.05", *PLAIN]) == 0
    for kind, record in (("pairs", Pair), ("sft", Trajectory)):
        train, held_out = (list(read_records(trees / f"pairs/{kind}.{split}.jsonl", record)) for split in SPLITS)
        assert train
        assert held_out
        assert not {row.question_id for row in train} & {row.question_id for row in held_out}
        counts = read_manifest(trees / "pairs")["counts"]
        assert (counts[f"{kind}.train"], counts["trees"]) == (len(train), 40)
        lines = (trees / "trees.jsonl").read_text(encoding="utf-8").splitlines()
        assert {row.tree for row in [*train, *held_out]} == {sha256(line.encode()).hexdigest()[:16] for line in lines}


def test_equal_questions_lie_on_one_side_whatever_their_ids(tmp_path: Path) -> None:
    """The split once went by the id: a question of two data sets was trained on and held out."""
    trees = list(read_records(run_folder(tmp_path) / "trees.jsonl", Tree))
    respelt = (
        replace(one, id=f"other/{one.id}", question=f"The {one.question.lower()}?")
        for one in (tree.question for tree in trees)
    )
    again = [replace(tree, question=question) for tree, question in zip(trees, respelt, strict=True)]
    write_records(tmp_path / "trees.jsonl", [*trees, *again])
    assert main(["--trees", str(tmp_path), "--validation", "0.5", *PLAIN]) == 0
    sides = [
        {pair.question_id for pair in read_records(tmp_path / f"pairs/pairs.{split}.jsonl", Pair)} for split in SPLITS
    ]
    assert all(len(side) > 20 for side in sides)
    assert all(f"other/{name}" in side for side in sides for name in side if not name.startswith("other/"))


def test_runs_together_are_one_data_set(tmp_path: Path) -> None:
    """Two rounds: the second's questions are others but for one, whose equal tree teaches nothing twice."""
    runs = [run_folder(tmp_path / "first", 3), run_folder(tmp_path / "second", 5)]
    for run, policy in zip(runs, ("round one", "round two"), strict=True):
        identity = {"prompt": {"profile": "transcript"}, "policy": {"model": policy}}
        (run / "manifest.json").write_text(json.dumps({"identity": identity}), encoding="utf-8")
    together = tmp_path / "together"
    assert main(["--trees", *map(str, runs), "--out", str(together), "--validation", "0", *PLAIN]) == 0
    assert main(["--trees", str(runs[1]), "--out", str(tmp_path / "alone"), "--validation", "0", *PLAIN]) == 0
    assert read_manifest(together)["counts"]["trees"] == 8
    named = {pair.question_id for pair in read_records(together / "pairs.train.jsonl", Pair)}
    assert named == {f"q{i}" for i in range(5)}
    card = (together / "README.md").read_text(encoding="utf-8")
    assert "Policy of run 1: model round one" in card
    assert "Policy of run 2: model round two" in card
    assert "- Policy: model round two" in (tmp_path / "alone" / "README.md").read_text(encoding="utf-8")


def test_trees_of_different_prompts_are_no_data_set(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / name, 1) for name in ("bare", "first", "second")]  # bare trees have no manifest
    files = [run / "trees.jsonl" for run in runs]
    named = files[0].read_text()
    for file in files:
        write_records(file, [replace(tree, grammar=None) for tree in list(read_records(file, Tree))])
    told = one_prompt(files, [{}, {"grammar": "stack"}, {"grammar": "stack"}])
    assert told == (None, STACK), "bare trees tell nothing"
    with pytest.raises(ConfigError, match="bare.* and .*second.* were made by different prompts"):
        one_prompt(files, [{"grammar": "transcript"}, {}, {"grammar": "stack"}])
    files[0].write_text(named)
    with pytest.raises(ConfigError, match="bare.* and .*first.* were made by different prompts"):
        one_prompt(files, [{"grammar": "stack"}, {"grammar": "stack"}, {}])
    for run in runs[1:]:
        (run / "manifest.json").write_text(json.dumps({"identity": {"prompt": {"hash": run.name}}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="first.*and .*second.*made by different prompts"):
        main(["--trees", *map(str, runs), "--out", str(tmp_path / "out")])
    assert main(["--trees", *map(str, runs[:2]), "--out", str(tmp_path / "out")]) == 0
    assert read_manifest(tmp_path / "out")["prompt"] == {"hash": "first"}


def stacked(**named: Any) -> Tree:
    """A tree of the stack agent: two searches, and below the first a step back and a right answer."""
    texts = {"search": "<search> a </search>", "backtrack": "<backtrack> no </backtrack>"}
    nodes = (
        node(0, None, None, messages=PROMPT),
        node(1, 0, "search", messages=PROMPT, text=texts["search"], content="a"),
        node(2, 0, "search", text="<search> b </search>", content="b"),
        node(3, 1, "backtrack", text=texts["backtrack"], content="no"),
        node(4, 1, "answer", 1.0, text="<answer> x </answer>", content="x"),
        node(5, 1, "answer", 0.0, text="<answer> y </answer>", content="y"),
    )
    return rooted(Question("q", "?", ("x",)), *nodes, **named)


@pytest.mark.parametrize("malformed", ["true", "false"])
def test_a_tree_names_its_grammar_and_one_without_it_is_refused_with_tree_action_and_remedy(
    malformed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trees of a stack agent without their manifest once made no pair, or a traceback."""
    keys = ("--validation", "0", "--filters.malformed", malformed, *PLAIN)
    other = replace(tree(), grammar="transcript", question=Question("r", "?", ("a",)))
    made = {"named": [stacked(grammar="stack")], "bare": [stacked()], "both": [stacked(grammar="stack"), other]}

    def paired(name: str) -> int:
        write_records(tmp_path / name / "trees.jsonl", made[name])
        return steprag(["pairs", "--trees", str(tmp_path / name), "--out", str(tmp_path / name / "out"), *keys])

    assert [paired(name) for name in made] == [0, 2, 2]
    assert [pair.action for pair in read_records(tmp_path / "named/out/pairs.train.jsonl", Pair)] == ["answer"]
    said = capsys.readouterr().err
    lacks = "has the action 'search', which grammar transcript lacks: give the whole run"
    assert f"the tree of question 'q' {lacks}" in said
    assert "the tree of question 'r' follows grammar 'transcript', not stack" in said
    (tmp_path / "bare/manifest.json").write_text(json.dumps({"grammar": "stack"}))
    assert paired("bare") == 0


@pytest.mark.parametrize(("options", "said"), [
    (["--reward.name", "cover"], "calls this section label (label.name"),
    (["--config", "recipe.yaml"], "calls this section label (label.name"),
    (["--leakage.against", "[none.jsonl]"], "evaluation file not found: none.jsonl"),
    (["--label.name", "spre", "--index", "here"], "--index is for chained match, and label.name is spre: give --label"),
    (["--label.name", "gold", "--label.chained", "true"], "label: chained is a key of cover, and name is gold; give"),
    (["--label.name", "spree"], "label.name: unknown label 'spree'; did you mean 'spre'?; yours is named module:func"),
    (["--label.name", "nowhere:f"], "label.name: nowhere:f cannot be imported: No module named 'nowhere'"),
    (["--label.name", "math:sqrt"], "label.name: math:sqrt has no Python source; name a function of a .py file"),
    (["--index", "nowhere"], "index folder not found: nowhere"),
    (["--trees", "empty.jsonl"], "empty.jsonl holds no trees"),
])  # fmt: skip
def test_what_makes_no_pairs_is_refused_before_anything_is_built(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_folder(tmp_path, 1))
    Path("recipe.yaml").write_text("reward: {name: cover}\n")
    Path("empty.jsonl").touch()
    assert steprag(["pairs", "--trees", "trees.jsonl", "--out", "out", *options]) == 2
    assert said in capsys.readouterr().err
    assert Path("out").exists() == ("--trees" in options), "trees are read once their folder is made"
    assert not list(Path().glob("out/*.train.jsonl"))


OWN = """
from steprag import Estimate
def longer(tree, grammar): return [Estimate(len(node.text) / 100, None, grammar.name) for node in tree.nodes]
def few(tree, grammar): return [None]
def nothing(tree, grammar): return None
def plain(tree, grammar): return [0.5] * len(tree.nodes)
def endless(tree, grammar): return [Estimate(float("inf"), None, "x")] * len(tree.nodes)
def slip(tree, grammar): return [Estimate(1 / node.depth, None, "x") for node in tree.nodes]
def silent(tree, grammar): return [None] * len(tree.nodes)
def one(tree, grammar): return [Estimate(1.0, None, "x") if node.id == 1 else None for node in tree.nodes]
def level(tree, grammar): return [Estimate(1 / (1 + node.depth), None, "x") for node in tree.nodes]
def quick(tree, grammar):
    # the best answer below each step, less a tenth for every step on the way to it
    best = [None] * len(tree.nodes)
    for node in reversed(tree.nodes):  # children stand behind their parents
        if node.prediction_f1 is not None:
            best[node.id] = node.prediction_f1 - node.depth / 10
        if best[node.id] is not None and node.parent is not None:
            best[node.parent] = max(best[node.id], best[node.parent] or 0)
    return [None if value is None else Estimate(value, 0.0, "quick") for value in best]
"""


def test_a_reward_of_ones_own_labels_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_folder(tmp_path, 1))
    Path("own_labels.py").write_text(OWN)

    def paired(function: str) -> int:
        return steprag(["pairs", "--trees", "trees.jsonl", "--out", function, "--label.name", f"own_labels:{function}",
                        "--pairs.cross_action", "true", "--validation", "0", "--card.plots", "false"])  # fmt: skip

    assert paired("longer") == 0
    pairs = [*read_records(Path("longer/pairs.train.jsonl"), Pair)]
    assert pairs
    assert all(len(pair.chosen[0]["content"]) > len(pair.rejected[0]["content"]) for pair in pairs)
    assert "steps are labelled by own_labels:longer, as label.name says" in capsys.readouterr().err
    assert len(read_manifest("longer")["identity"]["label"]["code"]) == 16
    grown = next(read_records(Path("trees.jsonl"), Tree))
    for function, told in {
        "few": f"returned 1 value for a tree of {len(grown.nodes)} nodes; return a list with a steprag.Estimate",
        "nothing": "own_labels:nothing returned a NoneType for a tree",
        "plain": "own_labels:plain says 0.5 of node 0; return a steprag.Estimate of a finite",
        "slip": "own_labels:slip failed: ZeroDivisionError: division by zero (",
        "endless": "says Estimate(value=inf, error=None, basis='x') of node 0",
    }.items():
        assert paired(function) == 2
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1
    made = {"silent": "gave only None in 1 of 1 tree", "level": "gave siblings equal worth in 1 of 1 tree",
            "one": "gave no two siblings a worth in 1 of 1 tree"}  # fmt: skip
    for function, told in {**made, "quick": "next: steprag train quick"}.items():
        assert paired(function) == 0
        assert told in capsys.readouterr().err
    with pytest.raises(ConfigError, match="'own_labels:longer' is somebody's code, which is not run to look at a tree"):
        view_rewards(grown, "", TRANSCRIPT, {"label": {"name": "own_labels:longer"}})


def test_a_variable_for_the_search_does_not_change_pairs_nor_one_for_pairs_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`STEPRAG_REWARD__NAME=cover`, meant for pairs, once made steprag generate fail."""
    monkeypatch.setenv("STEPRAG_REWARD__NAME", "judge")
    monkeypatch.setenv("STEPRAG_LABEL__NAME", "first_answer")
    trees = run_folder(tmp_path / "run", 1)
    assert steprag(["pairs", "--trees", str(trees), *PLAIN]) == 0
    assert "$STEPRAG_REWARD__NAME is not read: steprag pairs calls this section label" in capsys.readouterr().err
    assert read_manifest(trees / "pairs")["config"]["label"]["name"] == "first_answer"
    assert load_config(GenerateConfig).reward.name == "judge"


@pytest.mark.parametrize(("change", "message"), [
    (lambda row, nodes: nodes[2].update(parent=2), "nodes[2]: its parent is no node before it"),
    (lambda row, nodes: nodes[1].update(parent=4), "nodes[1]: its parent is no node before it"),
    (lambda row, nodes: nodes[2].update(parent=99), "nodes[2]: its parent is no node before it"),
    (lambda row, nodes: nodes[2].update(parent=-1), "nodes[2]: its parent is no node before it"),
    (lambda row, nodes: nodes[2].update(parent=None), "nodes[2]: its parent is no node before it"),
    (lambda row, nodes: nodes[0].update(parent=1), "nodes[0]: the root has a parent"),
    (lambda row, nodes: nodes[2].update(id=1), "nodes[2]: its id is not its place"),
    (lambda row, nodes: nodes.clear(), "a tree needs at least its root"),
    (lambda row, nodes: nodes[4].update(depth=-100_000), "nodes[4]: its depth is not one more than its parent's"),
    (lambda row, nodes: nodes[1].update(visits=10**400), "nodes[1]: visits is no count"),
    (lambda row, nodes: nodes[1].update(visits=-1), "nodes[1]: visits is no count"),
    (lambda row, nodes: nodes[1].update(judge={"score": "good"}), "nodes[1]: judge.score is not between 0 and 1"),
    (lambda row, nodes: nodes[1].update(judge={"score": math.nan}), "NaN is no number in JSON"),
    (lambda row, nodes: nodes[1].update(value=math.nan), "NaN is no number in JSON"),
    (lambda row, nodes: nodes[4].update(prediction_f1=5.0), "nodes[4]: prediction_f1 is not between 0 and 1"),
    (lambda row, nodes: nodes[0]["messages"][0].update(role="evil"), "nodes[0]: a message has the role 'evil'"),
    (lambda row, nodes: row.update(format=99), "format 99 is not known"),
    (lambda row, nodes: row.pop("question"), "Tree: question: field required"),
    (lambda row, nodes: row.update(known=[7]), "known names a node that the tree lacks"),
    (lambda row, nodes: nodes[4].update(text="\ud800"), "half a surrogate pair"),
])  # fmt: skip
def test_a_tree_that_makes_no_sense_is_refused_with_its_line(
    change: Callable[[Any, Any], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, row = tmp_path / "trees.jsonl", to_dict(tree())
    change(row, row["nodes"])
    file.write_text(f"{dump_line(tree())}\n{json.dumps(row)}\n")
    assert steprag(["pairs", "--trees", str(file), "--out", str(tmp_path / "out"), *PLAIN]) == 2
    said = capsys.readouterr().err
    assert f"{file}:2: " in said
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("out/*.train.jsonl"))


def test_unknown_fields_of_a_tree_are_kept() -> None:
    row = json.loads((HERE / "golden_tree.json").read_text(encoding="utf-8"))
    row["colour"] = {"of": "money"}
    assert to_dict(from_dict(Tree, row, HERE, 1))["colour"] == {"of": "money"}


def test_a_run_whose_prompt_profile_is_gone_is_refused_or_names_its_grammar(tmp_path: Path) -> None:
    """Pairs were once built with the base grammar where the profile's relative path was not found."""
    with pytest.raises(ConfigError, match="mine/proguide.yaml"):
        grammar_of({"config": {"prompt": {"profile": "mine/proguide.yaml"}}})
    assert grammar_of({"grammar": "proguide", "config": {"prompt": {"profile": "mine/proguide.yaml"}}}).lenient
    assert grammar_of({"config": {"prompt": {"profile": "search-r1"}}}).name == "search-r1"
    assert grammar_of({}).name == "transcript"
    with pytest.raises(ConfigError, match="grammar 'new'"):
        grammar_of({"grammar": "new"})
