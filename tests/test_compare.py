"""Scores of episodes and runs side by side, against values worked out by hand."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from benchmarks import seeds
from inference.scoring.evaluate import episode_seconds
from inference.scoring.scores import HARNESS, score
from steprag.agent.profiles import PROFILES, load_profile
from steprag.console.terminal import guarded
from steprag.records.jsonl import write_records
from steprag.runs.run import open_run
from steprag.tree import Failure
from steprag.types import Found, Prediction, Step, Usage


def prediction(number: int, said: str | None, searches: int = 1, **metadata: Any) -> Prediction:
    steps = (Step("query", "…", "x"),) * searches + ((Step("answer", "…", said),) if said is not None else ())
    found = (Found("7", "The Lek"), Found("9", "Tirana (city)"))
    finish = "answer" if said is not None else "no_action"
    return Prediction(f"q{number}", "Which?", ("lek", "the Albanian lek"), said, steps, (found,) * searches,
                      Usage(2, 100, 10, 0), finish, metadata)  # fmt: skip


def failed(folder: str, *numbers: int) -> str:
    write_records(Path(folder) / "failures.jsonl", [Failure(f"q{i}", "PromptTooLong", "") for i in numbers])
    return folder


def run_of(folder: Path, said: list[str | None], searches: int = 1, **identity: object) -> str:
    return run_with(folder, [prediction(i, text, searches) for i, text in enumerate(said)], **identity)


def run_with(folder: Path, predictions: list[Prediction], **identity: object) -> str:
    identity = {"questions": "abc", "index": "i1", "harness": HARNESS, **identity}
    with open_run(folder, "infer", identity=identity, config={}):
        write_records(folder / "predictions.jsonl", predictions)
    return str(folder)


def test_the_score_of_an_episode() -> None:
    half = score(prediction(0, "It is the Albanian currency lek"))
    assert (half.em, half.cover, half.precision, half.recall) == (0.0, 1.0, 2 / 5, 1.0)
    assert half.f1 == pytest.approx(4 / 7)
    assert (half.steps, half.searches, half.tokens, half.answered) == (2, 1, 110, True)
    none = score(prediction(0, None))
    assert (none.em, none.f1, none.cover, none.answered, none.finish) == (0.0, 0.0, 0.0, False, "no_action")


def test_equal_scores_that_are_no_binary_fractions_are_drawn(tmp_path: Path) -> None:
    """Their mean lies a rounding error above the interval's end."""
    run = run_of(tmp_path / "run", ["the Albanian currency lek"] * 3)
    assert main(["compare", run, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/scores.png").stat().st_size > 0


def test_a_type_that_is_no_word_is_no_group(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ["lek"])
    write_records(tmp_path / "run/predictions.jsonl", [prediction(0, "lek", type=["bridge", "x"])])
    assert main(["run", "check", "--accept", run]) == 0  # we changed it ourselves
    assert main(["evaluate", "--predictions", run]) == 0
    assert json.loads((tmp_path / "run/metrics.json").read_text())["by_type"] == {}


@pytest.mark.parametrize(("metadata", "found"), [
    ({}, None),
    ({"supporting_ids": ["7", "8"]}, 0.5),
    ({"supporting_ids": [7, 9]}, 1.0),
    ({"supporting_titles": ["the lek", "Durrës"], "supporting_ids": ["1", "2"]}, 0.5),
    ({"supporting_facts": {"title": ["Tirana (city)"], "sent_id": [0]}}, 1.0),
    ({"supporting_facts": [["Durrës", 0]]}, 0.0),
    ({"supporting_ids": ["7", "8"], "gold_rule": "any"}, 1.0),
])  # fmt: skip
def test_gold_passages_in_every_spelling(metadata: dict[str, Any], found: float | None) -> None:
    assert score(prediction(0, "lek", **metadata)).gold == found


def test_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = "lek", "sol"
    base = run_of(tmp_path / "base", [right] * 4 + [wrong] * 8)
    better = run_of(tmp_path / "better", [wrong] + [right] * 9 + [wrong, None], searches=2)
    direct = run_of(tmp_path / "direct", [right] * 3 + [wrong] * 9, searches=0)
    out = tmp_path / "compared"
    command = ["compare", base, better, "--names", "warm start", "trained", "--direct", direct, "--out", str(out)]
    assert main(command) == 0
    said = capsys.readouterr().out
    first, second = csv.DictReader((out / "compare.csv").open())
    assert (first["run"], first["em"], first["gain_em"]) == ("warm start", str(4 / 12), "")
    assert float(second["em"]) == 9 / 12
    assert (second["gain_better"], second["gain_worse"]) == ("6", "1")
    assert float(second["gain_em"]) == pytest.approx(5 / 12)
    assert float(second["gain_p"]) == pytest.approx(2 * (1 + 7) / 2**7)  # one or fewer of seven, both tails
    assert float(second["gain_low"]) < 5 / 12 < float(second["gain_high"])
    assert (float(second["over_search"]), float(second["under_search"])) == (1.0, 0.0)
    assert float(second["format"]) == 11 / 12
    between = json.loads((out / "compare.json").read_text())["differences"]
    assert between["trained"]["warm start"]["em"] == -between["warm start"]["trained"]["em"] == pytest.approx(5 / 12)
    assert "| trained | 12 | 75.0 (" in said
    assert (out / "compare.md").read_text().startswith(said)
    for picture in ("table.png", "scores.png", "searches.png", "endings.png", "errors.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert f"({picture})" in (out / "compare.md").read_text()


def test_a_direct_run_against_itself_searches_too_little(tmp_path: Path) -> None:
    direct = run_of(tmp_path / "direct", ["lek"] * 3 + ["sol"] * 9, searches=0)
    assert main(["compare", direct, "--direct", direct, "--out", str(tmp_path / "out")]) == 0
    (line,) = csv.DictReader((tmp_path / "out/compare.csv").open())
    assert (float(line["over_search"]), float(line["under_search"])) == (0.0, 1.0)
    assert (line["known_alone"], line["unknown_alone"]) == ("3", "9")
    known = run_of(tmp_path / "known", ["lek"] * 3, searches=0)
    assert main(["compare", known, "--direct", known, "--out", str(tmp_path / "out")]) == 0
    (line,) = csv.DictReader((tmp_path / "out/compare.csv").open())
    assert (line["under_search"], line["unknown_alone"]) == ("", "0"), "a share of no question is none"


def test_runs_that_share_no_question_of_a_kind_are_compared_on_the_others(tmp_path: Path) -> None:
    runs = []
    for place, name in enumerate("ab"):
        kinds = ["few" if number < 2 else "many" for number in range(6)]
        answered = [prediction(n, "lek", type=kind) for n, kind in enumerate(kinds) if n != place]
        runs.append(failed(run_with(tmp_path / name, answered), place))
    assert main(["compare", *runs, "--out", str(tmp_path / "out")]) == 0
    assert "few" not in json.loads((tmp_path / "out/compare.json").read_text())["groups"]


def test_half_an_answer_is_not_known_alone_and_a_refused_episode_gave_none(tmp_path: Path) -> None:
    half, out = prediction(0, "lek", 0, parts=[["lek"], ["euro"]]), tmp_path / "out"
    direct = run_with(tmp_path / "direct", [half, *(prediction(n, "sol", 0) for n in (1, 2, 3))])
    refused = run_of(tmp_path / "refused", [None] * 3 + ["sol"], searches=0)
    assert main(["compare", direct, refused, "--direct", direct, "--out", str(out)]) == 0
    first, second = csv.DictReader((out / "compare.csv").open())
    assert (first["em"], first["known_alone"], first["unknown_alone"]) == (str(0.5 / 4), "0", "4")
    assert (first["under_search"], second["under_search"]) == ("1.0", str(1 / 4))


def test_failed_questions_are_wrong_in_the_strict_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_of(tmp_path / "whole", ["lek"] * 4 + ["sol"] * 4)
    part = failed(run_of(tmp_path / "part", ["lek"] * 2), *range(2, 8))
    assert main(["compare", whole, part, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "| strict EM (failed is wrong) | over the first |" in said
    assert said.splitlines()[3].endswith("| 25.0 | -25.0 |")
    compared = json.loads((tmp_path / "out/compare.json").read_text())
    assert compared["runs"]["part"]["em"] == 1.0
    assert compared["differences"]["whole"]["part"]["strict"] == 0.25
    assert main(["evaluate", "--predictions", part]) == 0
    assert "strict EM  25.0" in capsys.readouterr().out


def test_a_table_says_what_it_was_made_with_and_whether_it_was_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = {"profile": "transcript", "hash": "p1"}
    one = run_of(tmp_path / "one", ["lek"] * 4 + ["sol"] * 4, prompt=prompt)
    other = run_of(tmp_path / "other", ["lek"] * 4, index="i2")
    out = tmp_path / "out"
    assert main(["compare", one, other, "--force", "--out", str(out)]) == 0
    assert "Forced: " in capsys.readouterr().out
    compared = json.loads((out / "compare.json").read_text())
    assert compared["forced"] is True
    assert compared["identities"]["one"]["prompt"] == prompt
    first, second = csv.DictReader((out / "compare.csv").open())
    assert (first["harness"], first["index"], first["profile"], first["prompt_hash"]) == (
        str(HARNESS), "i1", "transcript", "p1",
    )  # fmt: skip
    assert (first["questions"], first["em"], second["em"], second["gain_em"]) == ("4", "1.0", "1.0", "0.0")


def test_searches_of_best_of_n_are_those_of_all_its_episodes() -> None:
    chosen = prediction(0, "lek")
    assert score(replace(chosen, answers=("lek",) * 4, chosen=0, searches=7)).searches == 7


GRAMMARS = "bfd6dccb3c37afa9"


def test_whoever_changes_a_grammar_raises_the_harness() -> None:
    """Which grammar it was, the golden prompts say."""
    now = {file.stem: load_profile(file.stem).grammar.hash for file in PROFILES.glob("*.yaml")}
    digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()[:16]
    assert (HARNESS, digest) == (5, GRAMMARS), "scores change with a grammar: raise HARNESS, then note the hash here"


@pytest.mark.parametrize(("identity", "said", "message"), [
    ({"index": "i2"}, ["lek"] * 3, "differ in index (i1 and i2)"),
    ({"questions": "other"}, ["lek"] * 3, "differ in questions"),
    ({"harness": 0}, ["lek"] * 3, "differ in harness"),
    ({}, ["lek"] * 2, "have other questions"),
])  # fmt: skip
def test_unlike_runs_are_refused_unless_forced(identity: dict[str, object], said: list[str | None], message: str,
                                               tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    one, other = run_of(tmp_path / "a", ["lek"] * 3), run_of(tmp_path / "b", said, **identity)
    assert main(["compare", one, other]) == 2
    assert message in capsys.readouterr().err
    assert main(["compare", one, other, "--force"]) == 0


def test_a_failed_question_is_no_other_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = run_of(tmp_path / "whole", ["lek"] * 6), run_of(tmp_path / "part", ["lek"] * 5)
    write_records(Path(part) / "failures.jsonl", [Failure("q9", "PolicyError", "")])
    assert main(["compare", whole, part]) == 2
    assert "other questions" in capsys.readouterr().err
    write_records(Path(part) / "failures.jsonl", [Failure("q5", "PolicyError", "")])
    assert main(["compare", whole, part]) == 0
    assert "5 (+1 failed)" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = run_of(tmp_path / "a/run", ["lek"] * 3), run_of(tmp_path / "b/run", ["sol"])
    with open_run(tmp_path / "r", "generate", identity={}, config={}):
        pass
    for given, said in (
        ([one, other], "two runs are called 'run'; tell them apart with --names"),
        ([str(tmp_path / "r")], "is a run of 'generate', not of 'infer'"),
        ([one, "--direct", one], "searched for 3 of its questions"),
    ):
        assert main(["compare", *given]) == 2
        assert said in capsys.readouterr().err


def test_arms_of_several_seeds_are_compared_by_their_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = run_of(tmp_path / "start", ["sol"] * 8)
    one, other = run_of(tmp_path / "one", ["lek"] * 8), run_of(tmp_path / "other", ["lek"] * 4 + ["sol"] * 4)
    assert seeds.main(["--base", start, "--arm", "taught", one, other]) == 0
    table = capsys.readouterr().out
    assert "| taught over the start | 75.0, 0.0 | +75.0 (+56.2 to +93.8) | 0.0078 | a gain |" in table
    assert "| taught | 75.0 (100.0, 50.0) |" in table
    assert guarded(seeds.main, ["--base", start, "--arm", "taught"]) == 2
    lost = failed(run_of(tmp_path / "lost", ["lek"] * 7), 7)
    assert guarded(seeds.main, ["--base", start, "--arm", "taught", lost]) == 2
    assert "lost: 1 questions failed; run it again" in capsys.readouterr().err


def test_the_median_second_of_an_even_number_of_episodes_lies_between_the_middle_two(tmp_path: Path) -> None:
    write_records(tmp_path / "metrics.jsonl", [{"event": "done", "seconds": seconds} for seconds in (4.0, 1.0)])
    assert episode_seconds(tmp_path / "metrics.jsonl") == {"median": 2.5, "p95": 4.0}
