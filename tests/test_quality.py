"""Quality figures beside EM and F1: ROUGE-L, BLEU, BERTScore, lengths, errors, and how completions keep the grammar;
`steprag score judge` over HTTP, with a scripted judge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from inference.scoring.answer_judge import parse
from inference.scoring.bertscore import BertScorer
from inference.scoring.scores import score
from steprag.agent.compliance import compliance, over_time, together, written
from steprag.errors import ConfigError
from steprag.records.jsonl import read_records, write_json, write_records
from steprag.records.turns import Turn, Verdict
from steprag.runs.run import open_run
from steprag.scores.words import bleu, bleu_signature, rouge_l
from steprag.types import Found, Prediction, Step, Usage
from tests.fakes import Endpoint, chat_reply, serve
from tests.viewing import answered_run

SAID = ("the Albanian lek", "Albanian lek, the currency", "Paris", "", "Yes",
        "It was discovered in 1944 by Glenn Seaborg.", "São Tomé and Príncipe!", "lietuvių kalba")  # fmt: skip
GOLDEN = ("lek", "lek", "London, England", "lek", "no", "curium was discovered by Glenn T. Seaborg in 1944",
          "Sao Tome and Principe", "Lithuanian")  # fmt: skip
BERT_SCORE = {
    6: [(0.59276, 0.897685, 0.714031), (0.483965, 0.89585, 0.628432), (0.410281, 0.493733, 0.448155), (0, 0, 0),
        (0.799851, 0.799851, 0.799851), (0.794016, 0.685221, 0.735618), (0.914087, 0.986671, 0.948993),
        (0.250457, 0.32614, 0.283332)],
    5: [(0.649706, 0.943805, 0.769616), (0.543843, 0.943967, 0.690101), (0.568786, 0.585375, 0.576961), (0, 0, 0),
        (0.787684, 0.787684, 0.787684), (0.933548, 0.787767, 0.854484), (0.929981, 0.988428, 0.958314),
        (0.335763, 0.40715, 0.368026)],
}  # fmt: skip
"""By layer, what the package itself gives: bert-score 0.3.13, transformers 4.57.6, torch 2.13.0, the embedded encoder:

score(SAID, GOLDEN, model_type=FOLDER, num_layers=LAYER, device="cpu"), rounded to six digits.
"""


@pytest.mark.parametrize("layer", [5, 6])
def test_bertscore_is_the_packages(layer: int) -> None:
    scorer = BertScorer(layer=layer)
    matches = scorer.score(list(zip(SAID, GOLDEN, strict=True)))
    for match, (precision, recall, f1) in zip(matches, BERT_SCORE[layer], strict=True):
        assert (match.precision, match.recall, match.f1) == pytest.approx((precision, recall, f1), abs=2e-5)
    assert scorer.told["layer"] == layer


def test_bertscore_takes_the_best_golden_answer() -> None:
    one, none, lone = BertScorer().best(["lek", None, "x"], [("the sol", "lek"), ("lek",), ()])
    assert one.f1 == 1
    assert none.f1 == lone.f1 == 0
    with pytest.raises(ConfigError, match="layers 1 to 6, not 9"):
        BertScorer(layer=9)
    with pytest.raises(ConfigError, match="no model at nowhere"):
        BertScorer("nowhere")


def test_rouge_and_bleu_are_their_packages() -> None:
    # "discovered in 1944" of five words here and five there
    assert rouge_l("It was discovered in 1944", ("lek", "discovered by Seaborg in 1944")) == pytest.approx(0.6)
    assert rouge_l(None, ("lek",)) == bleu(None, ("lek",)) == bleu("lek", ()) == 0
    assert bleu("The Lek", ("the sol", "the lek")) == 1  # case is ignored, every golden answer is a reference
    # one of two words; no pair of words, which sacrebleu smooths to half of one: (1/2 · 1/2)^(1/2)
    assert bleu("lek coin", ("lek note",)) == pytest.approx(0.5)
    assert "case:lc" in bleu_signature()


def played(said: str | None, *, finish: str = "answer", found: str = "7", refused: str | None = None) -> Prediction:
    steps = (Step("query", "So the next query is <query> lek </query>", "lek"),)
    steps += (Step("answer", f"So the answer is <answer> {said} </answer>", said),) if said else ()
    passages = ((Found(found, "The Lek", 0.9),),)
    return Prediction("q", "Which?", ("Albanian lek",), said, steps, passages, Usage(2, 90, 10), finish,
                      {"supporting_ids": ["7"]}, refused)  # fmt: skip


@pytest.mark.parametrize(("prediction", "error"), [
    (played("the albanian lek"), "right"),
    (played("Albanian lek, of course"), "more words"),
    (played("pseudoalbanian leks"), "misread"),  # its letters stand there, its words do not
    (played("a lek"), "near"),
    (played("sol"), "misread"),
    (played("sol", found="8"), "not found"),
    (replace(played("sol"), metadata={}), "wrong"),
    (played(None, finish="truncated", refused="So the"), "no answer"),
])  # fmt: skip
def test_every_prediction_has_one_error(prediction: Prediction, error: str) -> None:
    assert score(prediction).error == error


def test_completions_are_counted_by_action_and_reason() -> None:
    """Steps that a turn was given are not the policy's."""
    whole = score(played("lek")).written
    cut = score(played(None, finish="several_actions", refused="<think> <answer> a </answer> <query>")).written
    lost = score(played(None, finish="empty", refused=" ")).written
    told = compliance(together([whole, cut, lost, whole]))
    assert (told["n"], told["value"], told["reasons"]) == (8, 0.75, {"several_actions": 1, "empty": 1})
    assert [(one["action"], one["n"], one["value"]) for one in told["actions"]] == [
        ("query", 4, 1.0), ("answer", 3, pytest.approx(2 / 3)), ("none", 1, 0.0),
    ]  # fmt: skip
    assert told["low"] == pytest.approx(0.409, abs=1e-3)  # Wilson of 6 in 8
    assert compliance({})["value"] is None
    assert score(Turn(**vars(played("lek")), given=1)).written == {"answer": {"": 1}}


