"""What is dropped from pairs and why, the published rules, and what a build says of itself."""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from apps.commands import main as steprag
from preference.build import main
from preference.candidates import in_circles
from preference.config import FilterConfig, LabelConfig
from preference.filters import checks, content_reader
from preference.labels.estimates import outcomes
from preference.labels.spre import spre
from preference.pairs_folder import push
from preference.report.leakage import NAMED
from preference.report.reward_diagnostics import RewardDiagnostics, half_means
from steprag.agent.facts import facts_about
from steprag.agent.grammars import TRANSCRIPT
from steprag.errors import ConfigError
from steprag.records.jsonl import read_records, write_records
from steprag.records.training_rows import Pair, Ranking, StepLabel, Trajectory
from steprag.runs.run import read_manifest
from steprag.scores.stats import ClusteredShare, share_interval, wilson
from steprag.tree import Tree
from steprag.types import Message, Question
from tests.fakes import BY_ROLLOUTS, QUESTION, ScriptedPolicy, answer, by_turn, evidence, query
from tests.models import make_llama
from tests.test_search import search

PROMPT = (Message(role="system", content="s"), Message(role="user", content="Question: Whose is it?"))


def pair(chosen: str, rejected: str, action: str = "query", other: str = "query", **more: Any) -> Pair:
    """A pair of two completions, by default from one and the same prompt."""
    values: dict[str, Any] = {
        "prompt": PROMPT, "question_id": "q", "tree": "t", "chosen_node": 1, "rejected_node": 2, "depth": 1,
        "chosen_reward": 0.9, "rejected_reward": 0.1, "margin": 0.8, "chosen_visits": 1, "rejected_visits": 1,
        "source": "search", "golden_answers": ("Ada Lovelace",),
    }  # fmt: skip
    replies = {"chosen": (Message(role="assistant", content=chosen),),
               "rejected": (Message(role="assistant", content=rejected),)}  # fmt: skip
    return Pair(**{**values, **replies, "action": action, "rejected_action": other, **more})


def passed(candidate: Pair, **asked: object) -> bool:
    config = FilterConfig.model_validate({"malformed": False, "leaked": False, **asked})
    return all(check.passes(candidate) for check in checks(config, TRANSCRIPT, content_reader(TRANSCRIPT)))


def told(text: str) -> tuple[Message, ...]:
    """A prompt that shows this."""
    return (PROMPT[0], Message(role="user", content=text))


def answers(chosen: str, rejected: str = answer("sol"), prompt: tuple[Message, ...] = PROMPT) -> Pair:
    return pair(chosen, rejected, "answer", "answer", prompt=prompt)


def kept(chosen: str, rejected: str = "x") -> Pair:
    """Two steps that keep evidence, where passages of Albania were read."""
    shown = "Question: Which money?\n1. Albania: Albania is a country in Southern Europe. Tirana is its capital."
    return pair(evidence(chosen), evidence(rejected), "evidence", "evidence", prompt=told(shown))


CUT, RAMBLE = query("b").removesuffix("</query>"), "So the answer is so. So the answer is lek. So the answer is here."
KNOWS, ADA = query("When did Ada LOVELACE live?"), told(f"Question: Whose?\n{evidence('It was Ada Lovelace.')}")
MONEY, ASKED = query("money of Albania"), told("Question: money of Albania\nSearch or answer.")
SEARCHED = told(f"Question: money of Albania\n{MONEY}\n{evidence('None')}\nSearch or answer.")
EURO = told(f"Question: Lek or dinar?\n{evidence('It is the Euro.')}")


@pytest.mark.parametrize(("rule", "candidate", "stays"), [
    ("malformed", pair(query("a"), query("b")), True),
    ("malformed", pair(query("a"), CUT), False),
    ("malformed", pair(CUT, query("a")), False),
    ("leaked", pair(KNOWS, query("b")), False),
    ("leaked", pair(query("b"), KNOWS), True),  # a rejected one does no harm
    ("leaked", pair(query("Adam Lovelace"), query("b")), True),  # whole words only
    ("leaked", pair(KNOWS, query("b"), prompt=ADA), True),  # it was read before
    ("leaked", pair(answer("Ada Lovelace"), query("b"), action="answer"), True),
    ("repeating", answers(answer("lek", RAMBLE)), False),
    ("repeating", answers(answer("sol"), answer("lek", RAMBLE)), True),  # it may be rejected, not preferred
    ("repeating", answers(answer("lek", "So the answer is here.")), True),  # with the lead, two times
    ("again", pair(MONEY, query("b"), prompt=SEARCHED), False),
    ("again", pair(query("Money of ALBANIA?"), query("b"), prompt=SEARCHED), False),
    ("again", pair(query("b"), MONEY, prompt=SEARCHED), True),
    ("again", pair(MONEY, query("b"), prompt=ASKED), True),  # the question is no search
    ("unread", answers(answer("lek"), prompt=EURO), True),
    ("unread", answers(answer("the euro"), prompt=EURO), True),
    ("unread", answers(answer("EURO"), prompt=EURO), True),
    ("unread", answers(answer("Yes"), prompt=EURO), True),
    ("unread", answers(answer("le"), answer("lek"), EURO), False),  # whole words only
    ("unread", pair(query("sol"), query("b"), prompt=EURO), True),  # a query may ask for anything
    ("made_up", kept("Albania is a country in Southern Europe."), True),
    ("made_up", kept("albania is a COUNTRY in southern europe"), True),  # as normalised
    ("made_up", kept("Albania: Albania is a country in Southern Europe; prices there are in lek."), False),
    ("made_up", kept("Albania is a country in Southern Europe too"), True),  # a word may differ
    ("made_up", kept("Prices in Albania are quoted in the lek."), False),
    ("made_up", kept("Southern Europe"), True),
    ("made_up", kept("Northern Europe"), False),
    ("made_up", kept("None"), True),
    ("made_up", kept("capital Tirana"), False),  # each word stands there, the two together do not
    ("made_up", kept("x", "None"), False),
    ("made_up", pair(query("x"), query("b"), prompt=EURO), True),  # a query may ask for anything
])  # fmt: skip
def test_a_rule_drops_pairs_where_it_is_asked_for(rule: str, candidate: Pair, stays: bool) -> None:
    assert passed(candidate)
    assert passed(candidate, **{rule: True}) is stays


def test_a_right_episode_is_not_imitated_if_a_step_repeats_itself_or_the_answer_was_never_read(tmp_path: Path) -> None:
    def script(prompt: str, draw: int) -> str:
        if prompt.endswith("Read the passages."):
            return evidence("The lek is the money of Albania.")
        if "lek" in prompt:
            return answer("lek")
        return [query("money of Albania"), answer("lek", RAMBLE)][draw % 2]

    trees = trees_file(tmp_path / "run", [search(ScriptedPolicy(script), rollouts=4)])
    long, short = [("query", 1), ("evidence", 2), ("answer", 3)], ("answer", 1)
    assert sorted(imitated(trees, tmp_path / "all")[0]) == sorted([*long, short])
    for option in ("repeating", "unread"):
        steps, report = imitated(trees, tmp_path / option, f"--filters.{option}", "true")
        assert steps == long
        assert [counts for rule, counts in rules(report).items() if rule.startswith("episode: ")] == [(2, 1)]