def test_compliance_over_time_is_in_runs_of_equal_number() -> None:
    good, bad = written([("query", "", None)]), written([(None, "what?", "no_action")])
    told = over_time([(number, good if number > 50 else bad) for number in range(1, 101)])
    assert len(told) == 20
    assert [(one["at"], one["n"], one["value"]) for one in (told[0], told[9], told[10], told[-1])] == [
        (5, 5, 0.0), (50, 5, 0.0), (55, 5, 1.0), (100, 5, 1.0),
    ]  # fmt: skip
    assert over_time([]) == []
    steps = over_time([(1, good), (1, bad), (2, good)])  # episodes of one training step count together
    assert [(one["at"], one["n"], one["value"]) for one in steps] == [(1, 2, 0.5), (2, 1, 1.0)]


def test_evaluate_tells_every_figure_with_n_interval_and_definition(tmp_path: Path) -> None:
    run = answered_run(tmp_path / "run", ["lek", "the lek coin", "sol", None])
    assert main(["evaluate", "--predictions", str(run)]) == 0
    told = json.loads((run / "metrics.json").read_text())
    for name, figure in told["figures"].items():
        assert figure["low"] <= figure["value"] <= figure["high"], name
        assert figure["definition"]
    assert {name: figure["n"] for name, figure in told["figures"].items() if figure["n"] != 4} == {"words": 3}
    assert "bertscore" not in told["figures"]  # it loads a model, so only where it is asked for
    assert told["figures"]["rouge_l"]["value"] == pytest.approx((1 + 1 / 2) / 4)
    assert told["errors"] == {"right": 1, "more words": 1, "wrong": 1, "no answer": 1}
    assert told["written"]["n"] == 7


def test_bertscore_is_kept_beside_the_run_until_its_predictions_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"a": ["lek", "sol"], "b": ["lek", "lek"]}
    before, after = (answered_run(tmp_path / name, words) for name, words in said.items())
    for run in (before, after):
        assert main(["evaluate", "--predictions", str(run), "--bertscore", "minilm"]) == 0
    assert "BERTScore" in capsys.readouterr().out
    assert main(["compare", str(before), str(after), "--out", str(tmp_path / "out")]) == 0
    # Wilson's interval of 2 in 2: what is equal scores exactly 1, however many threads add it up
    assert _figure(capsys.readouterr().out, "BERTScore")[2].startswith("100.0 (34.2 to 100.0), n 2; +")
    quality = json.loads((tmp_path / "out/compare.json").read_text())["quality"]["b"]
    assert quality["counted_with"]["bertscore"]["layer"] == 6
    answered_run(tmp_path / "c", ["sol", "lek", "lek"])
    (tmp_path / "c/bertscore.json").write_bytes((after / "bertscore.json").read_bytes())
    assert main(["evaluate", "--predictions", str(tmp_path / "c"), "--json"]) == 0
    assert "bertscore" not in json.loads(capsys.readouterr().out)["figures"]  # of other predictions