def imitated(trees: Path, out: Path, *options: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Action and depth of every supervised step of all right episodes, and the report."""
    _, report = build(trees, out, "--sft.paths", "all", *options)
    return [(step.action, step.depth) for step in read_records(out / "sft.train.jsonl", Trajectory)], report


def test_circles_of_preferences_are_found_and_chains_are_not() -> None:
    chosen = np.array([1, 2, 1, 4, 5, 6, 8], dtype=np.uint64)
    rejected = np.array([2, 3, 3, 5, 6, 4, 8], dtype=np.uint64)
    assert in_circles(chosen, rejected).tolist() == [False, False, False, True, True, True, True]
    assert in_circles(chosen[:0], rejected[:0]).tolist() == []


def trees_file(folder: Path, trees: list[Tree]) -> Path:
    write_records(folder / "trees.jsonl", trees)
    return folder / "trees.jsonl"


def build(trees: Path, out: Path, *options: str) -> tuple[list[Pair], dict[str, Any]]:
    """The training pairs of a build and its report."""
    fixed = ("--validation", "0", "--card.plots", "false", *(() if "--preset" in options else BY_ROLLOUTS))
    assert main(["--trees", str(trees), "--out", str(out), *fixed, *options]) == 0
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    pairs = out / "pairs.train.jsonl"
    return list(read_records(pairs, Pair)) if pairs.exists() else [], report


def rules(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {row["rule"]: (row["before"], row["after"]) for row in report["rules"]}


def test_preferences_that_contradict_those_of_another_tree_are_dropped(tmp_path: Path) -> None:
    """The same question searched twice: one tree prefers the first answer, the other the second."""
    asked = search(ScriptedPolicy(lambda prompt, draw: answer(["lek", "sol"][draw % 2])), rollouts=2)
    sold = replace(asked, question=replace(asked.question, id="q2", golden_answers=("sol",)))
    turned = replace(sold, nodes=tuple(n if n.prediction_f1 is None else replace(n, prediction_f1=1 - n.prediction_f1)
                                       for n in sold.nodes))  # fmt: skip
    both = trees_file(tmp_path / "both", [asked, turned])
    pairs, report = build(both, tmp_path / "out")
    assert pairs == []
    assert rules(report)["no contradiction or circle"] == (2, 0)
    assert len(build(both, tmp_path / "kept", "--filters.contradictions", "false")[0]) == 2
    twice = trees_file(tmp_path / "twice", [asked, replace(asked, question=replace(asked.question, id="q2"))])
    assert rules(build(twice, tmp_path / "dup")[1])["no duplicate"] == (2, 1)


@pytest.fixture(scope="module")
def varied() -> list[Tree]:
    """60 trees of a policy that answers in many ways, grown in different manners, with visits of all kinds."""
    golden = ["lek", "the sol", "Albanian lek", "a lek", "no", "The Albanian lek of Albania", "yes the lek"]

    def said(prompt: str, draw: int) -> str:
        return answer(golden[draw % len(golden)])

    def tried(prompt: str, draw: int) -> str:
        options = [query("capital Tirana"), query("lek"), "no idea", query(f"x{draw % 5}")]
        return [*options, said(prompt, draw), said(prompt, draw // 8)][draw % 6]

    kept = ["Tirana is the capital", "lek", "None"]
    script = by_turn(tried, lambda prompt, draw: evidence(kept[draw % 3]), said)
    trees = []
    for seed in range(60):
        rng = random.Random(seed)
        keys = {"children": 1 + seed % 5, "wave": 1 + seed % 3, "play": seed % 4 != 3}
        grown = search(ScriptedPolicy(script), seed, rollouts=rng.randint(1, 25), **keys)
        nodes = tuple(replace(n, visits=n.visits if seed % 3 else rng.randint(0, 6)) for n in grown.nodes)
        trees.append(replace(grown, nodes=nodes, question=replace(grown.question, id=f"q{seed}")))
    return trees


def overlap(said: str, wanted: str) -> float:
    """The published F1: articles count as words."""
    marks = set(string.punctuation)
    mine, theirs = ("".join(c for c in text.lower() if c not in marks).split() for text in (said, wanted))
    closed = (["yes"], ["no"], ["noanswer"])
    common = sum((Counter(mine) & Counter(theirs)).values())
    if not common or (mine != theirs and (mine in closed or theirs in closed)):
        return 0.0
    precision, recall = common / len(mine), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def published_reward(tree: Tree, number: int) -> float | None:
    """F1 · 0.9^step at a leaf that no bound forced, elsewhere the visit-weighted mean of the rewarded children."""
    node, children = tree.nodes[number], [n for n in tree.nodes if n.parent == number]
    if not children:
        golden = tree.question.golden_answers
        scores = [overlap(node.content or "", one) for one in golden if node.action == "answer" and node.depth < 7]
        return max(scores) * 0.9**node.depth if scores else None
    rated = [(worth, child.visits) for child in children if (worth := published_reward(tree, child.id)) is not None]
    visits = sum(count for _, count in rated)
    return sum(worth * count for worth, count in rated) / visits if visits else None


def published_pairs(tree: Tree, number: int = 0) -> list[tuple[int, int]]:
    """The published pairs below a node, (chosen, rejected) in the published order, by recursion."""
    children = [n for n in tree.nodes if n.parent == number]
    if len(children) < 2 or published_reward(tree, number) is None:
        return []
    rated = [(child, worth) for child in children if (worth := published_reward(tree, child.id)) is not None]
    found = [
        (one.id, other.id) if worth > other_worth else (other.id, one.id)
        for (one, worth), (other, other_worth) in combinations(rated, 2)
        if abs(worth - other_worth) >= 0.01 and one.content != other.content
    ]
    return found + [pair for child, _ in rated for pair in published_pairs(tree, child.id)]


def test_the_preset_makes_exactly_the_published_pairs(tmp_path: Path, varied: list[Tree]) -> None:
    trees = trees_file(tmp_path / "run", varied)
    pairs, _ = build(trees, tmp_path / "out", "--preset", "reasonrag")
    expected = [(tree.question.id, *found) for tree in varied for found in published_pairs(tree)]
    assert len(expected) > 200
    paid, _ = build(trees, tmp_path / "paid", "--preset", "reasonrag", "--label.unpaid_from", "none")
    assert paid != pairs, "no tree has a forced answer"
    assert [(found.question_id, found.chosen_node, found.rejected_node) for found in pairs] == expected
    some, report = build(trees, tmp_path / "b", "--preset", "reasonrag", "--pairs.margin", "0.5")
    assert 0 < len(some) < len(pairs), "keys beside a preset win"
    assert report["config"]["pairs"]["unbroken"] is True


def test_a_cap_keeps_as_many_pairs_as_it_says(tmp_path: Path, varied: list[Tree]) -> None:
    trees = trees_file(tmp_path / "run", varied[:40])
    free, _ = build(trees, tmp_path / "free", "--pairs.per_node", "none")
    capped, report = build(trees, tmp_path / "capped", "--pairs.per_node", "none", "--balance.most", "5")
    assert len(capped) == 5 < len(free)
    assert rules(report)["cap"] == (len(free), 5)


def test_every_product_and_its_provenance(tmp_path: Path, varied: list[Tree]) -> None:
    trees = trees_file(tmp_path / "run", varied[:10])
    pairs, report = build(trees, tmp_path / "out", "--products", "[pairs,sft,steps,rankings]")
    labels = list(read_records(tmp_path / "out/steps.train.jsonl", StepLabel))
    rankings = list(read_records(tmp_path / "out/rankings.train.jsonl", Ranking))
    worth = {(row.question_id, row.node): row.value for row in labels}
    assert {(found.question_id, found.chosen_node) for found in pairs} <= worth.keys()
    assert all(list(row.rewards) == sorted(row.rewards, reverse=True) for row in rankings)
    assert all(row.rewards == tuple(worth[row.question_id, n] for n in row.nodes) for row in rankings)
    assert report["counts"]["steps.train"] == len(labels)
    listed = {question.id for question in read_records(tmp_path / "out/questions.jsonl", Question)}
    assert {row.question_id for row in labels} <= listed


def test_guessable_answers_are_left_out_on_demand(tmp_path: Path, varied: list[Tree]) -> None:
    trees = varied[1:6]  # the first has no siblings
    closed = [replace(tree, question=replace(tree.question, golden_answers=("yes",))) for tree in trees[:2]]
    file = trees_file(tmp_path / "run", [*closed, *trees[2:]])
    made: dict[str, list[Pair]] = {}
    for how in ("keep", "drop"):
        build(file, tmp_path / how, "--guessable", how)
        made[how] = list(read_records(tmp_path / how / "pairs.train.jsonl", Pair))
        assert read_manifest(tmp_path / how)["counts"]["guessable"] == 2
    names = {tree.question.id for tree in closed}
    assert any(pair.question_id in names for pair in made["keep"])
    assert made["drop"] == [p for p in made["keep"] if p.question_id not in names]


def test_report_card_and_plots_are_the_same_bytes_again(tmp_path: Path, varied: list[Tree]) -> None:
    trees = trees_file(tmp_path / "run", varied[:12])
    for name in ("one", "two"):
        build(trees, tmp_path / name, "--card.plots", "true")
    names = {path.name for path in (tmp_path / "one").iterdir()} - {"manifest.json", "metrics.jsonl", ".lock"}
    assert {"README.md", "report.json", "questions.jsonl", "plot_margins.png", "plot_lengths.png"} <= names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    card = (tmp_path / "one/README.md").read_text(encoding="utf-8")
    assert card.startswith("---\npretty_name: ")
    assert "| margin | " in card
    assert yaml.safe_load(card.split("---")[1])["license"] == "unknown"
    assert "- Licence of this data set: unknown\n" in card
    assert "no person judged it" in card.partition("## Limits")[2]
    assert read_manifest(tmp_path / "one")["counts"]["trees"] == 12


def test_an_interrupted_build_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, varied: list[Tree]
) -> None:
    trees = trees_file(tmp_path / "run", varied[:6])
    build(trees, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("preference.pairs_folder.report_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["--trees", str(trees), "--out", str(tmp_path / "out"), "--validation", "0", *BY_ROLLOUTS])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")} == before
    assert not list((tmp_path / "out").glob(".*partial"))
    assert read_manifest(tmp_path / "out")["status"] == "interrupted"


def test_credit_counts_agreement_and_contrast(varied: list[Tree]) -> None:
    """A judge who scores answers by their F1 agrees with the rollouts on every two answers."""

    def taken(grown: list[Tree]) -> dict[str, Any]:
        credit = RewardDiagnostics()
        for tree in grown:
            credit.add(facts_about(tree, TRANSCRIPT), outcomes(tree, LabelConfig()))
        return credit.report()

    wrong = search(ScriptedPolicy(lambda prompt, draw: answer("no")), rollouts=2)
    trees = [*map(judged_by_f1, varied[:12]), wrong]
    report = taken(trees)
    assert report["trees"]["without_contrast"]["count"] == 13
    assert report["trees"]["all wrong"] >= 1
    assert report["trees"]["mixed"] >= 1
    answers = [row for row in report["agreement"] if row["signals"] == "rollouts, judge" and row["action"] == "answer"]
    assert answers
    assert all(row["share"] == 1.0 for row in answers)
    rewarded = [e for tree in trees for e in spre(facts_about(tree, TRANSCRIPT), LabelConfig())[1:] if e is not None]
    assert sum(row["steps"] for row in report["steps"]) == len(rewarded)
    assert sum(map(sum, report["reward_against_judge"])) > 0
    rows = taken([max(trees, key=lambda tree: len(tree.nodes))])["agreement"]
    assert max(row["count"] for row in rows) > 1
    assert all((row["low"], row["high"]) == wilson(row["share"], 1) for row in rows), "one tree, however many siblings"


@pytest.mark.parametrize(("trees", "alike"), [
    ([(1, 1), (1, 0)] * 50, (50, 100)),  # one comparison a tree: as Wilson has it
    ([(8, 4), (8, 4), (8, 5)] * 20, (260, 480)),  # trees that are as alike as chance makes them: no narrower than that
    ([(10, 10), (10, 0)] * 50, (50, 100)),  # trees agree in all or in nothing: a tree is one comparison
    ([(10, 10)] * 6, (6, 6)),  # nothing tells how alike comparisons of a tree are
    ([(40, 30)], (0.75, 1)),
])  # fmt: skip
def test_comparisons_of_one_tree_are_not_counted_as_if_they_were_of_many(
    trees: list[tuple[int, int]], alike: tuple[float, int]
) -> None:
    told = ClusteredShare()
    for place, (count, hits) in enumerate(trees):
        for number in range(count):
            told.add(place, number < hits)
    hits, count, interval = told.interval()
    assert (count, hits) == tuple(map(sum, zip(*trees, strict=True)))
    assert interval == pytest.approx(wilson(alike[0] / alike[1], alike[1]), abs=1e-2)
    assert wilson(0.25, 40) == pytest.approx(share_interval(10, 40))


def judged_by_f1(tree: Tree) -> Tree:
    return replace(tree, nodes=tuple(
        n if n.prediction_f1 is None else replace(n, judge={"score": n.prediction_f1, "text": ""}) for n in tree.nodes
    ))  # fmt: skip


def test_the_halves_of_the_rollouts_share_none_and_miss_none() -> None:
    grown = search(ScriptedPolicy(), rollouts=12)
    first, second = half_means(grown, [n.prediction_f1 for n in grown.nodes])
    scored = [n.prediction_f1 for n in grown.nodes if n.prediction_f1 is not None]
    one, other = -(-len(scored) // 2), len(scored) // 2
    assert (first[0] or 0) * one + (second[0] or 0) * other == pytest.approx(sum(scored))
    assert [n.id for n in grown.nodes if n.prediction_f1 is not None] == [
        i for i, n in enumerate(grown.nodes) if n.terminal and (first[i] is None) != (second[i] is None)
    ]


class Hub:
    """Stands for the hub: keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.asked.append({"repo_id": repo_id, **options})

    def upload_folder(self, **options: Any) -> None:
        self.asked.append(options)


def test_pushing_sends_the_files_of_the_folder_to_a_private_repository(tmp_path: Path) -> None:
    hub = Hub()
    push(tmp_path, "me/pairs", cast(Any, hub), private=True)
    made, sent = hub.asked
    assert made == {"repo_id": "me/pairs", "repo_type": "dataset", "private": True, "exist_ok": True}
    assert (sent["folder_path"], sent["repo_type"]) == (str(tmp_path), "dataset")
    assert "README.md" in sent["allow_patterns"]
    assert ".lock" not in sent["allow_patterns"]


def test_two_questions_of_one_id_are_refused(tmp_path: Path, varied: list[Tree]) -> None:
    other = replace(varied[1], question=replace(varied[1].question, question="Another?"))
    trees = trees_file(tmp_path / "run", [varied[1], other])
    with pytest.raises(ConfigError, match="give each data set a pairs folder of its own"):
        build(trees, tmp_path / "pairs")


def test_evaluation_files_of_one_name_are_told_apart(tmp_path: Path, varied: list[Tree]) -> None:
    build(trees_file(tmp_path / "run", [varied[1]]), tmp_path / "pairs")
    asked = varied[1].question
    files = [str(tmp_path / name / "dev.jsonl") for name in ("one", "two")]
    for file, question in zip(files, (asked, replace(asked, id="x", question="Another one?")), strict=True):
        write_records(Path(file), [question])
    assert steprag(["pairs", "leakage", "--pairs", str(tmp_path / "pairs"), "--against", *files]) == 0
    found = json.loads((tmp_path / "pairs/leakage.json").read_text())
    assert [(file["file"], file["found"]["id"]) for file in found["files"]] == [(files[0], 1), (files[1], 0)]


def test_leakage_is_found_by_id_words_and_near_duplicates(
    tmp_path: Path, tiny_encoder: Path, varied: list[Tree]
) -> None:
    trees = varied[:4]
    texts = [QUESTION, "Who?", "x y", "Entirely other words here"]
    named = [
        replace(tree, question=Question(name, text, tree.question.golden_answers))
        for tree, name, text in zip(trees, ["a", "b", "popqa_test_1", "d"], texts, strict=True)
    ]
    folder = tmp_path / "out"
    build(trees_file(tmp_path / "run", named), folder, "--products", "[steps]")
    evaluation = tmp_path / "dev.jsonl"
    rows = [
        {"id": "b", "question": "Another question?", "golden_answers": ["x"]},
        {"id": "e1", "question": "which currency IS used in country whose capital is tirana", "golden_answers": ["x"]},
        {"id": "e2", "question": "Entirely other words here!", "golden_answers": ["x"]},
    ]
    evaluation.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--pairs", str(folder), "--against", str(evaluation), "--leakage.encoder", str(tiny_encoder)]
    assert steprag(["pairs", "leakage", *options, "--leakage.similarity", "0.999"]) == 0
    found = json.loads((folder / "leakage.json").read_text())
    by_kind = {(m["kind"], m["question_id"], m["evaluation_id"]) for m in found["matches"]}
    assert {("id", "b", "b"), ("text", "a", "e1"), ("text", "d", "e2"), ("embedding", "d", "e2")} <= by_kind
    assert any(kind == "ngram" and other == "e1" for kind, _, other in by_kind), "its words stand in the prompts"
    assert not any(other == "b" and kind in ("text", "ngram") for kind, _, other in by_kind)
    assert any("PopQA" in warning for warning in found["warnings"])
    assert "PopQA" in (folder / "README.md").read_text(encoding="utf-8")


def test_leakage_names_every_question_that_holds_the_words_and_every_question_that_they_are_of(
    tmp_path: Path, varied: list[Tree]
) -> None:
    """A text in the rows of three questions once counted for the first; of two equal runs of words the last counted."""
    words = "one two three four five six seven eight nine ten eleven twelve thirteen"
    folder = tmp_path / "out"
    trees = [replace(varied[1], question=replace(varied[1].question, id=name)) for name in "abc"]
    build(trees_file(tmp_path / "run", trees), folder, "--products", "[steps]", "--filters.duplicates", "false")
    rows = [json.loads(line) for line in (folder / "steps.train.jsonl").read_text().splitlines()]
    for row in rows:
        row["completion"] = [{"role": "assistant", "content": f"Well, {words}."}]
    (folder / "steps.train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [f"{words} {end}?" for end in ("begin", "begin", "end")]
    asked += [f"{words} many {number}" for number in range(NAMED)]
    other = [{"id": "o1", "question": QUESTION, "golden_answers": ["x"]}, {"id": "o2", "question": QUESTION + "?",
             "golden_answers": ["x"]}]  # fmt: skip
    for name, questions in (("dev", [{"id": f"e{i}", "question": text, "golden_answers": ["x"]}
                                     for i, text in enumerate(asked)]), ("other", other)):  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    files = [str(tmp_path / f"{name}.jsonl") for name in ("dev", "other")]
    assert steprag(["pairs", "leakage", "--pairs", str(folder), "--against", *files, "--leakage.encoder", "none"]) == 0
    found = json.loads((folder / "leakage.json").read_text())
    by_kind = {(match["kind"], match["question_id"], match["evaluation_id"]) for match in found["matches"]}
    assert {("ngram", name, f"e{place}") for name in "abc" for place in range(3)} <= by_kind
    assert {("text", name, place) for name in "abc" for place in ("o1", "o2")} <= by_kind
    assert [file["found"] for file in found["files"]] == [
        {"id": 0, "text": 0, "ngram": 3, "embedding": 0}, {"id": 0, "text": 3, "ngram": 3, "embedding": 0},
    ]  # fmt: skip
    named = [match for match in found["matches"] if match["file"] == "dev.jsonl" and match["question_id"] == "a"]
    assert len(named) == NAMED
    assert {match["shared_by"] for match in named} == {len(asked)}, "more are not named, but counted"


def test_the_cut_off_counts_the_tokens_of_the_model_to_be_trained(tmp_path: Path, varied: list[Tree]) -> None:
    model = make_llama(tmp_path / "tiny", ["So the next query is", "currency of Albania", "Question: Passages:"])
    trees = trees_file(tmp_path / "run", varied[:10])
    options = ("--filters.tokenizer", str(model))
    every, report = build(trees, tmp_path / "long", *options, "--filters.max_tokens", "100000")
    longest = int(report["pairs"]["tokens"]["greatest"])
    some, report = build(trees, tmp_path / "cut", *options, "--filters.max_tokens", str(longest - 1))
    assert 0 < len(some) < len(every)
    before, after = rules(report)["within the cut-off"]
    assert before - after == len(every) - len(some)