def _figure(table: str, name: str) -> list[str]:
    """The cells of a row of the figures' table."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def test_compare_tells_differences_and_errors_of_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: dict[str, Sequence[str | None]] = {"before": ["sol"] * 8 + ["lek"] * 2, "after": ["lek"] * 9 + [None]}
    runs = [answered_run(tmp_path / name, words) for name, words in said.items()]
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert _figure(out, "ROUGE-L")[2].startswith("90.0 (59.6 to 98.2), n 10; +70.0 (")
    assert "| no answer | 0 (0.0 %) | 1 (10.0 %) |" in out
    gains: dict[str, Any] = json.loads((tmp_path / "out/compare.json").read_text())["quality"]["after"]["gains"]
    assert gains["em"]["value"] == pytest.approx(0.7)
    assert gains["words"]["n"] == 9  # of the questions that both answered


ANSWERS = {"a": "lek", "b": "the currency of Albania, the lek", "c": "sol", "d": None, "e": "unclear"}


def judge(prompt: str, draw: int) -> str:
    """Right wherever the lek is named; a case of its own for what it cannot read."""
    del draw
    said = prompt.split("The system's answer: ")[1].split("\n")[0]
    return "perhaps" if said == "unclear" else "Yes." if "lek" in said else "no"


def told(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    def one(name: str, said: str | None) -> Prediction:
        finish, steps = ("answer", (Step("answer", "", said),)) if said else ("no_action", ())
        return Prediction(name, "Which currency?", ("lek",), said, steps, (), Usage(), finish)

    with open_run(tmp_path / "run", "infer", identity={"harness": 7}, config={}):
        write_records(tmp_path / "run/predictions.jsonl", [one(name, said) for name, said in ANSWERS.items()])
    return tmp_path / "run"


def run(endpoint: Endpoint, predictions: Path, *more: str) -> int:
    judge = ["--judge.base_url", endpoint.url, "--judge.model", "double", "--judge.engine", "openai"]
    return main(["judge", "--predictions", str(predictions), *judge, "--judge.retries", "0", *more])


def test_answers_are_judged_and_set_beside_em(predictions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that names its prompt by the hash alone goes on too."""
    file = predictions / "judged/manifest.json"
    with serve(chat_reply(judge)) as endpoint:
        assert run(endpoint, predictions) == 0
        # no answer, no request; a greedy judge would only repeat what is no verdict
        assert len(endpoint.requests) == 4
        manifest = told(file)
        assert len(manifest["identity"]["prompt"]["hash"]) == 16
        assert run(endpoint, predictions) == 0
        manifest["identity"]["prompt"] = manifest["identity"]["prompt"]["hash"]  # as up to version 0.1
        write_json(file, manifest)
        assert run(endpoint, predictions) == 0
    assert len(endpoint.requests) == 4, "somebody was asked again"
    assert endpoint.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["right"]
    verdicts = {one.id: one.right for one in read_records(predictions / "judged/verdicts.jsonl", Verdict)}
    assert verdicts == {"a": True, "b": True, "c": False, "d": False, "e": None}
    scores = told(predictions / "judged/metrics.json")
    assert scores["predictions_of"] == {"harness": 7}
    assert (scores["right"], scores["em"], scores["agreement"], scores["unread"]) == (0.5, 0.25, 0.75, 1)
    assert scores["usage"]["calls"] == 4
    assert "right      50.0" in capsys.readouterr().out


def test_failed_requests_are_not_wrong_answers(predictions: Path) -> None:
    def reply(request: dict[str, Any]) -> tuple[int, object]:
        broken = "sol" in request["messages"][-1]["content"]
        return (400, {"error": {"message": "no"}}) if broken else chat_reply(judge)(request)

    with serve(reply) as endpoint:
        assert run(endpoint, predictions, "--out", str(predictions.parent / "out")) == 3
    scores = told(predictions.parent / "out/metrics.json")
    assert (scores["right"], scores["failed"], scores["questions"]) == (pytest.approx(2 / 3), 1, 5)


@pytest.mark.parametrize(("reply", "score"), [
    ("yes", 1.0), (" No. ", 0.0), ('{"right": true}', 1.0), ('{"right": false}', 0.0), ('{"right": 1}', None),
    ('{"right', None), ("yes, but", None), ("", None), ("notable", None),
])  # fmt: skip
def test_replies(reply: str, score: float | None) -> None:
    assert parse(reply) == score
